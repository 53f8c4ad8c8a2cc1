"""Training of the embedded tiny models: a BPE tokenizer, a causal and a masked language model.

The result is an ordinary Hugging Face folder (fp16 safetensors) that AutoTokenizer and
AutoModelFor... read. The same texts, recipe, seed and number of threads give the same bits.

Hidden matrices are trained by Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon),
which replaces a matrix's momentum by the nearest semi-orthogonal matrix, found by five
Newton-Schulz steps; everything else by AdamW. Here that needs about half the tokens of AdamW alone.
torch.optim.Muon runs those steps in bfloat16, which a CPU without AVX-512 does a hundred times
slower than float32; so these are float32.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privsyn_flower.common.progress import Progress, silent, stop
from privsyn_flower.common.randomness import seeded
from privsyn_flower.text.conditions import encode_pairs, public_pairs
from privsyn_flower.text.models.batches import causal_loss, encode, pad_rows, token_batches
from privsyn_flower.text.models.devices import one_worker
from privsyn_flower.text.prompts import HEADING, expand_prompt
from privsyn_flower.text.tiny.assets import TEXT_TOKENS, Groups, Recipe

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95
DECAY = 0.05
GRADIENT_NORM = 1.0  # of all gradients together, at most


class TinyOptimizer:
    """Muon and AdamW behind one `step(factor)`; learning rates are multiplied by `factor`."""

    def __init__(self, model: torch.nn.Module, *, learning_rate: float, muon_rate: float) -> None:
        hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and ".layer" in f".{n}"]
        known = {id(p) for p in hidden}
        rest = [p for p in model.parameters() if id(p) not in known]
        self._hidden = hidden
        self._momentum = [torch.zeros_like(p) for p in hidden]
        self._adam = torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self._rate, self._muon_rate = learning_rate, muon_rate

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One update from the gradients, which are cleared."""
        self._adam.param_groups[0]["lr"] = self._rate * factor
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        rate = self._muon_rate * factor
        for parameter, momentum in zip(self._hidden, self._momentum, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonalise(gradient.lerp(momentum, MOMENTUM))
            scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            parameter.mul_(1 - rate * DECAY).add_(update, alpha=-rate * scale)
            parameter.grad = None


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """(a, b) -> about U V^T of its singular value decomposition, by five Newton-Schulz steps."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: torch.Tensor = x.T if tall else x
    return result


def linear_schedule(done: float, warm_up: float, decay_from: float) -> float:
    """Factor of the learning rate at a share `done` in [0, 1] of the training.

    Rises linearly to 1 at `warm_up`, stays, and falls linearly from `decay_from` to 0 at 1.
    """
    rise = 1.0 if warm_up <= 0 else min(1.0, done / warm_up)
    return rise * min(1.0, max(0.0, (1.0 - done) / max(1e-9, 1.0 - decay_from)))


logger = logging.getLogger("privsyn_flower")

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BOS, PAD, EOS, _, MASK = range(len(SPECIAL))
RUN = 4  # texts in one training example of the expand format
NEIGHBOURHOOD = 16  # neighbouring groups that half of those examples are drawn from
TOKENIZER_TEXTS = 40_000  # texts the vocabulary is learnt from

Rows = list[tuple[list[int], int]]  # ids, and how many of the first carry no loss
Batch = tuple[torch.Tensor, torch.Tensor, list[int]]  # ids, mask (n, l), and how many each
Loss = Callable[[torch.Tensor, torch.Tensor, list[int]], torch.Tensor]


def train_model(
    groups: Groups,
    recipe: Recipe,
    folder: Path,
    *,
    seed: int = 0,
    init: Path | None = None,
    budget_seconds: float = float("inf"),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Train one model on public `groups` of texts and write it into `folder`, which must exist.

    init: folder of a tiny causal model whose tokenizer (all kinds) and weights (generator,
    conditional) are taken over. On a CPU one worker trains (`one_worker`). A training that meets
    `budget_seconds` ends early with its learning rate fallen to zero like a full one. Returns
    steps, tokens, seconds and the final mean loss in nats. Raises ValueError when there is too
    little text.
    """
    texts = list(chain.from_iterable(groups))
    if sum(map(len, texts)) < 1000:
        raise ValueError(f"{len(texts)} public texts are too few to train {recipe.kind!r}")
    tokenizer = _tokenizer(texts, recipe, init, seed)
    with torch.random.fork_rng(devices=[]):  # the library initialises from the global generator
        torch.manual_seed(seed)
        model = _model(recipe, init)
    rng = seeded(seed, recipe.kind, "training")
    # No more than the training will read: tokenising the rest would be waste.
    shortest = {"conditional": 40, "generator": 80}.get(recipe.kind, 20)  # tokens of an example
    most = 2 + recipe.steps * recipe.batch_tokens // shortest
    rows = example_rows(groups, recipe.kind, tokenizer, most, recipe.context, rng)
    with one_worker():
        loss = _loss(model, recipe, seed)
        report = _fit(model, rows, loss, recipe, rng, budget_seconds, progress)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    about = {"recipe": asdict(recipe), "seed": seed, "training": report}
    (folder / "training.json").write_text(json.dumps(about, indent=1), "utf-8")
    return report


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """A byte-level BPE with the headings of the expand format among its texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    headings = [expand_prompt([HEADING] * 3)] * max(1, len(texts) // 50)
    bpe.train_from_iterator([*texts, *headings], trainer)
    return bpe


def _tokenizer(texts: Sequence[str], recipe: Recipe, init: Path | None, seed: int) -> Any:
    from tokenizers import Tokenizer

    if init is not None:
        bpe = Tokenizer.from_file(str(init / "tokenizer.json"))
    else:
        order = seeded(seed, "tokenizer").permutation(len(texts))[:TOKENIZER_TEXTS]
        bpe = train_tokenizer([texts[i] for i in order], recipe.vocabulary)
    return fast_tokenizer(bpe, recipe.kind, recipe.context)


def fast_tokenizer(bpe: Any, kind: str, context: int) -> Any:
    """A Hugging Face tokenizer around `bpe`, with the special tokens of this kind of model."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    frame = "<s> $A </s>" if kind == "infiller" else "<s> $A"
    bpe.post_processor = processors.TemplateProcessing(
        single=frame, special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    names = dict(zip(("bos", "pad", "eos", "unk", "mask"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=context,
        **{f"{name}_token": token for name, token in names.items()},
    )


def _model(recipe: Recipe, init: Path | None) -> Any:
    import transformers

    if recipe.kind in ("generator", "conditional") and init is not None:
        return transformers.AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32)
    common = {
        "vocab_size": recipe.vocabulary,
        "hidden_size": recipe.width,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "intermediate_size": 16 * round(recipe.width * 8 / 48),
        "bos_token_id": BOS,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "initializer_range": 0.03,
        "tie_word_embeddings": True,
    }
    if recipe.kind == "infiller":
        return _masked_model(recipe, init, common)
    config = transformers.LlamaConfig(
        **common, num_key_value_heads=recipe.heads, max_position_embeddings=recipe.context
    )
    return transformers.LlamaForCausalLM(config)


def _masked_model(recipe: Recipe, init: Path | None, common: dict[str, Any]) -> Any:
    """ModernBERT: rotary positions and normalisation before each layer. A RoBERTa of this size
    is still guessing word frequencies when this one has learnt to read (450 steps)."""
    import transformers

    config = transformers.ModernBertConfig(
        **{**common, "intermediate_size": 16 * round(recipe.width * 6 / 48)},
        cls_token_id=BOS,
        sep_token_id=EOS,
        max_position_embeddings=recipe.context,
        global_attn_every_n_layers=1,
    )
    model = transformers.ModernBertForMaskedLM(config)
    if init is not None:
        causal = transformers.AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32)
        known = causal.get_input_embeddings().weight
        model.get_input_embeddings().weight.data.copy_(known)
    return model


def example_rows(
    groups: Groups, kind: str, tokenizer: Any, most: int, longest: int, rng: np.random.Generator
) -> Rows:
    """At most `most` examples of a kind of model, in an order that `rng` drew. longest: tokens of
    the model's context."""
    if kind == "conditional":
        pairs = public_pairs(groups, seed=int(rng.integers(1 << 31)))
        chosen = [pairs[i] for i in rng.permutation(len(pairs))[:most]]
        return encode_pairs(tokenizer, chosen, TEXT_TOKENS)
    if kind == "generator":
        texts, length = [expand_prompt(run) for run in expand_runs(groups, rng)], longest
    else:
        texts, length = list(chain.from_iterable(groups)), min(TEXT_TOKENS, longest)
    picked = [texts[i] for i in rng.permutation(len(texts))[:most]]
    return [(row, 1) for row in encode(tokenizer, picked, length) if len(row) > 2]


def expand_runs(groups: Groups, rng: np.random.Generator) -> list[list[str]]:
    """Examples of "more text of the same kind", RUN texts each.

    Half are consecutive texts of one group, half random texts of neighbouring groups: in use,
    the seeds of one prompt share a domain but not a module.
    """
    runs: list[list[str]] = []
    for group in groups:
        runs += [list(group[i : i + RUN]) for i in range(0, len(group), RUN)]
    for start in range(0, len(groups), NEIGHBOURHOOD):
        near = list(chain.from_iterable(groups[start : start + NEIGHBOURHOOD]))
        order = rng.permutation(len(near))
        runs += [[near[k] for k in order[i : i + RUN]] for i in range(0, len(near), RUN)]
    return runs


def _loss(model: Any, recipe: Recipe, seed: int) -> Loss:
    if recipe.kind != "infiller":
        return lambda ids, mask, leading: causal_loss(model, ids, mask, leading)
    generator = torch.Generator().manual_seed(seed)

    def masked_loss(ids: torch.Tensor, mask: torch.Tensor, _: list[int]) -> torch.Tensor:
        hidden = hide_tokens(ids >= len(SPECIAL), recipe.mask_share, generator)
        seen = ids.masked_fill(hidden, MASK)
        states = model.model(input_ids=seen, attention_mask=mask).last_hidden_state
        logits = model.decoder(model.head(states[hidden]))
        return torch.nn.functional.cross_entropy(logits, ids[hidden])

    return masked_loss


def hide_tokens(ordinary: torch.Tensor, share: float, generator: torch.Generator) -> torch.Tensor:
    """Which of the ordinary tokens (n, l) a masked model is to predict; of none, the first one."""
    hidden = torch.rand(ordinary.shape, generator=generator) < share
    hidden &= ordinary
    if not hidden.any():
        hidden[0, 0] = True
    return hidden


def _endless(rows: Rows, budget: int, rng: np.random.Generator) -> Iterator[Batch]:
    while True:
        yield from one_pass(rows, budget, PAD, rng)


def one_pass(rows: Rows, budget: int, pad: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Batches of at most `budget` padded tokens, in an order that `rng` drew; every row once."""
    for batch in token_batches([len(ids) for ids, _ in rows], budget, rng):
        ids, mask = pad_rows([rows[i][0] for i in batch], pad)
        yield ids, mask, [rows[i][1] for i in batch]


def _fit(
    model: Any,
    rows: Rows,
    loss_of: Loss,
    recipe: Recipe,
    rng: np.random.Generator,
    budget_seconds: float,
    progress: Progress,
) -> dict[str, Any]:
    """The training loop; the learning rate follows steps or seconds, whichever is further."""
    model.train()
    optimizer = TinyOptimizer(model, learning_rate=recipe.learning_rate, muon_rate=recipe.muon_rate)
    batches = _endless(rows, recipe.batch_tokens, rng)
    start, tokens, losses = time.monotonic(), 0, []
    stage = f"training the tiny {recipe.kind}"
    for step in range(recipe.steps):
        seconds = time.monotonic() - start
        done = max(step / recipe.steps, seconds / budget_seconds)
        if done >= 1:
            logger.warning(
                "%s: time budget of %g s (models.train-seconds) ended the training at step %d of "
                "%d; the model depends on this machine's speed",
                recipe.kind, budget_seconds, step, recipe.steps,
            )  # fmt: skip
            break
        ids, mask, leading = next(batches)
        loss = loss_of(ids, mask, leading)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
        optimizer.step(linear_schedule(done + 1 / recipe.steps, recipe.warm_up, recipe.decay_from))
        tokens += int(mask.sum())
        losses.append(loss.item())
        if step % 20 == 19 and step + 1 < recipe.steps:
            note = f"loss {np.mean(losses[-50:]):.3f}" if step % 100 == 99 else ""
            progress(stage, step + 1, recipe.steps, note)
    stop(progress, stage, len(losses), recipe.steps)
    return {
        "steps": len(losses),
        "tokens": tokens,
        "seconds": round(time.monotonic() - start, 1),
        "loss": round(float(np.mean(losses[-50:])), 4),
    }
