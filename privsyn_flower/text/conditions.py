"""Conditions: what a conditional generator is told about the text that it is to write; and the
pairs of a condition and a public text that it learns from.

A condition is a few lines of public words, as in CTCL (Tan et al. 2025, section 3.1): the kind of
document, a class, keywords. An encoder-decoder model reads it in its encoder; a causal model gets
it as a prompt before the text (`prompt`). Prompt and text are tokenised apart, so that no token
spans both and a text has the same tokens under every condition.

`described_pairs` is CTCL's way (section 3.1, Table 1): an instruction LLM lists what can be said of
each public document, the kind of document and its keywords among it, because those two are what
the condition of a private fine-tuning consists of. It extracts and invents nothing, so a small
model will do (2B parameters in the paper). For public text alone: the texts go to the server in
prompts. `public_pairs` needs no model: the keywords are the text's own most telling words, or those
of the texts around it, as after the private fine-tuning the condition is that of a topic.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from privsyn_flower.common.files import DataError, write_atomic
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.text.models.batches import encode
from privsyn_flower.text.protocols import Generator
from privsyn_flower.text.words import class_words, text_words, word_frequencies

logger = logging.getLogger("privsyn_flower")

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


WORDS = (5, 10)  # fewest and most keywords of a condition
UNTOLD = 0.1  # share of the pairs that say nothing of the text
OWN = 0.5  # of the others: the words are the text's own; else half the group's, half the area's
TYPED = 0.5  # of those in a group with a name: it is told as the type of document
AREA = 16  # neighbouring groups whose words are taken together

Whose = Literal["own", "group", "area"]


class PairSource:
    """Pairs of groups of public texts (a group: texts of one module or author, near its like).

    names: of each group, told as its type of document; "" or no names: not told. words: fewest
    and most keywords of a condition. Raises ValueError for other bounds or lengths.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[str]],
        names: Sequence[str] | None = None,
        words: tuple[int, int] = WORDS,
    ) -> None:
        if not 1 <= words[0] <= words[1]:
            raise ValueError(f"words = {words}: at least 1, and the second not below the first")
        if names is not None and len(names) != len(groups):
            raise ValueError(f"{len(names)} names for {len(groups)} groups")
        self._groups, self._words = groups, words
        self._names = names if names is not None else [""] * len(groups)
        self._frequencies = word_frequencies([text] for group in groups for text in group)
        areas = [
            [text for group in groups[first : first + AREA] for text in group]
            for first in range(0, len(groups), AREA)
        ]
        self._group_words = class_words(groups, words[1])
        self._area_words = class_words(areas, words[1])

    def keywords(self, group: int, text: str, whose: Whose, count: int = WORDS[1]) -> list[str]:
        """At most `count` words of a text of this group, of its group, or of its area."""
        if whose == "own":
            return list(text_words(text, self._frequencies, count))
        found = self._group_words[group] if whose == "group" else self._area_words[group // AREA]
        return list(found[:count])

    def draw(self, seed: int, groups: Sequence[int] | None = None) -> list[Pair]:
        """A pair of every text of these groups (None: of all), in order.

        Another seed draws other conditions.
        """
        rng = seeded(seed, "pairs")
        chosen = range(len(self._groups)) if groups is None else groups
        return [
            Pair(self._condition(group, text, rng), text)
            for group in chosen
            for text in self._groups[group]
        ]

    def _condition(self, group: int, text: str, rng: np.random.Generator) -> str:
        told, who, typed = rng.random(3)
        count = int(rng.integers(self._words[0], self._words[1], endpoint=True))
        if told < UNTOLD:
            return ""
        whose: Whose = "own" if who < OWN else "group" if who < (1 + OWN) / 2 else "area"
        name = self._names[group] if typed < TYPED else ""
        return condition(self.keywords(group, text, whose, count), name)


def public_pairs(
    groups: Sequence[Sequence[str]],
    names: Sequence[str] | None = None,
    *,
    seed: int = 0,
    words: tuple[int, int] = WORDS,
) -> list[Pair]:
    """One pair of every public text, in order. See `PairSource`."""
    return PairSource(groups, names, words).draw(seed)


BLOCK = 256  # texts that are asked about, and kept, at once
ASKS = 2  # times that a text is asked about before it is left out
SHOWN = 6000  # characters of a text that are shown
MOST_LINES, MOST_CHARACTERS, MOST_WORDS = 10, 200, 10  # of a condition, a line, the keywords
REQUEST = """\
Read the document below and write down what can be said about it, one aspect to a line, each line \
in the form "Aspect: values". Use only what the document itself shows; do not continue, judge or \
rewrite it. At most ten lines, nothing before or after them. One line must be "Document Type:" \
followed by the kind of document in a few words, and one must be "Keywords:" followed by five to \
ten of its most telling words or short terms, separated by commas.

Document:
"""

_ASPECT = re.compile(r"^[\W\d]*([A-Za-z][A-Za-z /&-]{0,39}?)[\s*_]*:[\s*_]*(.*)$")
_BULLET = re.compile(r"^[\s*+•-]*(?:\d+[.)]\s+)?")


def described_pairs(
    texts: Sequence[str],
    model: Generator,
    target: Path,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> list[Pair]:
    """A pair of each public text that the model describes well enough, in order; also a file.

    model: takes a prompt as a user's turn (`OpenAIGenerator(..., chat=True)` for any compatible
    server, `HuggingFaceGenerator(..., chat=True)`); some 200 tokens an answer. target: JSON Lines
    of {"condition", "text"}, there when all is; blocks of answers are kept beside it, and a call
    with the same texts and seed goes on after the last. A text whose answers name no kind of
    document or no keywords is left out, and how many were is logged. Raises ServerError.
    """
    if target.is_file():
        return read_pairs(target)
    folder = target.with_name(f".{target.name}.{_digest_of(texts, seed)}")
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(texts), BLOCK)
    blocks = [folder / f"{start // BLOCK:06d}.jsonl" for start in starts]
    for number, (start, path) in enumerate(zip(starts, blocks, strict=True)):
        progress("describing public text", start, len(texts))
        if not path.is_file():
            some = texts[start : start + BLOCK]
            write_atomic(path, _lines(_block(some, model, seed, number)))
    pairs = [pair for path in blocks for pair in read_pairs(path)]
    if len(pairs) < len(texts):
        logger.warning(
            "%d of %d public texts were not described in the form that was asked for, and are "
            "left out", len(texts) - len(pairs), len(texts)
        )  # fmt: skip
    write_atomic(target, _lines(pairs))
    for path in blocks:
        path.unlink()
    folder.rmdir()
    progress("describing public text", len(texts), len(texts))
    return pairs


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file of `described_pairs`. Raises DataError that names a bad line."""
    pairs = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            pair = Pair(row["condition"], row["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}:{number}: is no pair of condition and text") from error
        if not isinstance(pair.condition, str) or not isinstance(pair.text, str):
            raise DataError(f"{path}:{number}: condition and text must be strings")
        pairs.append(pair)
    return pairs


def parse_description(answer: str) -> str:
    """A model's answer -> a condition; "" where the kind of document or keywords are missing.

    The two come first, as in every other condition, so that what is cut of a long one is the rest.
    """
    found = _aspects(answer)
    kind = found.pop("Document Type", "")
    words = [word.strip(" .*`\"'") for word in re.split(r"[,;]", found.pop("Keywords", ""))]
    words = list(dict.fromkeys(word for word in words if word))[:MOST_WORDS]
    if not kind or not words:
        return ""
    more = [f"{name}: {value}" for name, value in found.items()]
    return "\n".join([condition(words, kind), *more][: MOST_LINES - 1])


def _block(texts: Sequence[str], model: Generator, seed: int, number: int) -> list[Pair]:
    """Texts that are asked about together; those without a usable answer are asked again."""
    said = dict[int, str]()
    for attempt in range(ASKS):
        waiting = [i for i in range(len(texts)) if i not in said]
        prompts = [REQUEST + texts[i][:SHOWN] for i in waiting]
        if not prompts:
            break
        answers = model.complete(prompts, 1, seeded(seed, "described", number, attempt))
        for i, (answer,) in zip(waiting, answers, strict=True):
            if found := parse_description(answer):
                said[i] = found
    return [Pair(said[i], texts[i]) for i in sorted(said)]


def _aspects(answer: str) -> dict[str, str]:
    """Lines `Name: values` by name, the first of each; values may follow as a list."""
    found = dict[str, str]()
    name = ""
    for line in answer.splitlines():
        match = _ASPECT.match(line)
        if match:
            name = match[1].strip().title()
            if name in found:
                name = ""
            else:
                found[name] = _line(match[2].replace("*", " "))
        elif name and (value := _line(_BULLET.sub("", line).replace("*", " "))):
            found[name] = f"{found[name]}, {value}" if found[name] else value
    return {name: value[:MOST_CHARACTERS] for name, value in found.items() if value}


def _lines(pairs: Iterable[Pair]) -> bytes:
    return "".join(json.dumps(asdict(pair)) + "\n" for pair in pairs).encode("ascii")


def _digest_of(texts: Sequence[str], seed: int) -> str:
    state = hashlib.sha256(json.dumps([REQUEST, seed, BLOCK, ASKS]).encode())
    for text in texts:
        state.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return state.hexdigest()[:16]
