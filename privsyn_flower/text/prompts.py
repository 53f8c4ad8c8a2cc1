"""The expand prompt, the reading of its completions, and seeds -> synthetic text.

PrE-Text, section 3 (6) and Figure 3: a numbered list of six samples of which three seeds are
given; the model writes the fourth, which ends at the next heading.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privsyn_flower.progress import Progress
from privsyn_flower.text.bars import bar
from privsyn_flower.text.protocols import Generator

HEADING = "Original Text Sample"
CHUNK = 16384  # prompts per call of the generator: long enough to sort by length, not all of 2M


class TooFewTextsError(RuntimeError):
    """The generator did not yield as many distinct texts as asked for."""


def expand_prompt(examples: Sequence[str], total: int = 6) -> str:
    """k examples -> a prompt that ends where sample k + 1 begins (PrE-Text, Figure 3).

    Newlines, tabs and runs of spaces inside an example become one space, because a line is a
    sample. `total` is the number that the first line announces; ValueError if it is not above k.
    """
    if not 1 <= len(examples) < total:
        raise ValueError(f"{len(examples)} examples in a list of {total}: need 1 to {total - 1}")
    lines = [f"List of {total} diverse original text samples:"]
    for number, example in enumerate(examples, start=1):
        lines += [f"{HEADING} {number}", _one_line(example)]
    return "\n".join([*lines, f"{HEADING} {len(examples) + 1}", ""])


def parse_completion(text: str, min_words: int = 4) -> str | None:
    """A completion of `expand_prompt` -> its sample on one line, or None if it is too short.

    The sample is what stands before the next heading; a heading that the token limit cut short
    ("...\\nOriginal Te") is cut off too. Paragraphs are joined, as in the prompt. None when fewer
    than `min_words` words remain.
    """
    sample = text.partition(HEADING)[0].rstrip()
    before, newline, last = sample.rpartition("\n")
    if newline and HEADING.startswith(last.strip()):
        sample = before
    words = sample.split()
    return " ".join(words) if len(words) >= min_words else None


def expand(
    seeds: Sequence[str],
    generator: Generator,
    *,
    samples: int,
    rng: np.random.Generator,
    seeds_per_prompt: int = 3,
    min_words: int = 4,
    max_rounds: int = 4,
    progress: bool | Progress = True,
) -> list[str]:
    """Seeds -> `samples` distinct synthetic texts, none of them a seed (Algorithm 1 line 11).

    Each text comes from a prompt of its own with `seeds_per_prompt` distinct seeds drawn at
    random. At most max_rounds * samples completions are asked for. Raises ValueError for too few
    distinct seeds and TooFewTextsError when the completions are used up.
    """
    pool = list(dict.fromkeys(line for line in map(_one_line, seeds) if line))
    if samples == 0:
        return []
    if not 1 <= seeds_per_prompt <= len(pool):
        raise ValueError(
            f"expand.seeds-per-prompt = {seeds_per_prompt}: must lie in [1, {len(pool)}], "
            f"the number of distinct seeds"
        )
    known, found = set(pool), dict[str, None]()
    asked, allowed = 0, max_rounds * samples
    with bar(progress, "expanding", samples) as advance:
        while len(found) < samples and asked < allowed:
            # Ask for what is missing at the rate seen so far (all at first, then a bit more).
            rate = max(len(found) / asked, 0.1) if asked else 1.0
            count = min(math.ceil((samples - len(found)) / rate), allowed - asked, CHUNK)
            prompts = _draw_prompts(pool, count, seeds_per_prompt, rng)
            asked += count
            before = len(found)
            for (completion,) in generator.complete(prompts, 1, rng):
                text = parse_completion(completion, min_words)
                if text is not None and text not in known:
                    found[text] = None
            advance(min(len(found), samples) - before)
    if len(found) < samples:
        raise TooFewTextsError(
            f"{asked} completions gave {len(found)} distinct usable texts, expand.samples = "
            f"{samples} were asked for: lower expand.samples or expand.min-words, or use another "
            f"models.generator"
        )
    return list(found)[:samples]


def _draw_prompts(
    seeds: Sequence[str], count: int, each: int, rng: np.random.Generator
) -> list[str]:
    """`count` prompts of `each` distinct seeds, drawn uniformly."""
    return [
        expand_prompt(
            [seeds[i] for i in rng.choice(len(seeds), each, replace=False)], total=max(6, each + 1)
        )
        for _ in range(count)
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())
