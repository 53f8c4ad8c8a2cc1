"""Prompts, the reading of their completions, and prompts -> synthetic text.

An example prompt is a numbered list of samples whose last one the model writes (PrE-Text,
section 3 (6) and Figure 3; POPri, Figure 5); an instruction prompt says in words what to write.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privsyn_flower.common.progress import Progress, bar
from privsyn_flower.common.units import beginning, units
from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.config.evolution import LABEL
from privsyn_flower.text.protocols import Generator

HEADING = "Original Text Sample"
CHUNK = 16384  # prompts per call of the generator: long enough to sort by length, not all of 2M


HEADINGS = re.compile(r"\boriginal\s+text\s+sampl", re.IGNORECASE)  # also as a model repeats them
SHORT, HEADED, REPEATED = "too short", "holding the prompt's headings", "repeated"


class TooFewTextsError(RuntimeError):
    """The generator did not yield as many distinct texts as it must. texts: those it did."""

    def __init__(self, message: str, texts: Sequence[LabelledText] = ()) -> None:
        super().__init__(message)
        self.texts = list(texts)


@dataclass(frozen=True)
class Prompt:
    """What the generator is shown, and the class that its text is for ("": no classes)."""

    text: str
    label: str = ""


@dataclass(frozen=True)
class LabelledText:
    """A synthetic text and its class ("": no classes)."""

    text: str
    label: str = ""


class PromptSource(Protocol):
    """Lambda of POPri, Algorithms 1 and 3: random prompts, and how to read what follows them."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The public class list; empty without classes."""

    @property
    def shown(self) -> Collection[str]:
        """Public texts that a prompt may show; a synthetic text that repeats one is no news."""

    def draw(self, count: int, rng: np.random.Generator) -> list[Prompt]:
        """`count` prompts; with classes the numbers of two classes differ by at most one."""

    def parse(self, completion: str, min_words: int) -> str | None:
        """A completion -> its text on one line, or None when it has fewer words."""


class ExamplePrompts:
    """Each prompt shows `examples` distinct public texts (POPri: 3; 2 for PubMed, appendix B.2).

    pool: the texts; or class -> texts, and then a prompt for a class shows texts of that class
    only. The class is not named in the prompt: the examples say it. Raises ValueError when there
    are fewer distinct texts than examples; with `fewer` a class that has some shows all of them.
    """

    def __init__(
        self,
        pool: Sequence[str] | Mapping[str, Sequence[str]],
        examples: int = 3,
        *,
        fewer: bool = False,
    ) -> None:
        by_class = pool if isinstance(pool, Mapping) else {"": pool}
        self._texts = {label: _distinct_lines(texts) for label, texts in by_class.items()}
        self.labels = tuple(by_class) if isinstance(pool, Mapping) else ()
        self.shown = frozenset(text for texts in self._texts.values() for text in texts)
        self.examples = examples
        for label, texts in self._texts.items():
            if not 1 <= (min(examples, len(texts)) if fewer else examples) <= len(texts):
                of_class = f" of class {label!r}" if label else ""
                raise ValueError(
                    f"{examples} examples in a prompt (popri.examples): must lie in "
                    f"[1, {len(texts)}], the number of distinct public texts{of_class}"
                )

    def draw(self, count: int, rng: np.random.Generator) -> list[Prompt]:
        """Examples are drawn uniformly, without repetition within a prompt."""
        prompts = []
        for label in _balanced(self.labels, count, rng):
            texts = self._texts[label]
            size = min(self.examples, len(texts))
            shown = [texts[i] for i in rng.choice(len(texts), size, replace=False)]
            total = max(6, self.examples + 1)
            prompts.append(Prompt(expand_prompt(shown, total=total), label))
        return prompts

    def parse(self, completion: str, min_words: int) -> str | None:
        """What stands before the next heading."""
        return parse_completion(completion, min_words)


class InstructionPrompts:
    """The same instruction in every prompt; `{label}` in it stands for the class (Algorithm 3).

    The whole completion is the text: an instruction has no headings. Raises ValueError for an
    empty instruction, for classes without a place in it, and for a place without classes.
    """

    shown: Collection[str] = ()

    def __init__(self, instruction: str, labels: Sequence[str] = ()) -> None:
        if not instruction.strip():
            raise ValueError("popri.instruction is empty: write one, or raise popri.examples")
        if bool(labels) != (LABEL in instruction):
            raise ValueError(
                f"popri.instruction = {instruction!r} must hold {LABEL} when popri.labels names "
                f"classes (here {len(labels)}), and not otherwise"
            )
        self.instruction, self.labels = instruction, tuple(dict.fromkeys(labels))

    def draw(self, count: int, rng: np.random.Generator) -> list[Prompt]:
        """Only the classes differ, so without classes all prompts are one."""
        chosen = _balanced(self.labels, count, rng)
        return [Prompt(self.instruction.replace(LABEL, label), label) for label in chosen]

    def parse(self, completion: str, min_words: int) -> str | None:
        """The whole completion; paragraphs are joined."""
        return _long_enough(completion, min_words)


def prompt_source(
    pool: Sequence[str],
    *,
    examples: int,
    instruction: str = "",
    labels: Sequence[str] = (),
) -> PromptSource:
    """The source that the keys of `[popri]` describe.

    pool: public texts of no class. Raises ValueError when the keys do not fit together.
    """
    if examples == 0:
        return InstructionPrompts(instruction, labels)
    if instruction:
        raise ValueError(
            f"popri.instruction is used with popri.examples = 0 only, not with {examples}"
        )
    if labels:
        raise ValueError(
            "popri.labels with popri.examples > 0 needs the class of every public text: name "
            "data.label-column, or set popri.examples = 0 and popri.instruction"
        )
    return ExamplePrompts(pool, examples)


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
    return _long_enough(sample, min_words)


def _long_enough(text: str, min_words: int) -> str | None:
    """A text on one line; None for one of fewer units."""
    return _one_line(text) if len(units(text)) >= min_words else None


def read_text(
    source: PromptSource, completion: str, min_words: int, max_words: int = 0
) -> str | None:
    """A completion -> its text, cut to max_words words (0: uncut); None when it is too short."""
    text = source.parse(completion, min_words)
    return text if text is None else beginning(text, max_words)


def generate(
    source: PromptSource,
    generator: Generator,
    *,
    samples: int,
    rng: np.random.Generator,
    min_words: int = 4,
    max_words: int = 0,
    exclude: Collection[str] = (),
    max_rounds: int = 4,
    progress: bool | Progress = True,
    dropped: Counter[str] | None = None,
) -> list[LabelledText]:
    """`samples` distinct synthetic texts, none in `exclude`, each from a prompt of its own.

    Prompts come in equal numbers for each class; how many of a class's texts are usable is up to
    the generator. At most max_rounds * samples completions are asked for. dropped: counts by cause
    the completions that give no text. Raises TooFewTextsError when they are used up.
    """
    known, found = set(exclude), dict[str, LabelledText]()
    dropped = Counter[str]() if dropped is None else dropped
    asked, allowed = 0, max_rounds * samples
    with bar(progress, "expanding", samples) as advance:
        while len(found) < samples and asked < allowed:
            # Ask for what is missing at the rate seen so far (all at first, then a bit more).
            rate = max(len(found) / asked, 0.1) if asked else 1.0
            count = min(math.ceil((samples - len(found)) / rate), allowed - asked, CHUNK)
            prompts = source.draw(count, rng)
            asked += count
            before = len(found)
            completions = generator.complete([prompt.text for prompt in prompts], 1, rng)
            for prompt, (completion,) in zip(prompts, completions, strict=True):
                text = read_text(source, completion, min_words, max_words)
                if why := _unusable(text, known, found):
                    dropped[why] += 1
                elif text is not None:
                    found[text] = LabelledText(text, prompt.label)
            advance(min(len(found), samples) - before)
    if len(found) < samples:
        causes = ", ".join(f"{count} {why}" for why, count in dropped.most_common())
        raise TooFewTextsError(
            f"{asked} completions gave {len(found)} distinct usable texts ({causes}), "
            f"expand.samples = {samples} were asked for: lower expand.samples or expand.min-words "
            f"(here {min_words}), or use another models.generator",
            list(found.values()),
        )
    return list(found.values())[:samples]


def _unusable(text: str | None, known: Collection[str], found: Collection[str]) -> str:
    """Why a completion gives no text; "" for one that does."""
    if text is None:
        return SHORT
    if HEADINGS.search(text):
        return HEADED
    return REPEATED if text in known or text in found else ""


@named_as_arguments
def expand(
    seeds: Sequence[str] | Mapping[str, Sequence[str]],
    generator: Generator,
    *,
    samples: int,
    rng: np.random.Generator,
    seeds_per_prompt: int = 3,
    min_words: int = 4,
    max_rounds: int = 4,
    progress: bool | Progress = True,
    dropped: Counter[str] | None = None,
) -> list[LabelledText]:
    """Seeds -> `samples` distinct synthetic texts, none of them a seed (PrE-Text, section 3 (6)).

    seeds: or class -> seeds; a text is then of the class whose seeds it was shown, all of them
    where a class has fewer than `seeds_per_prompt`, as drawn votes may leave it. Each text comes
    from a prompt of its own with `seeds_per_prompt` distinct seeds drawn at random. At most
    max_rounds * samples completions are asked for. Raises ValueError for too few distinct seeds and
    TooFewTextsError when the completions are used up.
    """
    by_class = seeds if isinstance(seeds, Mapping) else {"": seeds}
    pool = {label: _distinct_lines(own) for label, own in by_class.items()}
    if samples == 0:
        return []
    most = max(map(len, pool.values()))
    if not 1 <= seeds_per_prompt <= most:
        raise ValueError(
            f"expand.seeds-per-prompt = {seeds_per_prompt}: must lie in [1, {most}], "
            f"the number of distinct seeds"
        )
    named = isinstance(seeds, Mapping)
    return generate(
        ExamplePrompts(pool if named else pool[""], seeds_per_prompt, fewer=named),
        generator,
        samples=samples,
        rng=rng,
        min_words=min_words,
        exclude={text for own in pool.values() for text in own},
        max_rounds=max_rounds,
        progress=progress,
        dropped=dropped,
    )


def _balanced(labels: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """`count` classes in equal numbers; which of them get one more is drawn."""
    if not labels:
        return [""] * count
    order = rng.permutation(len(labels))
    return [labels[order[i % len(labels)]] for i in range(count)]


def _distinct_lines(texts: Sequence[str]) -> list[str]:
    """Every text on one line, without empty ones and repetitions, in order."""
    return list(dict.fromkeys(line for line in map(_one_line, texts) if line))


def _one_line(text: str) -> str:
    return " ".join(text.split())


THINKING = "think"  # the usual tag


def without_thinking(text: str, tag: str = THINKING) -> str | None:
    """The text without its blocks between <tag> and </tag>; None where one is not finished.

    A chat template may have opened the block in the prompt: then all before </tag> goes. tag "":
    the text as it is.
    """
    begin, end = f"<{tag}>", f"</{tag}>"
    if not tag or (begin not in text and end not in text):
        return text
    found = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", "", text, flags=re.DOTALL)
    found = found.rpartition(end)[2]
    return None if begin in found else found.lstrip()
