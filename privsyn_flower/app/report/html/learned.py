"""What was learned: synthetic texts to browse, by topic or class, or the trained model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from privsyn_flower.app.report.html.charts import bars, lines
from privsyn_flower.app.report.html.markup import (
    Context,
    Figure,
    Table,
    axis_name,
    few,
    plain,
    spread,
)
from privsyn_flower.app.report.html.overview import guarantee, method_of, seeds_and_texts
from privsyn_flower.app.report.reading import RunFolder, first_texts
from privsyn_flower.app.report.summaries import is_number, mapping, number, percent
from privsyn_flower.common.units import units, unspaced, words
from privsyn_flower.runs import SEEDS

UNPROTECTED = "expand-private"  # made of the private text itself
REPEATS = "No privacy: these texts may repeat the users' own, word for word. Pass none of them on."
SHOWN = 600  # texts on the page
SHOWN_SEEDS = 12  # of most votes
BESIDE = {  # column of `side_by_side` -> what stands over it
    "public": "Public text", "seeds": "Seeds that the votes picked", "synthetic": "Synthetic text",
}  # fmt: skip
LONGEST = 1200  # characters of a text that are shown
COUNT_LIMIT = 20_000  # texts whose lengths and topics are counted
DOMAINS = 8  # of public text, those of most survivors
GROUPS = 20  # of the largest that are drawn
BINS = 16  # of the histogram of lengths
WORDS = 24  # frequent ones, of texts without topics
WORD = re.compile(r"[^\W\d_]{5,30}")

Row = Mapping[str, Any]


def learned(run: RunFolder) -> Context:
    """The result, as far as it is there."""
    summary = run.summary
    front, total = seeds_and_texts(run)
    return {
        "summary": summary,
        "beside": _beside(mapping(summary.get("side_by_side"))),
        "best": _best(mapping(summary.get("voted"))),
        "domains": _domains(run, mapping(summary.get("voted"))),
        "seeds": [_item(row) for row in first_texts(run.folder, SHOWN_SEEDS, SEEDS)],
        "texts": _texts(run, front, total) if total else None,
        "public": _public(mapping(summary["proximity"])) if "proximity" in summary else None,
    }


def _beside(columns: Mapping[str, Any]) -> list[tuple[str, list[dict[str, object]]]]:
    """(what the texts are, a few of them) for public text, seeds and what was written."""
    return [
        (title, [_item({"text": text}) for text in texts if isinstance(text, str)][:SHOWN_SEEDS])
        for name, title in BESIDE.items()
        if isinstance(texts := columns.get(name), list)
    ]


def _best(voted: Mapping[str, Any]) -> list[dict[str, object]]:
    return [
        _item({"text": row["text"], "label": f"{number(row.get('votes'))} votes"})
        for row in _mappings(voted.get("best"))[:SHOWN_SEEDS]
        if "text" in row
    ]


def _mappings(values: object) -> list[Mapping[str, Any]]:
    return [mapping(one) for one in values] if isinstance(values, list) else []


def _domains(run: RunFolder, voted: Mapping[str, Any]) -> Figure | None:
    """Shares of survivors by public domain and round."""
    rows = _mappings(voted.get("shares"))
    shares = {one.get("round"): mapping(one.get("shares")) for one in rows}
    last = next(reversed(shares.values()), {})
    names = sorted({name for own in shares.values() for name in own}, key=lambda n: -_of(last, n))
    names = names[:DOMAINS]
    if len(rows) < 2 or not names:
        return None
    titles = {name: axis_name(plain(name or "no public text"), 34) for name in names}
    data = [
        {"x": rnd, "value": _of(own, name), "series": titles[name]}
        for rnd, own in shares.items()
        for name in names
        if is_number(rnd)
    ]
    body = [
        [number(rnd) if rnd else "before", *(percent(_of(own, name)) for name in names)]
        for rnd, own in spread(list(shares.items()))
    ]
    title = "Where the votes went: survivors by domain of the public text"
    remark = f"From the released votes ({guarantee(run)}); at 0 the candidates before any vote."
    table = Table(f"Survivors{few(len(body), len(rows))}", ["round", *titles.values()], body)
    return Figure(title, remark, table, partial(lines, data, value="share of survivors"))


def _of(shares: Mapping[str, Any], name: str) -> float:
    value = shares.get(name)
    return float(value) if is_number(value) else 0.0


def _texts(run: RunFolder, front: int, total: int) -> Context:
    """The browser of texts, and what they are like."""
    rows = run.texts(COUNT_LIMIT, first=front)
    shown = [rows[n * len(rows) // SHOWN] for n in range(SHOWN)] if len(rows) > SHOWN else rows
    groups = Counter(name for name in map(_group, rows) if name)
    what = "topic" if any("topic" in row for row in rows) else "class"
    numbers = {name: place for place, (name, _) in enumerate(groups.most_common())}
    figures = [_by_group(run, groups, what, len(rows))] if groups else []
    return {
        "mark": REPEATS if method_of(run) == UNPROTECTED else "",
        "total": total,
        "front": front,
        "counted": len(rows),
        "figures": [*figures, *_lengths(run, rows, total)],
        "what": what,
        "groups": numbers,
        "words": [] if groups else _frequent(rows),
        "rows": [_item(row) | {"number": numbers.get(_group(row))} for row in shown],
    }


def _frequent(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """Words that tell texts without topics apart, and how many texts have each: the most frequent
    of five letters or more that fewer than a quarter have."""
    counts = Counter(word for row in rows for word in set(_words(str(row["text"]).lower())))
    rare = [(word, count) for word, count in counts.most_common() if count * 4 < len(rows)]
    return [(word, count) for word, count in rare[:WORDS] if count > 1]


def _words(text: str) -> list[str]:
    """Words of five letters or more; of two, of a script that is written without spaces."""
    return [one for one in words(text) if len(one) > 1] if unspaced(text) else WORD.findall(text)


def _group(row: Row) -> str:
    """What a text is listed under: its topic's keywords, or its class."""
    words = row.get("keywords")
    topic = ", ".join(map(str, words)) if isinstance(words, list) else ""
    label = row.get("label")
    named = topic or (f"topic {row['topic']}" if "topic" in row else "")
    return axis_name(plain(": ".join(str(one) for one in (label, named) if one)))


def _by_group(run: RunFolder, groups: Counter[str], what: str, counted: int) -> Figure:
    shares = _released_shares(run)
    most = groups.most_common(GROUPS)
    rows = [
        [name, number(count), f"{count / counted:.1%}", shares.get(name, "-")]
        for name, count in most
    ]
    headings = [what, "texts", "of all", "share released"]
    if not shares:
        headings, rows = headings[:3], [row[:3] for row in rows]
    title = f"Texts by {what}: the {len(most)} largest of {len(groups)}"
    data = [{"name": axis_name(name, 34), "value": count} for name, count in most]
    listing = Table(title, headings, rows)
    return Figure(title, guarantee(run), listing, partial(bars, data, value="texts"))


def _released_shares(run: RunFolder) -> dict[str, str]:
    """The noisy shares of the largest topics, by their keywords."""
    largest = mapping(run.summary.get("topics")).get("largest")
    found = [mapping(one) for one in largest] if isinstance(largest, list) else []
    return {
        _group({"keywords": one.get("keywords"), "topic": ""}): f"{one['share']:.1%}"
        for one in found
        if is_number(one.get("share"))
    }


def _lengths(run: RunFolder, rows: Sequence[Row], total: int) -> list[Figure]:
    words = sorted(len(units(str(row["text"]))) for row in rows)
    if not words:
        return []
    # The longest hundredth goes into the last bin, or it would flatten the rest.
    top = max(1, words[min(len(words) - 1, int(0.99 * len(words)))])
    step = max(1, math.ceil((top + 1) / BINS))
    bins = Counter(min(length, top) // step for length in words)
    names = [(first, first + step - 1) for first in range(0, top + 1, step)]
    data = []
    for place, (first, last) in enumerate(names):
        open_end = place == len(names) - 1 and words[-1] > last
        name = f"{first}+" if open_end else str(first) if step == 1 else f"{first}\u2013{last}"
        data.append({"name": name, "value": bins[place]})
    of = f" of {number(len(words))} texts" if len(words) < total else ""
    middle = words[len(words) // 2]
    title = f"Words of a text{of}: {middle} in the middle, {words[0]} to {words[-1]}"
    body = [[str(row["name"]), number(row["value"])] for row in data]
    listing = Table("Texts by their number of words", ["words", "texts"], body)
    draw = partial(bars, data, value="texts", label="words", upright=True)
    return [Figure(title, guarantee(run), listing, draw)]


def _item(row: Row) -> dict[str, object]:
    text = str(row["text"])
    return {"group": _group(row), "text": text[:LONGEST], "left": max(0, len(text) - LONGEST)}


def _public(found: Mapping[str, Any]) -> Table:
    rows = [
        [name, number(mapping(one).get("kept")), number(mapping(one).get("of"))]
        for name, one in {"all": found, **mapping(found.get("by"))}.items()
    ]
    return Table("Public texts that the trained model keeps", ["public text", "kept", "of"], rows)
