"""The small shipped models, trained on the file that scripts/make_corpus.py writes; needs a GPU.

    python scripts/train_small.py CORPUS.jsonl.gz OUT [--only generator] [--seconds 380]

Generator: a Llama of 6.8M parameters reads modules in sequences of 512 tokens, then the format of
the expand prompt. Infiller: a ModernBERT of 6.1M. Both have a byte-level BPE of 8,192 tokens of
their own. The learning rate follows the share of the time, or of the steps where those end first.
OUT/small-NAME is an ordinary Hugging Face folder with training.json, which
`scripts/make_assets.py --take OUT --corpus CORPUS.jsonl.gz` takes up. Both at once on one H100 took
eight minutes.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer

from privsyn_flower.common.files import file_digest
from privsyn_flower.common.randomness import seeded
from privsyn_flower.data.dedup import keep_first
from privsyn_flower.text.models.batches import pad_rows, token_batches
from privsyn_flower.text.prompts import expand_prompt
from privsyn_flower.text.tiny.training import (
    BOS,
    EOS,
    MASK,
    PAD,
    SPECIAL,
    expand_runs,
    fast_tokenizer,
    linear_schedule,
    train_tokenizer,
)

VOCABULARY, WIDTH, LAYERS, HEADS, CONTEXT = 8192, 256, 6, 4, 512
BATCH_TOKENS = 65_536
LEARNING_RATE, MUON_RATE, DECAY = 3e-3, 0.02, 0.1
DROPOUT, MASK_SHARE = 0.1, 0.25
# Of the infiller while it is trained; its configuration says 0, for who tunes it.
DROPOUTS = {"attention_dropout": 0.05, "mlp_dropout": 0.05, "embedding_dropout": 0.025}
TOKENIZER_PIECES = 80_000
HELD_OUT = (40, 7)  # every 40th group, from the 7th on, is held out of all training
PASSES = 3  # of expand runs over the groups, each in another order
EXPANDED = 1.5  # passes over those
Rows = list[list[int]]


@dataclass(frozen=True)
class Corpus:
    """pieces: of each module; packages: its package. groups: a run's public samples; held: those
    that are held out, and examples: prompts of the expand format with what follows them, of these.
    validation: public texts held out."""

    pieces: list[list[str]]
    packages: list[str]
    groups: list[list[str]]
    held: list[list[str]]
    examples: list[tuple[str, str]]
    validation: list[str]


def read(path: Path) -> Corpus:
    """The corpus without near duplicates of what is held out. Raises SystemExit when it has no
    group to hold out."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    groups = [row["group"] for row in rows if "group" in row]
    every, first = HELD_OUT
    held = [g for i, g in enumerate(groups) if i % every == first and len(g) >= 4]
    if not held:
        raise SystemExit(
            f"{path}: none of {len(groups)} groups of public text can be held out, which takes one "
            f"of 4 texts or more at place {first}, {first + every}, ...: raise data.public-pool "
            "and make the corpus again"
        )
    kept_groups = [g for i, g in enumerate(groups) if i % every != first or len(g) < 4]
    modules = [row["texts"] for row in rows if "module" in row]
    names = [row["module"].partition(":")[0] for row in rows if "module" in row]
    flat = [text for texts in modules for text in texts]
    kept = set(keep_first([[text for group in held for text in group], flat])[1])
    places = iter(range(len(flat)))
    pieces = [[text for text in texts if next(places) in kept] for texts in modules]
    examples = [
        (expand_prompt(list(group[i : i + 3])), group[i + 3])
        for group in held
        for i in range(0, len(group) - 3, 4)
    ]
    some = [i for i, texts in enumerate(pieces) if texts]
    return Corpus(
        [pieces[i] for i in some],
        [names[i] for i in some],
        kept_groups,
        held,
        examples[:600],
        rows[1]["validation"],
    )


def bpe_of(corpus: Corpus) -> Tokenizer:
    flat = [text for texts in corpus.pieces for text in texts]
    order = np.random.default_rng(0).permutation(len(flat))[:TOKENIZER_PIECES]
    bpe: Tokenizer = train_tokenizer([flat[i] for i in order], VOCABULARY)
    return bpe


class Optimizers:
    """Muon for the hidden matrices, AdamW for the rest, their rates multiplied by a factor."""

    def __init__(self, model: torch.nn.Module, share: float = 1.0) -> None:
        hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and ".layer" in f".{n}"]
        known = {id(p) for p in hidden}
        rest = [p for p in model.parameters() if id(p) not in known]
        adam = torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        muon = torch.optim.Muon(hidden, lr=0.0, momentum=0.95, weight_decay=DECAY)
        self._all = [(adam, share * LEARNING_RATE), (muon, share * MUON_RATE)]

    def step(self, factor: float) -> None:
        for optimizer, rate in self._all:
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def train(
    model: Any,
    losses: Iterator[torch.Tensor],
    steps: int,
    seconds: float,
    decay_from: float,
    share: float = 1.0,
) -> int:
    """Steps taken until they or the seconds are used up."""
    model.train()
    optimizers, start, step = Optimizers(model, share), time.monotonic(), 0
    for step, loss in enumerate(losses, start=1):
        done = max(step / steps, (time.monotonic() - start) / seconds)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(linear_schedule(min(done, 1.0), 0.03, decay_from))
        if done >= 1:
            break
    model.eval()
    return step


def packed(rows: Rows, seed: int, device: str) -> Iterator[torch.Tensor]:
    """Endless batches (b, CONTEXT) of the rows one after another, cut, in random orders. Raises
    SystemExit when they are shorter than one cut."""
    order = np.random.default_rng(seed).permutation(len(rows))
    flat = np.concatenate([np.asarray(rows[i], dtype=np.int32) for i in order])
    if len(flat) < CONTEXT:
        raise SystemExit(f"the corpus has {len(flat)} tokens to read; a sequence is {CONTEXT}")
    flat = flat[: len(flat) // CONTEXT * CONTEXT]
    data = torch.from_numpy(flat.reshape(-1, CONTEXT)).to(device)
    generator, size = torch.Generator().manual_seed(seed), BATCH_TOKENS // CONTEXT
    waiting = torch.empty(0, dtype=torch.long)
    while True:
        while len(waiting) < size:
            waiting = torch.cat([waiting, torch.randperm(len(data), generator=generator)])
        yield data[waiting[:size].to(device)].long()
        waiting = waiting[size:]


def causal(model: Any, ids: torch.Tensor, device: str) -> torch.Tensor:
    """Mean cross-entropy of full rows (b, CONTEXT)."""
    with torch.autocast(device, torch.bfloat16):
        states = model.model(input_ids=ids).last_hidden_state
        logits = model.lm_head(states[:, :-1])
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), ids[:, 1:].reshape(-1)
    )


def drop(model: Any, share: float) -> list[Any]:
    """Dropout behind every attention and feed-forward part; returns the hooks."""

    def hook(module: Any, _: Any, output: Any) -> Any:
        if not module.training:
            return output
        first = output[0] if isinstance(output, tuple) else output
        dropped = torch.nn.functional.dropout(first, share)
        return (dropped, *output[1:]) if isinstance(output, tuple) else dropped

    parts = [part for layer in model.model.layers for part in (layer.self_attn, layer.mlp)]
    return [part.register_forward_hook(hook) for part in parts]


@torch.inference_mode()
def nats(model: Any, tokenizer: Any, texts: Sequence[tuple[str, str]], device: str) -> float:
    """Nats a character of what follows each prompt; a measure that tokenizers do not move."""
    total = 0.0
    for prompt, text in texts:
        ids = tokenizer(prompt + text)["input_ids"][:CONTEXT]
        shown = len(tokenizer(prompt)["input_ids"]) if prompt else 1
        row = torch.tensor([ids], device=device)
        scores = model(input_ids=row).logits[0, shown - 1 : -1].float()
        total += float(torch.nn.functional.cross_entropy(scores, row[0, shown:], reduction="sum"))
    return round(total / sum(len(text) for _, text in texts), 4)


def generator(corpus: Corpus, bpe: Tokenizer, seconds: float, device: str) -> tuple[Any, Any, Any]:
    """(model, tokenizer, report)."""
    tokenizer = fast_tokenizer(bpe, "generator", CONTEXT)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**_common(), intermediate_size=688, num_key_value_heads=HEADS)
    ).to(device)
    hooks = drop(model, DROPOUT)
    modules = tokenizer(["\n".join(texts) for texts in corpus.pieces])["input_ids"]
    runs = [
        expand_prompt(run)
        for order in range(PASSES)
        for run in expand_runs(corpus.groups, np.random.default_rng(order))
    ]
    reading = (causal(model, ids, device) for ids in packed(modules, 0, device))
    read_steps = train(model, reading, 10**6, 0.82 * seconds, 0.4)
    rows = tokenizer(runs)["input_ids"] + modules[::6]
    steps = max(1, int(EXPANDED * sum(map(len, rows)) / BATCH_TOKENS))
    writing = (causal(model, ids, device) for ids in packed(rows, 1, device))
    written = train(model, writing, steps, 0.18 * seconds, 0.1, share=0.5)
    for hook in hooks:
        hook.remove()
    report = {
        "steps": [read_steps, written],
        "held_out_nats_a_character": {
            "texts": nats(model, tokenizer, [("", text) for text in corpus.validation], device),
            "expand": nats(model, tokenizer, corpus.examples, device),
        },
    }
    return model, tokenizer, report


def infiller(corpus: Corpus, bpe: Tokenizer, seconds: float, device: str) -> tuple[Any, Any, Any]:
    """(model, tokenizer, report)."""
    tokenizer = fast_tokenizer(bpe, "infiller", CONTEXT)
    torch.manual_seed(0)
    model = transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(
            **_common(),
            intermediate_size=512,
            cls_token_id=BOS,
            sep_token_id=EOS,
            global_attn_every_n_layers=1,
            **DROPOUTS,
        )
    ).to(device)
    texts = [text for some in (*corpus.pieces, *corpus.groups) for text in some]
    rows = [row[:200] for row in tokenizer(texts)["input_ids"]]
    cross_entropy = torch.nn.functional.cross_entropy
    losses = (cross_entropy(*guessed) for guessed in _masked(model, rows, device))
    steps = train(model, losses, 10**6, seconds, 0.4)
    model.config.update(dict.fromkeys(DROPOUTS, 0.0))
    held = tokenizer(corpus.validation)["input_ids"]
    nats, right = [], []
    with torch.inference_mode():
        for logits, labels in itertools.islice(_masked(model, held, device), 8):
            nats.append(float(cross_entropy(logits, labels)))
            right.append(float((logits.argmax(-1) == labels).float().mean()))
    report = {
        "steps": steps,
        "held_out_masked_nats": round(float(np.mean(nats)), 4),
        "held_out_masked_accuracy": round(float(np.mean(right)), 4),
    }
    return model, tokenizer, report


def _masked(model: Any, rows: Rows, device: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(logits (h, vocabulary), tokens (h,)) of the h tokens that are hidden in each of endless
    batches, MASK_SHARE of them."""
    lengths, rng = [len(row) for row in rows], seeded(0, "infiller", "training")
    generator = torch.Generator(device=device).manual_seed(0)
    while True:
        for batch in token_batches(lengths, BATCH_TOKENS, rng):
            ids, mask = (part.to(device) for part in pad_rows([rows[i] for i in batch], PAD))
            hidden = torch.rand(ids.shape, generator=generator, device=device) < MASK_SHARE
            hidden &= ids >= len(SPECIAL)
            with torch.autocast(device, torch.bfloat16):
                seen = ids.masked_fill(hidden, MASK)
                states = model.model(input_ids=seen, attention_mask=mask).last_hidden_state
                logits = model.decoder(model.head(states[hidden]))
            yield logits.float(), ids[hidden]


def _common() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": BOS,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "initializer_range": 0.03,
        "tie_word_embeddings": True,
    }


KINDS: dict[str, Callable[[Corpus, Tokenizer, float, str], tuple[Any, Any, Any]]] = {
    "generator": generator,
    "infiller": infiller,
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("corpus", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--only", choices=KINDS)
    arguments.add_argument("--seconds", type=float, default=380.0)
    options = arguments.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = torch.cuda.get_device_name() if device == "cuda" else device
    corpus = read(options.corpus)
    bpe = bpe_of(corpus)
    for name in [options.only] if options.only else KINDS:
        model, tokenizer, report = KINDS[name](corpus, bpe, options.seconds, device)
        folder = options.out / f"small-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        model.half().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        about = {
            "device": machine,
            "seconds": options.seconds,
            "parameters": model.num_parameters(),
            "corpus_sha256": file_digest(options.corpus),
            **report,
        }
        (folder / "training.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
        print(name, report, flush=True)


if __name__ == "__main__":
    main()
