"""Replay: what only one private user wrote, and a synthetic text holds: addresses, numbers, names.

A value counts when it stands in exactly one private user's texts and nowhere in the run's public
text. Other people's text has such values, too, which a synthetic text holds by chance: held-out
users' say how many to expect.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from privsyn_flower.app.inspect.texts import Texts, Users
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.terminal import one_line

KINDS = ("e-mail", "url", "phone", "number", "name")
LEVEL = 0.05  # p-value above which chance explains how many names are found
SHOWN = 5  # values of a kind that are quoted
SEVERAL = -1  # in the place of a user: more than one

Value = tuple[str, str]  # kind, and the value in the form in which it is compared

# Every repetition is bounded, or stands before what it cannot match itself: time is linear.
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_URL = re.compile(r"(?:https?://|www\.)[^\s<>\"'\\]{3,2000}", re.IGNORECASE)
_DIGITS = re.compile(r"\d{4,}")
# A digit after a digit with at most two separators between: a number that is written in groups.
_GROUPED = re.compile(r"\d(?:[ ().\-/]{0,2}\d){6,18}")
_WORD = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*")


def values_of(text: str) -> Iterator[Value]:
    """E-mail addresses, URLs, phone numbers and digits of a text, in the form that is compared."""
    plain = unicodedata.normalize("NFKC", text)
    yield from (("e-mail", found.lower()) for found in _MAIL.findall(plain))
    yield from (("url", found.rstrip(".,;:!?)]}").lower()) for found in _URL.findall(plain))
    yield from (("number", found) for found in _DIGITS.findall(plain))
    for found in _GROUPED.findall(plain):
        digits = "".join(filter(str.isdigit, found))
        if digits != found or 7 <= len(digits) <= 15:  # E.164: no more digits than that
            yield "phone", digits


def names_of(text: str, ordinary: set[str]) -> Iterator[Value]:
    """Capitalised words, and two in a row, that are not ordinary (`ordinary_words`)."""
    before, end = "", -2
    for found in _WORD.finditer(_plain(text)):
        word = found[0]
        name = word[0].isupper() and not word.isupper() and word.lower() not in ordinary
        if name:
            yield "name", word
            if before and found.start() == end + 1:
                yield "name", f"{before} {word}"
        before, end = (word, found.end()) if name else ("", -2)


def ordinary_words(public: Iterable[str], people: Iterable[Iterable[str]]) -> set[str]:
    """Words that public text, or more than one person, has without a capital. people: texts of
    each."""
    found = set(_small(public))
    seen = set[str]()
    for own in people:
        small = _small(own)
        found |= small & seen
        seen |= small
    return found


def _small(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in _WORD.findall(_plain(text)) if not word[0].isupper()}


def _plain(text: str) -> str:
    """A text without addresses, in which names stand without capitals."""
    return _URL.sub(" / ", _MAIL.sub(" / ", unicodedata.normalize("NFKC", text)))


class Reader:
    """Texts -> their values, with what is ordinary in all of them. known: those of public text."""

    def __init__(self, texts: Texts) -> None:
        people = [*texts.private.values(), *texts.held_out.values()]
        self.ordinary = ordinary_words(texts.public, people)
        self.known = self.of_all(texts.public) | _names_anyhow(texts.public)

    def of(self, text: str) -> set[Value]:
        return {*values_of(text), *names_of(text, self.ordinary)}

    def of_all(self, texts: Iterable[str]) -> set[Value]:
        return set[Value]().union(*map(self.of, texts))

    def owners(self, users: Users) -> dict[Value, int]:
        """Value -> the number of the only user who has it, or SEVERAL."""
        found: dict[Value, int] = {}
        for number, own in enumerate(users.values()):
            for value in self.of_all(own):
                found[value] = SEVERAL if value in found else number
        return found


def measure(texts: Texts, progress: Progress = silent) -> dict[str, Any]:
    """By kind: candidates, hits, texts and users; and what chance would do, from held-out users.

    "compared": candidates that no held-out user has, "compared_hits" those of them that are found,
    and "expected" how many would be if they were found as often as held-out users' candidates that
    no private user has; "p_value": of so many more by chance (Fisher's exact test, None without any
    to compare). "rows", "seeds": synthetic texts, and seeds, with a hit, by number from 0; those of
    names only where chance does not explain how many there are, because text is full of them.
    "found": each value, with the texts and the seeds that hold it. PRIVATE.
    """
    reader = Reader(texts)
    rows: dict[Value, list[int]] = {}
    for row, text in enumerate(texts.published):
        for value in reader.of(text):
            rows.setdefault(value, []).append(row)
    private, others = (reader.owners(users) for users in (texts.private, texts.held_out))
    mine, theirs = (_candidates(owners, reader.known) for owners in (private, others))
    found = {value: rows[value] for value in sorted(mine) if value in rows}
    names, first_seed = list(texts.private), len(texts.synthetic)
    kinds: dict[str, dict[str, Any]] = {
        kind: _figures(kind, found, private)
        | (_chance(kind, mine - others.keys(), theirs - private.keys(), rows)
           if texts.held_out else {})
        | {"candidates": sum(value[0] == kind for value in mine)}
        for kind in KINDS
    }  # fmt: skip
    by_chance = {"name"} if (kinds["name"].get("p_value") or 0.0) > LEVEL else set[str]()
    told = {row for value, own in found.items() if value[0] not in by_chance for row in own}
    return {
        "kinds": kinds,
        "rows": sorted(row for row in told if row < first_seed),
        "seeds": sorted(row - first_seed for row in told if row >= first_seed),
        "users": len({private[value] for value in found}),
        "found": [
            {
                "kind": value[0],
                "value": value[1],
                "user": names[private[value]],
                "rows": [row for row in places if row < first_seed],
                "seeds": [row - first_seed for row in places if row >= first_seed],
            }
            for value, places in found.items()
        ],
    }  # fmt: skip


def _names_anyhow(public: Sequence[str]) -> set[Value]:
    """Words of public text as names, however they are written there: "NIGEL" knows "Nigel"."""
    return {("name", word.capitalize()) for text in public for word in _WORD.findall(_plain(text))}


def _candidates(owners: Mapping[Value, int], known: set[Value]) -> set[Value]:
    return {value for value, user in owners.items() if user != SEVERAL and value not in known}


def _figures(
    kind: str, found: Mapping[Value, Sequence[int]], owners: Mapping[Value, int]
) -> dict[str, Any]:
    hits = [value for value in found if value[0] == kind]
    return {
        "hits": len(hits),
        "texts": len({row for value in hits for row in found[value]}),
        "users": len({owners[value] for value in hits}),
    }


def _chance(
    kind: str, mine: set[Value], theirs: set[Value], rows: Mapping[Value, Sequence[int]]
) -> dict[str, Any]:
    """The hits among both sides' candidates, none of which the other side has."""
    from scipy.stats import hypergeom

    sides = [[value in rows for value in side if value[0] == kind] for side in (mine, theirs)]
    (own, hits), (others, by_chance) = ((len(side), sum(side)) for side in sides)
    return {
        "compared": own,
        "compared_hits": hits,
        "held_out_candidates": others,
        "held_out_hits": by_chance,
        "expected": round(own * by_chance / others, 2) if others else None,
        "p_value": float(hypergeom.sf(hits - 1, own + others, hits + by_chance, own))
        if others and own
        else None,
    }


def _place(found: Mapping[str, Any]) -> str:
    """The first text, or where there is none the first seed, that holds a value."""
    kind, rows = ("text", found["rows"]) if found["rows"] else ("seed", found["seeds"])
    return f"{kind} {rows[0] + 1}"


def described(figures: dict[str, Any]) -> list[str]:
    """Lines for the terminal; PRIVATE."""
    total = len(figures["found"])
    lines = [
        f"replayed: {total:,} values that one private user alone has, and no public text, of "
        f"{figures['users']:,} users; {len(figures['rows']):,} synthetic texts and "
        f"{len(figures['seeds']):,} seeds with more than chance explains:"
    ]
    for kind, own in figures["kinds"].items():
        line = f"  {kind}: {own['hits']:,} of {own['candidates']:,}"
        if own["hits"]:
            line += f" ({own['users']:,} users, {own['texts']:,} texts)"
        if own.get("compared"):
            chance = own["expected"]
            line += (
                f"; of the {own['compared']:,} that no held-out user has {own['compared_hits']:,}"
            )
            line += (
                "" if chance is None else f", by chance {chance:,.2f} (p = {own['p_value']:.2g})"
            )
            line += ", and held-out users have none to compare" if chance is None else ""
        lines.append(line)
        values = [one for one in figures["found"] if one["kind"] == kind]
        lines += [f"    {one_line(one['value'], 60)} ({_place(one)})" for one in values[:SHOWN]]
        if len(values) > SHOWN:
            lines.append(f"    and {len(values) - SHOWN:,} more, in the file")
    return lines
