"""Settings and pairs of a preference training run, and the names in its folder.

Pairs become token ids in the tokens that the generator sees: the prompt is tokenised as
`HuggingFaceGenerator` does it, with the tokenizer's own special tokens or as a turn in a chat.
A response ends with `ending`, so that the model goes on learning where a text ends: after it comes
the next heading of the expand format, or the end-of-text token.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from privsyn_flower.common.progress import Progress
from privsyn_flower.text.prompts import HEADING

KEY = "models.generator"
Pair = Mapping[str, Any]  # a prompt, its responses' texts, and for GRPO an advantage
NEEDED = {"dpo": ("chosen", "rejected"), "sft": ("chosen",), "grpo": ("completion",)}
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Tuning:
    """The public numbers of a run; the names are those of `[popri]` and `[sft]`. section:
    which of the two, for errors. processes: that share the pairs of a step. chat: a prompt is a
    user's turn in the tokenizer's chat template. clip: of GRPO's probability ratios."""

    method: Literal["dpo", "sft", "grpo"]
    beta: float
    label_smoothing: float
    learning_rate: float
    schedule: Literal["cosine", "constant"]
    warmup_steps: int
    epochs: int
    batch_size: int
    micro_batch_size: int
    lora_rank: int
    lora_alpha: float
    ending: str | None
    section: str = "popri"
    processes: int = 1
    chat: bool = False
    clip: float = 0.2

    def __post_init__(self) -> None:
        if self.method not in NEEDED:
            names = ", ".join(map(repr, NEEDED))
            raise ValueError(f"{self.key('training')} = {self.method!r}: must be one of {names}")
        for name in ("beta", "learning_rate", "lora_alpha"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{self.key(name)} = {getattr(self, name)}: must be above 0")
        if self.batch_size % max(1, self.processes):
            raise ValueError(
                f"{self.key('batch_size')} = {self.batch_size}: must be a multiple of "
                f"models.training-processes = {self.processes}, which share it"
            )
        least = {"epochs": 1, "batch_size": 1, "micro_batch_size": 1, "lora_rank": 1}
        for name, lowest in {**least, "warmup_steps": 0}.items():
            if (value := getattr(self, name)) < lowest:
                raise ValueError(f"{self.key(name)} = {value}: must be at least {lowest}")
        if self.schedule not in {"cosine", "constant"}:
            raise ValueError(
                f"{self.key('schedule')} = {self.schedule!r}: must be 'cosine' or 'constant'"
            )
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(
                f"{self.key('label_smoothing')} = {self.label_smoothing}: must lie in [0, 0.5)"
            )

    def key(self, name: str) -> str:
        """The configuration's name of one of these."""
        return f"{self.section}.{name.replace('_', '-')}"

    @property
    def pairs_at_once(self) -> int:
        """The largest divisor of a process's share of batch_size, at most micro_batch_size."""
        share = self.batch_size // self.processes
        most = min(self.micro_batch_size, share)
        return max(size for size in range(1, most + 1) if share % size == 0)


@dataclass(frozen=True)
class Setting:
    """The base model, the machine it is trained on, and what is saved and shown meanwhile.

    As `PreferenceTrainer` takes them, but for the device and gradient checkpointing: resolved.
    launch_arguments: more of `accelerate launch`, for several processes.
    """

    model: str | os.PathLike[str]
    device: str
    dtype: str
    gradient_checkpointing: bool
    save_seconds: float
    progress: bool | Progress
    launch_arguments: tuple[str, ...] = ()


def epoch_folder(number: int) -> str:
    """The name of the adapter folder of epoch `number`, from 1."""
    return f"epoch-{number}"


logger = logging.getLogger("privsyn_flower")

EXPAND_ENDING = "\n" + HEADING  # what follows a sample in `expand_prompt`
Row = dict[str, list[int]]


def check_pairs(pairs: Sequence[Pair], method: str) -> None:
    """Raise ValueError for no pairs, a pair without its texts, or one that says nothing."""
    if not pairs:
        raise ValueError("no preference pairs: every prompt's responses were alike")
    for number, pair in enumerate(pairs):
        texts = ("prompt", *NEEDED[method])
        lacking = [name for name in texts if not str(pair.get(name) or "").strip()]
        if lacking:
            raise ValueError(f"pair {number}: {lacking[0]!r} is missing or empty")
        if method == "dpo" and pair["chosen"] == pair["rejected"]:
            raise ValueError(f"pair {number}: chosen and rejected are the same text; drop the pair")
        if method == "grpo" and not math.isfinite(pair.get("advantage", math.nan)):
            raise ValueError(f"pair {number}: 'advantage' must be a finite number")


def encode_pairs(
    pairs: Sequence[Pair],
    tokenizer: Any,
    *,
    context: int,
    ending: str | None,
    names: Sequence[str] = ("chosen", "rejected"),
    turn: tuple[list[int], list[int]] | None = None,
) -> list[Row]:
    """n pairs -> n rows of `prompt_ids` and, for each name, `NAME_ids`; at most `context` in all.

    ending: text after a response; None: the end-of-text token. turn: tokens around a prompt in a
    chat (`chat_turn`); None: no chat. What is too long loses the beginning of its prompt, as in the
    generator, and is counted in the log.
    """
    prompts = [pair["prompt"] for pair in pairs]
    encoded = tokenizer(prompts, add_special_tokens=turn is None)["input_ids"]
    rows = [{"prompt_ids": list(ids)} for ids in encoded]
    before, after = turn or ([], [])
    for name in names:
        texts = [pair[name] for pair in pairs]
        found = _completions(tokenizer, rows, prompts, texts, ending, alone=turn is not None)
        for row, ids in zip(rows, found, strict=True):
            row[f"{name}_ids"] = ids
    long = 0
    for row in rows:
        longest = max(len(row[f"{name}_ids"]) for name in names)
        room = max(1, context - longest - len(before) - len(after))
        long += len(row["prompt_ids"]) > room
        row["prompt_ids"] = [*before, *row["prompt_ids"][-room:], *after]
        if not row["prompt_ids"]:
            raise ValueError("a prompt has no tokens: a model needs one to continue from")
        for name in names:
            row[f"{name}_ids"] = row[f"{name}_ids"][: context - len(row["prompt_ids"])]
    if long:
        logger.warning(
            "%d of %d pairs exceed the model's %d tokens and lose the beginning of their prompt",
            long, len(rows), context,
        )  # fmt: skip
    return rows


def _completions(
    tokenizer: Any,
    rows: list[Row],
    prompts: list[str],
    texts: list[str],
    ending: str | None,
    *,
    alone: bool,
) -> list[list[int]]:
    """Ids of the responses after their prompts' ids.

    Prompt and response are tokenised in one piece, as a reader would. Where a token would reach
    across the border, and in a chat (alone), the response is tokenised alone: the generator cannot
    write such a token.
    """
    wholes = [text + (ending or "") for text in texts]
    joint = tokenizer([p + w for p, w in zip(prompts, wholes, strict=True)])["input_ids"]
    apart = tokenizer(wholes, add_special_tokens=False)["input_ids"]
    result = []
    for row, both, own in zip(rows, joint, apart, strict=True):
        prefix = row["prompt_ids"]
        joined = not alone and both[: len(prefix)] == prefix
        ids = list(both[len(prefix) :]) if joined else list(own)
        if ending is None:
            ids.append(_end_of_text(tokenizer))
        result.append(ids)
    return result


def _end_of_text(tokenizer: Any) -> int:
    if tokenizer.eos_token_id is None:
        raise ValueError(
            "ending = None: models.generator's tokenizer has no end-of-text token; give a text"
        )
    return int(tokenizer.eos_token_id)


class Silent:
    """What TRL's trainers would do beside training: report their use, write model cards."""

    def _send_telemetry(self) -> None:
        """No network."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """No README in checkpoints."""
