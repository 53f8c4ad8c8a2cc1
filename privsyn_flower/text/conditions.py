"""Conditions: what a conditional generator is told about the text that it is to write.

A condition is a few lines of public words, as in CTCL (Tan et al. 2025, section 3.1): the kind of
document, a class, keywords. An encoder-decoder model reads it in its encoder; a causal model gets
it as a prompt before the text (`prompt`). Prompt and text are tokenised apart, so that no token
spans both and a text has the same tokens under every condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from privsyn_flower.text.models.batches import encode

SEPARATOR = "\n\n"  # between a condition and its text
NEUTRAL = "Document:"  # stands before a text of which nothing is said
MAX_SOURCE = 128  # most tokens of a condition (CTCL's released code)


@dataclass(frozen=True, slots=True)
class Pair:
    """A text and its condition ("": nothing is said of it)."""

    condition: str
    text: str


def condition(keywords: Iterable[str], document_type: str = "", label: str = "") -> str:
    """The lines of a condition; "" when nothing is said.

    `Document Type: x`, `Label: y` and `Keywords: a, b, c`, each left out where it has no words.
    The keywords come last: they are the line that may be long, and its end is what is cut.
    """
    words = ", ".join(word for keyword in keywords if (word := _line(keyword)))
    lines = [("Document Type", _line(document_type)), ("Label", _line(label)), ("Keywords", words)]
    return "\n".join(f"{name}: {value}" for name, value in lines if value)


def prompt(condition: str) -> str:
    """What a causal generator goes on from: the condition, or neutral words, and a blank line."""
    return (condition or NEUTRAL) + SEPARATOR


def encode_prompts(
    tokenizer: Any, prompts: Sequence[str], most: int = MAX_SOURCE
) -> list[list[int]]:
    """Ids of each prompt, with what the tokenizer puts before a text, without what comes after.

    Of more than `most` ids the last before the blank line are cut; the blank line stays.
    """
    rows = _ids(tokenizer, prompts, special=True)
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}
    blank = _ids(tokenizer, [SEPARATOR])[0][-most:]
    for row in rows:
        while len(row) > 1 and row[-1] in ends:
            row.pop()
        if len(row) > most:
            row[:] = row[: most - len(blank)] + blank
    return rows


def encode_sources(tokenizer: Any, conditions: Sequence[str], most: int) -> list[list[int]]:
    """Ids of each condition for an encoder, with the tokenizer's special tokens, at most `most`."""
    rows = encode(tokenizer, conditions, most)
    # An encoder needs something to read, also where nothing is said.
    return [row or [end_of_text(tokenizer)] for row in rows]


def encode_texts(tokenizer: Any, texts: Sequence[str], most: int) -> list[list[int]]:
    """Ids of each text and its end, at most `most`: a text that is cut has no end.

    Raises ValueError for a tokenizer without a token for the end of a text.
    """
    end = end_of_text(tokenizer)
    return [[*row, end][:most] for row in _ids(tokenizer, texts)]


def encode_pairs(
    tokenizer: Any, pairs: Sequence[Pair], length: int, max_source: int = MAX_SOURCE
) -> list[tuple[list[int], int]]:
    """(ids, leading) of each pair for a causal model: the prompt's ids, then the text's.

    length: most tokens of the text with its end; max_source: of the prompt (CTCL's code: 512 and
    128), so a row has at most their sum. leading: of the first tokens, which carry no loss.
    """
    first = encode_prompts(tokenizer, [prompt(pair.condition) for pair in pairs], max_source)
    second = encode_texts(tokenizer, [pair.text for pair in pairs], length)
    return [(one + two, len(one)) for one, two in zip(first, second, strict=True)]


def end_of_text(tokenizer: Any) -> int:
    """The token after a text's last. Raises ValueError where the tokenizer has none."""
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise ValueError(
            f"models.conditional = {tokenizer.name_or_path!r}: its tokenizer has no end-of-text "
            "token, so the generator could not learn where a text ends; name another model"
        )
    return int(end)


def _ids(tokenizer: Any, texts: Sequence[str], special: bool = False) -> list[list[int]]:
    """Ids of each text, with the tokenizer's special tokens around it or without any."""
    if not texts:
        return []
    # The library's own words name the length of one text, which may be PRIVATE.
    rows: list[list[int]] = tokenizer(list(texts), add_special_tokens=special, verbose=False)[
        "input_ids"
    ]
    return rows


def _line(words: str) -> str:
    """Words on one line."""
    return " ".join(words.split())
