"""Conditions: what a conditional generator is told about the text that it is to write.

A condition is a few lines of public words, as in CTCL (Tan et al. 2025, section 3.1): the kind of
document, a class, keywords. An encoder-decoder model reads it in its encoder; a causal model gets
it as a prompt before the text (`prompt`). Prompt and text are tokenised apart, so that no token
spans both and a text has the same tokens under every condition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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


def encode_prompt(tokenizer: Any, prompt: str, most: int = MAX_SOURCE) -> list[int]:
    """Ids of a prompt, with what the tokenizer puts before a text and without what comes after.

    Of more than `most` ids the last before the blank line are cut; the blank line stays.
    """
    ids: list[int] = tokenizer(prompt, verbose=False)["input_ids"]
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}
    while len(ids) > 1 and ids[-1] in ends:
        ids = ids[:-1]
    if len(ids) > most:
        blank = _bare(tokenizer, SEPARATOR)[-most:]
        ids = ids[: most - len(blank)] + blank
    return ids


def encode_text(tokenizer: Any, text: str, most: int) -> list[int]:
    """Ids of a text and its end, at most `most`: a text that is cut has no end.

    Raises ValueError for a tokenizer without a token for the end of a text.
    """
    return [*_bare(tokenizer, text), end_of_text(tokenizer)][:most]


def encode_pair(
    tokenizer: Any, prompt: str, text: str, length: int, max_source: int = MAX_SOURCE
) -> tuple[list[int], int]:
    """(ids, leading) for a causal model: the prompt's ids, then the text's.

    length: most tokens of the text with its end; max_source: of the prompt (CTCL's code: 512 and
    128), so a row has at most their sum. leading: of the first tokens, which carry no loss.
    """
    first = encode_prompt(tokenizer, prompt, max_source)
    return first + encode_text(tokenizer, text, length), len(first)


def end_of_text(tokenizer: Any) -> int:
    """The token after a text's last. Raises ValueError where the tokenizer has none."""
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise ValueError(
            f"models.conditional = {tokenizer.name_or_path!r}: its tokenizer has no end-of-text "
            "token, so the generator could not learn where a text ends; name another model"
        )
    return int(end)


def _bare(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text without any special token."""
    # The library's own words name the length of one text, which may be PRIVATE.
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _line(words: str) -> str:
    """Words on one line."""
    return " ".join(words.split())
