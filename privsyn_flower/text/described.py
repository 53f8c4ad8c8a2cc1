"""Public texts -> (condition, text) pairs by an instruction LLM (CTCL, section 3.1, Table 1).

A model that follows instructions lists what can be said of each public document; the kind of
document and its keywords must be among it, because those two are what the condition of a private
fine-tuning consists of. The model extracts and invents nothing, so a small one will do (2B
parameters in the paper). For public text alone: the texts go to the server in prompts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from privsyn_flower.files import DataError, write_atomic
from privsyn_flower.progress import Progress, silent
from privsyn_flower.randomness import seeded
from privsyn_flower.text.conditions import Pair, condition
from privsyn_flower.text.protocols import Generator

logger = logging.getLogger("privsyn_flower")

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
    folder = target.with_name(f".{target.name}.{_digest(texts, seed)}")
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


def described(answer: str) -> str:
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
            if found := described(answer):
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
                found[name] = _value(match[2])
        elif name and (value := _value(_BULLET.sub("", line))):
            found[name] = f"{found[name]}, {value}" if found[name] else value
    return {name: value[:MOST_CHARACTERS] for name, value in found.items() if value}


def _value(written: str) -> str:
    return " ".join(written.replace("*", " ").split())


def _lines(pairs: Iterable[Pair]) -> bytes:
    rows = ({"condition": pair.condition, "text": pair.text} for pair in pairs)
    return "".join(json.dumps(row) + "\n" for row in rows).encode("ascii")


def _digest(texts: Sequence[str], seed: int) -> str:
    state = hashlib.sha256(json.dumps([REQUEST, seed, BLOCK, ASKS]).encode())
    for text in texts:
        state.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return state.hexdigest()[:16]
