"""The units of a text: what is counted, cut and compared as words, in any script.

A text is split at white space. A word in a script that is written without spaces is cut further by
the dictionaries of ICU (`icu4py`), and so is a run of emoji. A mark stays with the unit before it.
Other texts, English among them, never load ICU.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from itertools import chain

from privsyn_flower.common.files import DataError

VERSION = 1  # raise it when a text may be cut elsewhere: prepared folders are then made anew

# Without spaces: Thai, Lao, Tibetan, Myanmar, Ethiopic's word space, Khmer, kana, bopomofo, Han.
_DICTIONARY = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1361\u1780-\u17ff\u19e0-\u19ff\u3005-\u3007"
    "\u3021-\u3029\u3031-\u3035\u3038-\u303b\u3041-\u312f\u3190-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U0001aff0-\U0001b16f"
    "\U00020000-\U0003ffff"
)
# Without spaces and without a dictionary, cut into syllables: Tai Le, New Tai Lue, Tai Tham,
# Balinese, Yi, Javanese, Tai Viet.
_SYLLABLES = "\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\ua000-\ua4cf\ua980-\ua9df\uaa80-\uaadf"
_EMOJI = "\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_JOINING = "\u200d\u20e3\ufe0f\U000e0020-\U000e007f"  # what emoji are made of, besides
_LETTERS = re.compile(f"[{_DICTIONARY}{_SYLLABLES}]")
_SYLLABLE = re.compile(f"[{_SYLLABLES}]")
_SPECIAL = re.compile(f"[{_DICTIONARY}{_SYLLABLES}{_EMOJI}]")
_PICTURES = re.compile(f"(?:[0-9#*]\ufe0f?\u20e3|[{_EMOJI}{_JOINING}])+")
_ASCII_WORD = re.compile(r"[a-z0-9]+")


def units(text: str) -> list[str]:
    """A text -> its units in order: `text.split()`, cut further where a script has no spaces.

    Joined, they are the text without its white space. Raises DataError where such a script comes
    and icu4py is not installed.
    """
    return _parts(text)[0]


def pieces(text: str, size: int) -> list[str]:
    """A text on one line, in consecutive pieces of `size` units; the last may have fewer."""
    every, following = _parts(text)
    starts = range(0, len(every), size)
    if not following:
        return [" ".join(every[start : start + size]) for start in starts]
    each = [unit + after for unit, after in zip(every, following, strict=True)]
    return ["".join(each[start : start + size]).rstrip() for start in starts]


def beginning(text: str, size: int) -> str:
    """The first `size` units of a text, on one line; all of it for 0."""
    return next(iter(pieces(text, size)), "") if size else " ".join(text.split())


def spaced(text: str) -> str:
    """The text with a space between units that have none, for readers that know words by spaces."""
    every, following = _parts(text)
    return " ".join(every) if following else text


def words(text: str) -> list[str]:
    """The units of a text as they are compared: lower-case letters, digits and their marks, without
    punctuation, which ends a word. An emoji is a word, and so is each unit of a text without any.
    """
    lowered = text.lower()
    if lowered.isascii():
        return _ASCII_WORD.findall(lowered) or lowered.split()
    found = _word().findall(spaced(lowered))
    return found or units(lowered)


def unspaced(text: str) -> bool:
    """Whether a text has letters of a script written without spaces."""
    return not text.isascii() and _LETTERS.search(text) is not None


def _parts(text: str) -> tuple[list[str], list[str]]:
    """The units, and the space that follows each on one line; no spaces: one after every unit."""
    every = text.split()
    if text.isascii() or not _SPECIAL.search(text):
        return every, []
    found, following = list[str](), list[str]()
    for word in every:
        segments = _segments(word)
        found += segments
        following += [""] * (len(segments) - 1) + [" "]
    return found, following


def _segments(word: str) -> list[str]:
    """A word between spaces -> its units; joined, they are the word."""
    if len(word) == 1 or not (unspaced(word) or _PICTURES.fullmatch(word)):
        return [word]
    found: list[str] = []
    opening, start = "", 0  # brackets go with what they open
    for length in map(len, _broken(word)):
        segment, start = word[start : start + length], start + length
        kinds = [unicodedata.category(character)[0] for character in segment]
        if {unicodedata.category(character) for character in segment} <= {"Ps", "Pi"}:
            opening += segment
        elif found and not opening and (kinds[0] == "M" or set(kinds) <= set("PMCZ")):
            found[-1] += segment  # punctuation, and marks that no dictionary may cut off
        else:
            found.append(opening + segment)
            opening = ""
    if opening:
        found[-1:] = ["".join([*found[-1:], opening])]
    return found


def _broken(word: str) -> list[str]:
    """ICU's segments. Half a pair of surrogates, which it does not take, has the same length."""
    try:
        from icu4py.breakers import CharacterBreaker, WordBreaker
    except ImportError:
        raise DataError(
            "a text in a script without spaces between words, or of emoji, is cut by ICU, which is "
            "not installed here: pip install icu4py"
        ) from None
    breaker = CharacterBreaker if _SYLLABLE.search(word) else WordBreaker
    return list(breaker(word.encode("utf-8", "replace").decode("utf-8"), "en"))


@functools.cache  # a few milliseconds, for texts that are not ASCII alone
def marks() -> str:
    """The combining marks, which Python's `\\w` leaves out, as the inside of a character class."""
    ranges: list[list[int]] = []
    for code in chain(range(0x300, 0x1F000), range(0xE0100, 0xE01F0)):
        if unicodedata.category(chr(code))[0] == "M":
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges) + "\u200c\u200d"


@functools.cache
def _word() -> re.Pattern[str]:
    """Letters and digits with their marks, or one emoji."""
    flag = "[\U0001f1e6-\U0001f1ff]{2}"
    parts = rf"\u200d[{_EMOJI}]|[{_JOINING}\U0001f3fb-\U0001f3ff]"
    return re.compile(rf"[^\W_](?:[^\W_]|[{marks()}])*|{flag}|[{_EMOJI}](?:{parts})*")
