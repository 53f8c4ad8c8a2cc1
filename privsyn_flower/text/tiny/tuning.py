"""A given model trained on with a user's own public text, while that helps: a shipped tiny one, or
a large one that is to write from conditions.

A thousand texts are far too few to train a model from nothing: one that is trained on them alone
knows them by heart and does worse on other text than guessing. So own data starts from the given
model. Architecture and tokenizer are that folder's, whatever they are.

Early stopping (Prechelt 1998, "Early stopping - but when?"): a part of the public text is held
out; the state with the least loss on it is kept, the given one among them. So what comes out is
never worse on the held-out part than what went in.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privsyn_flower.common.progress import Progress, silent, stop
from privsyn_flower.common.randomness import seeded
from privsyn_flower.text.models.batches import IGNORED, causal_labels, causal_loss
from privsyn_flower.text.models.devices import one_worker, resolve_device
from privsyn_flower.text.models.parameters import longest_sequence
from privsyn_flower.text.models.pretrained import load_model, load_tokenizer
from privsyn_flower.text.tiny.assets import Groups, TuningRecipe
from privsyn_flower.text.tiny.training import (
    GRADIENT_NORM,
    Batch,
    Rows,
    example_rows,
    hide_tokens,
    one_pass,
)

logger = logging.getLogger("privsyn_flower")

State = dict[str, torch.Tensor]

AUTO_CLASS = {"infiller": "AutoModelForMaskedLM"}  # others are causal
WARM_UP = 5  # steps
FEWEST_TEXTS = 8  # with fewer there is nothing to hold out


def tune_model(
    groups: Groups,
    shipped: Path,
    folder: Path,
    recipe: TuningRecipe,
    *,
    seed: int = 0,
    budget_seconds: float = math.inf,
    device: str = "cpu",
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write into `folder`, which must exist, the model of `shipped` tuned on public `groups`.

    budget_seconds: no step begins after them. Returns steps, seconds, held-out texts and the
    held-out loss before and after, in nats a token. Where tuning does not lower it (or the text
    is too little to tell), the files are those of `shipped`. Raises ModelUnavailableError.
    """
    start = time.monotonic()
    rng = seeded(seed, recipe.kind, "tuning")
    train, held_out = split_groups(groups, recipe, rng)
    losses = {"loss_before": None, "loss_after": None}
    kept: dict[str, Any] = {"steps": 0, **losses, "held_out_texts": sum(map(len, held_out))}
    tuning = _Tuning(shipped, recipe, seed, resolve_device(device))
    rows, checked = tuning.rows(train, rng), tuning.rows(held_out, rng)
    best = None
    if rows and checked:
        with one_worker():
            best = tuning.fit(rows, checked, rng, start + budget_seconds, progress)
        kept |= tuning.report
    _write(folder, shipped, tuning.model if best is not None else None, best)
    kept["seconds"] = round(time.monotonic() - start, 1)
    about = {"tuned": asdict(recipe), "seed": seed, "tuning": kept}
    (folder / "training.json").write_text(json.dumps(about, indent=1), "utf-8")
    logger.info("the given %s on this run's public text: %s", recipe.kind, kept)
    return kept


def split_groups(
    groups: Groups, recipe: TuningRecipe, rng: np.random.Generator
) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    """Groups to train on and groups held out, each in their order; none held out: too few texts.

    A single group is cut in two.
    """
    texts = sum(map(len, groups))
    wanted = min(recipe.most_held_out, max(1, round(recipe.held_out * texts)))
    if texts < FEWEST_TEXTS:
        return list(groups), []
    if len(groups) == 1:
        return [groups[0][wanted:]], [groups[0][:wanted]]
    chosen: set[int] = set()
    for place in rng.permutation(len(groups))[:-1].tolist():
        if wanted <= 0:
            break
        chosen.add(place)
        wanted -= len(groups[place])
    train = [group for i, group in enumerate(groups) if i not in chosen]
    return train, [groups[i] for i in sorted(chosen)]


class _Tuning:
    """One model, its tokenizer and its loss."""

    def __init__(self, shipped: Path, recipe: TuningRecipe, seed: int, device: str) -> None:
        key, kind = f"models.{recipe.kind}", AUTO_CLASS.get(recipe.kind, "AutoModelForCausalLM")
        self.recipe, self.seed, self.device = recipe, seed, device
        self.tokenizer = load_tokenizer(shipped, key)
        self.model = load_model(kind, shipped, key, device, "float32")
        self.longest = longest_sequence(shipped)
        self.special = torch.tensor(sorted(self.tokenizer.all_special_ids))
        self.report: dict[str, Any] = {}

    def rows(self, groups: Groups, rng: np.random.Generator) -> Rows:
        """The examples, as many as the steps can read."""
        most = 2 + self.recipe.steps * self.recipe.batch_tokens // 20
        return example_rows(groups, self.recipe.kind, self.tokenizer, most, self.longest, rng)

    def batches(self, rows: Rows, rng: np.random.Generator) -> Iterator[Batch]:
        """One pass over the rows."""
        padding = self.tokenizer.pad_token_id or 0  # masked; a model may have none
        return one_pass(rows, self.recipe.batch_tokens, padding, rng)

    def loss(self, batch: Batch, noise: torch.Generator) -> tuple[torch.Tensor, int]:
        """Mean loss of what is predicted, and how many tokens that is. noise: of the masks."""
        ids, mask, leading = batch
        if self.recipe.kind != "infiller":
            loss = causal_loss(self.model, ids.to(self.device), mask.to(self.device), leading)
            return loss, int((causal_labels(ids, mask, leading) != IGNORED).sum())
        hidden = hide_tokens(~torch.isin(ids, self.special), self.recipe.mask_share, noise)
        seen = ids.masked_fill(hidden, self.tokenizer.mask_token_id).to(self.device)
        logits = self.model(input_ids=seen, attention_mask=mask.to(self.device)).logits
        targets = ids[hidden].to(self.device)
        loss = torch.nn.functional.cross_entropy(logits[hidden.to(self.device)].float(), targets)
        return loss, len(targets)

    def measure(self, rows: Rows) -> float:
        """Loss in nats a token over rows; the same masks every time."""
        total, count = 0.0, 0
        noise = torch.Generator().manual_seed(self.seed)
        self.model.eval()
        with torch.inference_mode():
            for batch in self.batches(rows, seeded(self.seed, self.recipe.kind, "held out")):
                loss, tokens = self.loss(batch, noise)
                total, count = total + float(loss) * tokens, count + tokens
        return total / max(count, 1)

    def fit(
        self,
        rows: Rows,
        held_out: Rows,
        rng: np.random.Generator,
        deadline: float,
        progress: Progress,
    ) -> State | None:
        """Train; the best state, rounded as it is stored, or None when none beats the first.

        Fills `report`.
        """
        recipe, stage = self.recipe, f"tuning the {self.recipe.kind} model on public text"
        seconds = deadline - time.monotonic()
        span = f", at most {seconds:.0f} s" if math.isfinite(seconds) else ""
        progress(stage, 0, recipe.steps, f"until its held-out loss stops falling{span}")
        first = self.measure(held_out)
        stopping = _Stopping(self.model, recipe.gain, first)
        optimizer = self._optimizer()
        noise = torch.Generator().manual_seed(self.seed + 1)
        step, waiting, every = 0, list[Batch](), 0
        while step < recipe.steps and stopping.failures < recipe.failures:
            if time.monotonic() >= deadline:
                break
            if not waiting:
                waiting = list(self.batches(rows, rng))
                every = every or min(recipe.between, math.ceil(len(waiting) / recipe.checks))
            share = stopping.factor * min(1.0, (step + 1) / WARM_UP)
            self._step(optimizer, waiting.pop(), noise, share)
            step += 1
            note = ""
            if step % every == 0 or step == recipe.steps or time.monotonic() >= deadline:
                found = self.measure(held_out)
                stopping.look(found)
                note = f"held-out loss {found:.3f}, first {first:.3f}"
            progress(stage, step, recipe.steps, note)
        self.model.load_state_dict(stopping.best)
        after = self.measure(held_out)  # of the rounded weights, which are what is kept
        kept = min(after, first)
        self.report = {"steps": step, "loss_before": round(first, 4), "loss_after": round(kept, 4)}
        change = f"held-out loss {first:.3f} -> {kept:.3f} nats a token"
        change += f" after {step} steps" if step == recipe.steps else ""
        stop(progress, stage, step, recipe.steps, change)
        return stopping.best if after < first else None

    def _optimizer(self) -> torch.optim.Optimizer:
        self.model.requires_grad_(True)
        rate = self.recipe.learning_rate
        return torch.optim.AdamW(
            self.model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01
        )

    def _step(
        self, optimizer: torch.optim.Optimizer, batch: Batch, noise: torch.Generator, share: float
    ) -> None:
        """One step at a share of the learning rate."""
        self.model.train()
        optimizer.param_groups[0]["lr"] = self.recipe.learning_rate * share
        self.loss(batch, noise)[0].backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


class _Stopping:
    """Early stopping. best: the state with the least held-out loss, rounded as it is stored.
    failures: looks in a row that gained too little. factor: of the learning rate."""

    def __init__(self, model: Any, gain: float, loss: float) -> None:
        self.model, self.gain, self.least = model, gain, loss
        self.best, self.failures, self.factor = _rounded(model), 0, 1.0

    def look(self, loss: float) -> None:
        """The present state's held-out loss."""
        enough = loss < self.least - self.gain
        if loss < self.least:
            self.best, self.least = _rounded(self.model), loss
        if enough:
            self.failures = 0
            return
        self.model.load_state_dict(self.best)
        self.failures, self.factor = self.failures + 1, self.factor / 2


def _rounded(model: Any) -> State:
    """A copy of the weights in half precision, as shipped models are."""
    return {name: value.detach().half() for name, value in model.state_dict().items()}


def _write(folder: Path, shipped: Path, model: Any | None, state: State | None) -> None:
    """The shipped folder with these weights; model None: with its own."""
    for path in sorted(shipped.iterdir()):
        if path.is_file() and (model is None or path.suffix != ".safetensors"):
            shutil.copyfile(path, folder / path.name)
    if model is not None:
        model.load_state_dict(state)
        model.half().save_pretrained(folder)
