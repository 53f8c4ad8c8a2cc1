"""Variation by a causal language model: a text written anew, or one more text like it.

Aug-PE's VARIATION_API asks a model that follows instructions to say a text again in a style that
is drawn for it (Xie et al. 2024, section 3). A model that follows none can still go on with a list
whose only entry is the text: PrE-Text's prompt with one example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from privsyn_flower.config.evolution import STYLE, TEXT, check_instruction
from privsyn_flower.text.prompts import expand_prompt, parse_completion
from privsyn_flower.text.protocols import AdaptableGenerator
from privsyn_flower.units import beginning, units


class Rewrite:
    """Each text written anew by instruction (an Infiller).

    Args:
        generator: follows instructions; it writes without an adapter.
        instruction: the prompt; `{text}` stands for the text, `{style}` for its style.
        styles: one is drawn for each text; empty: the instruction has no `{style}`.
        min_words, max_words: a text whose variation is shorter stays as it is; longer ones are
            cut (0: uncut).
    """

    def __init__(
        self,
        generator: AdaptableGenerator,
        instruction: str,
        styles: Sequence[str] = (),
        *,
        min_words: int = 4,
        max_words: int = 0,
    ) -> None:
        check_instruction(instruction, bool(styles), "pretext.rewrite")
        self.generator, self.instruction, self.styles = generator, instruction, tuple(styles)
        self.min_words, self.max_words = min_words, max_words

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n variations, in order."""
        styles = [""] * len(texts)
        if self.styles:
            styles = [self.styles[i] for i in rng.integers(len(self.styles), size=len(texts))]
        prompts = [self._prompt(text, style) for text, style in zip(texts, styles, strict=True)]
        found = _completed(self.generator, prompts, rng)
        read = (" ".join(one.split()) for one in found)
        return _usable(texts, read, self.min_words, self.max_words)

    def _prompt(self, text: str, style: str) -> str:
        # The style first: a text may hold the word {style}.
        return self.instruction.replace(STYLE, style).replace(TEXT, " ".join(text.split()))


class Continue:
    """For each text the next entry of a list that begins with it (an Infiller).

    Args: as those of Rewrite; the generator need not follow instructions.
    """

    def __init__(
        self, generator: AdaptableGenerator, *, min_words: int = 4, max_words: int = 0
    ) -> None:
        self.generator, self.min_words, self.max_words = generator, min_words, max_words

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        """n texts -> n variations, in order."""
        found = _completed(self.generator, [expand_prompt([text]) for text in texts], rng)
        read = (parse_completion(one, self.min_words) or "" for one in found)
        return _usable(texts, read, self.min_words, self.max_words)


def _completed(
    generator: AdaptableGenerator, prompts: Sequence[str], rng: np.random.Generator
) -> list[str]:
    """One completion of each prompt by the base model."""
    generator.use_adapter(None)
    return [one for (one,) in generator.complete(prompts, 1, rng)]


def _usable(
    texts: Sequence[str], varied: Iterable[str], min_words: int, max_words: int
) -> list[str]:
    """The variations, cut to max_words; in the place of a short one, the text itself."""
    result = []
    for text, new in zip(texts, varied, strict=True):
        result.append(beginning(new, max_words) if len(units(new)) >= min_words else text)
    return result
