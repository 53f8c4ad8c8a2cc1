"""Preference pairs -> token ids, in the tokens that the generator sees.

The prompt is tokenised as `HuggingFaceGenerator` does it: no chat template, the tokenizer's own
special tokens. A response ends with `ending`, so that the model goes on learning where a text
ends: after it comes the next heading of the expand format, or the end-of-text token.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from privsyn_flower.text.prompts import HEADING

logger = logging.getLogger("privsyn_flower")

EXPAND_ENDING = "\n" + HEADING  # what follows a sample in `expand_prompt`
Row = dict[str, list[int]]


def check_pairs(pairs: Sequence[Mapping[str, str]], method: str) -> None:
    """Raise ValueError for no pairs, a pair without its texts, or one that says nothing."""
    needed = ("prompt", "chosen") if method == "sft" else ("prompt", "chosen", "rejected")
    if not pairs:
        raise ValueError("no preference pairs: every prompt's responses were alike")
    for number, pair in enumerate(pairs):
        lacking = [name for name in needed if not str(pair.get(name) or "").strip()]
        if lacking:
            raise ValueError(f"pair {number}: {lacking[0]!r} is missing or empty")
        if method == "dpo" and pair["chosen"] == pair["rejected"]:
            raise ValueError(f"pair {number}: chosen and rejected are the same text; drop the pair")


def encode_pairs(
    pairs: Sequence[Mapping[str, str]],
    tokenizer: Any,
    *,
    context: int,
    ending: str | None,
    names: Sequence[str] = ("chosen", "rejected"),
) -> list[Row]:
    """n pairs -> n rows of `prompt_ids` and, for each name, `NAME_ids`; at most `context` in all.

    ending: text after a response; None: the end-of-text token. What is too long loses the
    beginning of its prompt, as in the generator, and is counted in the log.
    """
    prompts = [pair["prompt"] for pair in pairs]
    rows = [{"prompt_ids": list(ids)} for ids in tokenizer(prompts)["input_ids"]]
    for name in names:
        found = _completions(tokenizer, rows, prompts, [pair[name] for pair in pairs], ending)
        for row, ids in zip(rows, found, strict=True):
            row[f"{name}_ids"] = ids
    long = 0
    for row in rows:
        longest = max(len(row[f"{name}_ids"]) for name in names)
        room = max(1, context - longest)
        long += len(row["prompt_ids"]) > room
        row["prompt_ids"] = row["prompt_ids"][-room:]
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
    tokenizer: Any, rows: list[Row], prompts: list[str], texts: list[str], ending: str | None
) -> list[list[int]]:
    """Ids of the responses after their prompts' ids.

    Prompt and response are tokenised in one piece, as a reader would. Where a token would reach
    across the border the response is tokenised alone: the generator cannot write such a token.
    """
    wholes = [text + (ending or "") for text in texts]
    joint = tokenizer([p + w for p, w in zip(prompts, wholes, strict=True)])["input_ids"]
    alone = tokenizer(wholes, add_special_tokens=False)["input_ids"]
    result = []
    for row, both, own in zip(rows, joint, alone, strict=True):
        prefix = row["prompt_ids"]
        ids = list(both[len(prefix) :]) if both[: len(prefix)] == prefix else list(own)
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
