"""The shipped conditional generators (CTCL), trained on from shipped models; needs a GPU.

    python scripts/train_conditional.py CORPUS.jsonl.gz OUT [--only conditional] [--seconds 100]

`conditional` goes on from the tiny downstream model, on the federation's own public text alone
(the groups of the file that scripts/make_corpus.py writes); `small-conditional` from the small
generator, on the whole file. Both learn to write a text after its condition: its own keywords,
those of the texts around it, its package, or nothing (text/conditions.py); the loss is the text's.
OUT/NAME is an ordinary Hugging Face folder; its training.json says how many nats a character of
held-out text costs after its own keywords, after those of its group and of the groups around it,
after another text's, and after none. It is held out of this training and the small generator's; the
tiny downstream model may have read it. On one H100, both side by side, the small one took five
minutes, three of them for its pairs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from privsyn_flower.common.files import file_digest
from privsyn_flower.common.randomness import seeded
from privsyn_flower.text.conditions import Pair, PairSource, condition, encode_pairs
from privsyn_flower.text.models.batches import IGNORED, causal_labels, pad_rows, token_batches
from privsyn_flower.text.tiny.assets import PACKAGE_ASSETS
from privsyn_flower.text.tiny.training import PAD

sys.path.append(str(Path(__file__).resolve().parent.parent))  # also when it is run as a script
from scripts.train_small import BATCH_TOKENS, DROPOUT, Corpus, drop, read, train

DRAWS = 4  # of the conditions of all texts; longer trainings read them again
DECAY_FROM, SHARE = 0.3, 0.5  # of the time from which the rate falls; of train_small's rates
BEGINNING = 40  # characters by which a group's text is found in a module
CHECKED = 600  # held-out texts
Rows = list[tuple[list[int], int]]


@dataclass(frozen=True)
class Plan:
    """init: shipped folder to go on from. length: most tokens of a text. whole: also the modules'
    pieces, besides the groups."""

    init: str
    length: int
    dropout: float
    whole: bool


PLANS = {
    "conditional": Plan("downstream", 96, 0.0, whole=False),
    "small-conditional": Plan("small-generator", 256, DROPOUT, whole=True),
}


@dataclass(frozen=True)
class Texts:
    """source: groups with their names; read: numbers of those to train on; held: held out."""

    source: PairSource
    groups: list[list[str]]
    read: list[int]
    held: list[int]


def texts_of(corpus: Corpus, whole: bool) -> Texts:
    """The corpus' groups, and with `whole` its modules, each with its package as name."""
    known = {text[:BEGINNING]: i for i, texts in enumerate(corpus.pieces) for text in texts}

    def package(group: Sequence[str]) -> str:
        found = [known[text[:BEGINNING]] for text in group if text[:BEGINNING] in known]
        return corpus.packages[found[0]] if found else ""

    groups = [*corpus.groups, *corpus.held]
    names = [package(group) for group in groups]
    held = list(range(len(corpus.groups), len(groups)))
    if whole:
        groups, names = groups + corpus.pieces, names + corpus.packages
    keep = set(held)
    return Texts(
        PairSource(groups, names), groups, [i for i in range(len(groups)) if i not in keep], held
    )


def batches(
    draws: Sequence[Rows], budget: int, device: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor, list[int]]]:
    """Endless batches (ids, mask, leading) of at most `budget` padded tokens, draw after draw."""
    rng, turn = seeded(0, "conditional", "training"), 0
    while True:
        rows = draws[turn % len(draws)]
        turn += 1
        for batch in token_batches([len(ids) for ids, _ in rows], budget, rng):
            ids, mask = pad_rows([rows[i][0] for i in batch], PAD)
            yield ids.to(device), mask.to(device), [rows[i][1] for i in batch]


def text_losses(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, leading: Sequence[int], device: str
) -> torch.Tensor:
    """Cross-entropies (k,) of the texts' tokens in a batch, in float32.

    Padding follows every token that is looked at, so that attention needs no mask.
    """
    labels = causal_labels(ids, mask, leading)
    wanted = labels != IGNORED
    with torch.autocast(device, torch.bfloat16):
        states = model.model(input_ids=ids).last_hidden_state[:, :-1]
        logits = model.lm_head(states[wanted])
    return torch.nn.functional.cross_entropy(logits.float(), labels[wanted], reduction="none")


@torch.inference_mode()
def nats(model: Any, tokenizer: Any, pairs: Sequence[Pair], length: int, device: str) -> float:
    """Nats a character of the texts after their conditions."""
    rows = encode_pairs(tokenizer, pairs, length)
    total = 0.0
    for first in range(0, len(rows), 64):
        ids, mask = pad_rows([ids for ids, _ in rows[first : first + 64]], PAD)
        leading = [count for _, count in rows[first : first + 64]]
        total += float(text_losses(model, ids.to(device), mask.to(device), leading, device).sum())
    return total / sum(len(pair.text) for pair in pairs)


def measure(model: Any, tokenizer: Any, texts: Texts, length: int, device: str) -> dict[str, float]:
    """Nats a character of held-out texts after each kind of condition."""
    some = [(group, text) for group in texts.held for text in texts.groups[group]]
    order = np.random.default_rng(0).permutation(len(some))[:CHECKED]
    chosen = [some[i] for i in order]
    # Only texts that are read whole, so that every condition is measured on the same characters.
    sizes = [
        len(ids) - lead
        for ids, lead in encode_pairs(tokenizer, [Pair("", text) for _, text in chosen], 1 << 20)
    ]
    chosen = [one for one, size in zip(chosen, sizes, strict=True) if size <= length]
    words = {
        whose: [condition(texts.source.keywords(group, text, whose)) for group, text in chosen]
        for whose in ("own", "group", "area")
    }
    words["wrong"] = words["own"][1:] + words["own"][:1]
    words["wrong_area"] = words["area"][1:] + words["area"][:1]
    words["none"] = [""] * len(chosen)
    return {
        whose: round(
            nats(
                model,
                tokenizer,
                [Pair(said, text) for said, (_, text) in zip(all_said, chosen, strict=True)],
                length,
                device,
            ),
            4,
        )
        for whose, all_said in words.items()
    }


def fit(
    name: str, corpus: Corpus, steps: int, seconds: float, device: str
) -> tuple[Any, dict[str, Any]]:
    """(model, report) of one kind."""
    plan, start = PLANS[name], time.monotonic()
    folder = PACKAGE_ASSETS / plan.init
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.to(device)
    texts = texts_of(corpus, plan.whole)
    before = measure(model, tokenizer, texts, plan.length, device)
    draws = [
        encode_pairs(tokenizer, texts.source.draw(seed, texts.read), plan.length)
        for seed in range(DRAWS)
    ]
    print(
        f"{name}: {len(draws[0])} texts, {sum(len(ids) for ids, _ in draws[0])} tokens a draw, "
        f"prepared in {time.monotonic() - start:.0f} s; held out, before: {before}",
        flush=True,
    )
    torch.manual_seed(0)  # of the dropout
    hooks, seen = drop(model, plan.dropout), [0, 0]
    taken = train(
        model, losses(name, model, draws, device, seen), steps, seconds, DECAY_FROM, SHARE
    )
    for hook in hooks:
        hook.remove()
    model = model.half().float()  # what is kept is what is measured
    after = measure(model, tokenizer, texts, plan.length, device)
    report = {
        "init": plan.init,
        "steps": taken,
        "texts": len(draws[0]),
        "tokens": seen[1],
        "parameters": model.num_parameters(),
        "held_out_nats_a_character": {"before": before, "after": after},
    }
    return model, report


def losses(
    name: str, model: Any, draws: Sequence[Rows], device: str, seen: list[int]
) -> Iterator[torch.Tensor]:
    """Mean losses of endless batches; counts steps and tokens in `seen`."""
    begun = time.monotonic()
    for ids, mask, leading in batches(draws, BATCH_TOKENS, device):
        loss = text_losses(model, ids, mask, leading, device).mean()
        seen[0], seen[1] = seen[0] + 1, seen[1] + int(mask.sum())
        if seen[0] % 100 == 1:
            spent = time.monotonic() - begun
            print(f"{name}: step {seen[0]}, {spent:.0f} s, loss {loss.item():.3f}", flush=True)
        yield loss


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("corpus", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--only", choices=PLANS)
    arguments.add_argument("--seconds", type=float, default=100.0, help="of each training")
    arguments.add_argument("--steps", type=int, default=10**6, help="at most, of each training")
    options = arguments.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    corpus = read(options.corpus)
    for name in [options.only] if options.only else PLANS:
        model, report = fit(name, corpus, options.steps, options.seconds, device)
        folder = options.out / name
        folder.mkdir(parents=True, exist_ok=True)
        model.half().save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(PACKAGE_ASSETS / PLANS[name].init / file, folder / file)
        about = {
            "device": torch.cuda.get_device_name() if device == "cuda" else device,
            "seconds": options.seconds,
            "corpus_sha256": file_digest(options.corpus),
            **report,
        }
        (folder / "training.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
        print(name, json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
