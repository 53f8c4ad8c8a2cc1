"""Keywords of public text: of a class of texts, or of one text, by class-based TF-IDF.

Source: the keywords of CTCL's topics (Tan et al. 2025, arXiv 2503.12347, section 3.2) are those of
BERTopic (Grootendorst 2022, arXiv 2203.05794, section 3.3): a word w of class c weighs
tf(w, c) * log(1 + A / f(w)), with tf its count in the class, f its count in all classes and A the
mean number of words of a class. Stop words are English; a frequent word of another language weighs
little because its f is large, but is not left out. Words are parts of the units of `units`.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from privsyn_flower.units import marks, spaced, unspaced

LONGEST = 40  # letters of a word: what is longer is a path or a hash
_STOP_WORDS = frozenset(
    """
    about above across after again against all almost alone along already also although always am
    among an and another any anybody anyone anything are aren't around as at away back be became
    because become becomes been before behind being below between both but by came can can't cannot
    come comes could couldn't did didn't do does doesn't doing don't done down during each either
    else enough etc even ever every everybody everyone everything few for from further gave get gets
    getting give given gives go goes going gone got had hadn't has hasn't have haven't having he
    he'd he'll her here hers herself him himself his how however i'd i'll i'm i've if in indeed
    instead into is isn't it it'd it'll its itself just keep kept least less let like likely made
    make makes making many may maybe me might mine more moreover most much must my myself near
    neither never nevertheless next no nobody none nor not nothing now of off often on once one only
    onto or other others otherwise our ours ourselves out over own per perhaps put quite rather
    really said same say says see seem seemed seems shall she she'd she'll should shouldn't since so
    some somebody someone something sometimes somewhere still such take taken takes than that the
    their theirs them themselves then there therefore these they they'd they'll they're they've
    thing things this those though through throughout thus to together too took toward towards two
    under unless until up upon us use used uses using very via want wants was wasn't way we we'd
    we'll we're we've well were weren't what when where whereas whether which while who whoever
    whole whom whose why will with within without won't would wouldn't yes yet you you'd you'll
    you're you've your yours yourself yourselves
    """.split()
)


def words_of(text: str) -> list[str]:
    """The words of a text in order, lower-case, repeated as they are; no stop words, no numbers.

    A word has 2 to 40 letters, or is one character of a script written without spaces;
    underscores, punctuation and the ends of units end it, and a possessive 's is taken off.
    """
    found = _word().findall(spaced(text.lower().replace("’", "'")))
    plain = (word.removesuffix("'s") for word in found)
    kept = (word for word in plain if 2 - unspaced(word) <= len(word) <= LONGEST)
    return [word for word in kept if word not in _STOP_WORDS]


@functools.cache
def _word() -> re.Pattern[str]:
    """Letters with their marks; in a word one apostrophe, hyphen or digit may stand between them:
    "don't", "x-ray", "conv2d"."""
    return re.compile(rf"[^\W\d_][{marks()}]*(?:['\-]?[^\W_][{marks()}]*)*")


@dataclass(frozen=True)
class Frequencies:
    """counts: f(w), how often each word occurs in all classes. mean: A, words of a class."""

    counts: Mapping[str, int]
    mean: float

    def weight(self, word: str) -> float:
        """log(1 + A / f(w)); a word that no class has counts as one that occurs once."""
        return math.log1p(self.mean / self.counts.get(word, 1))


def word_frequencies(groups: Iterable[Iterable[str]]) -> Frequencies:
    """Classes of texts -> their word counts; each text may be a class of its own."""
    counts: Counter[str] = Counter()
    classes = 0
    for texts in groups:
        classes += 1
        for text in texts:
            counts.update(words_of(text))
    return Frequencies(counts, counts.total() / max(1, classes))


def class_words(groups: Sequence[Sequence[str]], count: int) -> list[tuple[str, ...]]:
    """The `count` words of the greatest weight of each class of texts, best first.

    A class whose texts have fewer distinct words has fewer, or none. Ties: the word that comes
    first in the alphabet. Memory: the counts of all words, and those of one class at a time, so
    texts are cut into words twice.
    """
    frequencies = word_frequencies(groups)
    return [_heaviest(_counted(texts), frequencies, count) for texts in groups]


def text_words(text: str, frequencies: Frequencies, count: int) -> tuple[str, ...]:
    """The `count` words of the greatest weight of one text, best first; () for one without words.

    frequencies: of the texts that it is one of, each a class (`word_frequencies`).
    """
    return _heaviest(_counted([text]), frequencies, count)


def _counted(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words_of(text))
    return counts


def _heaviest(counts: Counter[str], frequencies: Frequencies, count: int) -> tuple[str, ...]:
    weights = {word: number * frequencies.weight(word) for word, number in counts.items()}
    return tuple(sorted(weights, key=lambda word: (-weights[word], word))[:count])
