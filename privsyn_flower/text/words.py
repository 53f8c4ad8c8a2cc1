"""Words, sentences and keywords of public text, without any model.

Keywords: of a class of texts, or of one text, by class-based TF-IDF. Source: those of CTCL's topics
(Tan et al. 2025, arXiv 2503.12347, section 3.2) are those of BERTopic (Grootendorst 2022, arXiv
2203.05794, section 3.3): a word w of class c weighs tf(w, c) * log(1 + A / f(w)), with tf its count
in the class, f its count in all classes and A the mean number of words of a class. Stop words are
English; a frequent word of another language weighs little because its f is large.

`degenerate` is the filter of CTCL's published code for generated texts. `Vocabulary` reads words as
the keyboard's LSTM does: by the same library and steps as `models.lstm.word_tokenizer`.

`spelling`: how a model's tokenizer spells text: in words, or in letters, bytes and unknowns where
it has learnt another language. Measured on English chats and docstrings against lines in 18 other
languages, letters alone: in English 1.0 to 1.8 tokens a word, in what a model has not learnt 2.1 to
11, and 5 to 98 % of the tokens are parts of characters. SmolLM2 spells Dutch, Spanish and French
with 1.6 to 2.0 tokens a word: a language that shares its letters and many of its words is not told
apart.
"""

from __future__ import annotations

import functools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import DataError
from privsyn_flower.common.units import marks, spaced, unspaced, words

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
        counts.update(_words_in(texts))
    return Frequencies(counts, counts.total() / max(1, classes))


def class_words(groups: Sequence[Sequence[str]], count: int) -> list[tuple[str, ...]]:
    """The `count` words of the greatest weight of each class of texts, best first.

    A class whose texts have fewer distinct words has fewer, or none. Ties: the word that comes
    first in the alphabet. Memory: the counts of all words, and those of one class at a time, so
    texts are cut into words twice.
    """
    frequencies = word_frequencies(groups)
    return [_heaviest(_words_in(texts), frequencies, count) for texts in groups]


def text_words(text: str, frequencies: Frequencies, count: int) -> tuple[str, ...]:
    """The `count` words of the greatest weight of one text, best first; () for one without words.

    frequencies: of the texts that it is one of, each a class (`word_frequencies`).
    """
    return _heaviest(words_of(text), frequencies, count)


def _words_in(texts: Iterable[str]) -> Iterator[str]:
    return chain.from_iterable(map(words_of, texts))


def _heaviest(words: Iterable[str], frequencies: Frequencies, count: int) -> tuple[str, ...]:
    weights = {word: number * frequencies.weight(word) for word, number in Counter(words).items()}
    return tuple(sorted(weights, key=lambda word: (-weights[word], word))[:count])


LONGEST_TOKEN = 25  # characters; a longer one is a run of letters, or a path
MOST_REPEATS = 20  # of one word in one text
# They repeat in any long text.
FREQUENT = frozenset(("the", "a", ",", ".", "的", "の", "、", "，", "。"))


def degenerate(text: str) -> bool:
    """Whether a text has no word of letters, a word of more than 25 characters, or a word that is
    not in FREQUENT and occurs more than 20 times, upper and lower case alike."""
    counts = Counter(_tokens().findall(spaced(text.lower())))
    if not any(_bare().sub("", word).isalpha() for word in counts):
        return True
    if any(len(word) > LONGEST_TOKEN for word in counts):
        return True
    return any(n > MOST_REPEATS for word, n in counts.items() if word not in FREQUENT)


@functools.cache
def _tokens() -> re.Pattern[str]:
    """A word may go on after one of '-./ and a mark by itself is a word: "3.5", "well-known"."""
    letter = rf"[\w{marks()}]"
    return re.compile(rf"{letter}+(?:['’\-./]{letter}+)*|[^\w\s]")


@functools.cache
def _bare() -> re.Pattern[str]:
    """What may stand in a word of letters beside them."""
    return re.compile(rf"[{marks()}'’\-]")


# Their full stop does not end a sentence; lower case.
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof sr jr st mt vs etc e.g i.e eg ie inc ltd co corp vol pp fig al approx dept "
    "est gen gov hon lt col sgt capt rev sen rep u.s u.k u.n a.m p.m jan feb mar apr jun jul aug "
    "sep sept oct nov dec".split()
)
# Marks with what closes after them, a space, and the beginning of another sentence.
_SENTENCE_END = re.compile(
    r"""(?<=[.!?…।॥؟۔။។])(["'”’»)\]]*)\s+(?=["'“‘«(\[]*[^\W_a-zß-öø-ÿ])"""
    r"|(?<=[。！？])[”’」』）]*\s*"
)
_BEFORE_MARK = re.compile(r"[\w.]*")
_LOOKED_AT = 40  # characters before a full stop: more than any abbreviation has


def sentences(text: str) -> list[str]:
    """A text -> its sentences with their punctuation, white space made single; none is empty.

    A sentence ends with a line, or with a mark before a space and a letter that is no lower-case
    one, a digit or a quotation; not after initials and the commonest English abbreviations. So a
    title before a name is kept with it, and a sentence that ends in an abbreviation goes on with
    the next.
    """
    found = []
    for line in text.splitlines():
        start = 0
        for end in _SENTENCE_END.finditer(line):
            if _goes_on(line, end.start() - 1):
                continue
            found.append(line[start : end.end()])
            start = end.end()
        found.append(line[start:])
    return [one for one in (" ".join(piece.split()) for piece in found) if one]


def _goes_on(line: str, mark: int) -> bool:
    """Whether the mark at a place of a line is the full stop of an abbreviation or an initial."""
    if line[mark] != ".":
        return False
    backwards = _BEFORE_MARK.match(line[max(0, mark - _LOOKED_AT) : mark][::-1])
    last = backwards[0][::-1].lower() if backwards else ""
    return last in _ABBREVIATIONS or (len(last) == 1 and last.isalpha() and last != "i")


BLOCK = 1024  # texts that are read at once: all that is in memory of a stream
UNKNOWN = "<unk>"


class Vocabulary:
    """Distinct words in their order, and the texts that are made of them.

    words: repeated ones count once. A word that no text can give, because it has capitals or the
    tokenizer cuts it ("don't" is three words), stays and is never found (`unreachable`). Raises
    ValueError without words.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words: Sequence[str] = list(dict.fromkeys(words))
        if not self.words:
            raise ValueError("a vocabulary needs at least one word")
        self._tokenizer = _word_tokenizer(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def ids(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Texts, as a stream -> the places of each one's words; -1: of none of the vocabulary."""
        stream = iter(texts)
        while block := list(islice(stream, BLOCK)):
            for encoded in self._tokenizer.encode_batch_fast([spaced(text) for text in block]):
                yield [number - 1 for number in encoded.ids]

    def unreachable(self) -> list[str]:
        """Words that no text gives, in their order."""
        found = self.ids(self.words)
        return [
            word
            for place, (word, ids) in enumerate(zip(self.words, found, strict=True))
            if ids != [place]
        ]


def read_vocabulary(path: Path) -> Vocabulary:
    """A text file with a word on each line, or the folder of a word-level model.

    A model's special words (<unk>, <s>, ...) are not among them. Raises DataError for neither, and
    OSError.
    """
    if path.is_dir():
        return Vocabulary(_of_model(path / "tokenizer.json"))
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
        return Vocabulary(word for line in lines if (word := line.strip()))
    except (UnicodeDecodeError, ValueError) as error:
        what = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else "holds no word"
        raise DataError(f"{path} {what}: name a text file with a word on each line") from None


def _of_model(path: Path) -> list[str]:
    """The words of a tokenizer's file, by number, without the special ones."""
    problem = DataError(
        f"{path.parent} is a folder without the tokenizer.json of a word-level model: name such a "
        "folder, or a text file with a word on each line"
    )
    try:
        tree: Any = json.loads(path.read_text(encoding="utf-8"))
        if tree["model"]["type"] != "WordLevel":
            raise problem
        numbers: dict[str, int] = tree["model"]["vocab"]
        special = {token["content"] for token in tree["added_tokens"] if token["special"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise problem from None
    return [word for word in sorted(numbers, key=numbers.__getitem__) if word not in special]


def _word_tokenizer(words: Sequence[str]) -> Any:
    """A tokenizer of the library: number 0 for what is unknown, from 1 on the words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    # No text gives UNKNOWN as one word: it is cut at its marks.
    numbers = {UNKNOWN: 0} | {word: place for place, word in enumerate(words, 1) if word != UNKNOWN}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


MOST_TOKENS = 2.0  # a word, of a language that the tokenizer was made for
MOST_UNREADABLE = 0.05  # share of tokens
LEAST_WORDS = 50  # fewer say nothing
TEXTS, CHARACTERS = 200, 500  # that are looked at, evenly over the texts, and of each
FILE = "tokenizer.json"
CUT = "\ufffd"  # what part of a character decodes to


@dataclass(frozen=True, slots=True)
class Spelling:
    """Of a sample's words, without punctuation, digits and emoji. unreadable: tokens that are
    unknown, or no whole characters."""

    words: int
    tokens: int
    unreadable: int

    @property
    def tokens_per_word(self) -> float:
        """1 where every word is a token."""
        return self.tokens / self.words

    @property
    def unreadable_share(self) -> float:
        """Of the tokens."""
        return self.unreadable / self.tokens

    @property
    def foreign(self) -> bool:
        """Whether the tokenizer was made for another language."""
        return self.tokens_per_word > MOST_TOKENS or self.unreadable_share > MOST_UNREADABLE


def spelling(folder: Path, texts: Sequence[str]) -> Spelling | None:
    """How the tokenizer of the model in `folder` spells texts; None where it has no tokenizer.json,
    the texts have too few words, or the tokenizers package is not here."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    shown = texts[:: max(1, len(texts) // TEXTS)][:TEXTS]
    sample = [found for text in shown if (found := letters(text[:CHARACTERS]))]
    count = sum(len(words(text)) for text in sample)
    path = folder / FILE
    if count < LEAST_WORDS or not path.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    unknown = _unknown(path)

    @functools.cache
    def unreadable(token: int) -> bool:
        return tokenizer.id_to_token(token) == unknown or CUT in tokenizer.decode([token])

    encoded = tokenizer.encode_batch(sample, add_special_tokens=False)
    tokens = [token for one in encoded for token in one.ids]
    return Spelling(count, len(tokens), sum(map(unreadable, tokens))) if tokens else None


def letters(text: str) -> str:
    """Words alone: runs of letters with their marks and apostrophes."""
    found = [" "]
    for character in text:
        kind = unicodedata.category(character)
        joined = found[-1] != " " and (kind in ("Mn", "Mc") or character in "'\u2019\u200c\u200d")
        found.append(character if kind[0] == "L" or joined else " ")
    return " ".join("".join(found).split())


def _unknown(path: Path) -> str | None:
    """The token for what a tokenizer cannot spell; None of one that can spell everything."""
    model: dict[str, Any] = json.loads(path.read_text("utf-8"))["model"]
    if model.get("unk_id") is not None:  # Unigram's vocabulary is a list of [token, score]
        return str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")
