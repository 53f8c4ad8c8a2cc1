"""What was learned: synthetic texts to browse, by topic or class, or the trained model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from privsyn_flower.app.report.html.charts import bars, figure
from privsyn_flower.app.report.html.markup import (
    Html,
    element,
    facts,
    is_number,
    joined,
    number,
    plain,
    size,
    table,
)
from privsyn_flower.app.report.html.overview import method_of
from privsyn_flower.app.report.html.parts import (
    Part,
    guarantee,
    mapping,
    paragraph,
    small,
    stripped,
)
from privsyn_flower.app.report.reading import RunFolder, first_texts
from privsyn_flower.runs import SEEDS
from privsyn_flower.units import units, unspaced, words

UNPROTECTED = "expand-private"  # made of the private text itself
REPEATS = "No privacy: these texts may repeat the users' own, word for word. Pass none of them on."
SHOWN = 600  # texts on the page
SHOWN_SEEDS = 12  # of most votes
LONGEST = 1200  # characters of a text that are shown
COUNTED = 20_000  # texts whose lengths and topics are counted
GROUPS = 20  # of the largest that are drawn
BINS = 16  # of the histogram of lengths
WORDS = 24  # frequent ones, of texts without topics
WORD = re.compile(r"[^\W\d_]{5,30}")

Row = Mapping[str, Any]


def learned(run: RunFolder) -> Part:
    """The result, as far as it is there."""
    summary = run.summary or {}
    total = run.text_count()
    body = [_seeds(run)]
    if "parameters" in summary:
        told = f"A trained model, of {number(summary['parameters'])} trainable parameters"
        body.append(paragraph(f"{told}, in model/ of the run folder."))
    if total and method_of(run) == UNPROTECTED:
        mark = element("p", REPEATS, class_="mark")
        body.append(element("div", mark, _texts(run, total), class_="outside"))
    elif total:
        body.append(_texts(run, total))
    if "proximity" in summary:
        body.append(_kept(mapping(summary["proximity"])))
    if not any(body):
        measured = "measured" in summary
        nothing = "This run measured given models and made none." if measured else "Nothing yet."
        body.append(paragraph(nothing))
    return Part("learned", "What was learned", joined(body))


def _seeds(run: RunFolder) -> Html:
    """What the users' votes picked, before anything is written of it."""
    rows = first_texts(run.folder, SHOWN_SEEDS, SEEDS)
    if not rows:
        return Html()
    items = [element("li", *_item(row), dir="auto") for row in rows]
    title = element("h3", "What the users' votes picked")
    told = paragraph(f"Candidates of most noisy votes, in {SEEDS}; no user's own text.")
    return joined([title, told, element("ol", *items, class_="texts")])


def _texts(run: RunFolder, total: int) -> Html:
    """The browser of texts, and what they are like."""
    rows = run.texts(COUNTED)
    shown_rows = [rows[n * len(rows) // SHOWN] for n in range(SHOWN)] if len(rows) > SHOWN else rows
    names = [_group(row) for row in rows]
    groups = Counter(name for name in names if name)
    told = f"{number(total)} synthetic texts, in synthetic.jsonl."
    if len(shown_rows) < total:
        told += f" {number(len(shown_rows))} of them stand here, evenly spread over the file."
    body = [paragraph(told)]
    if groups:
        body.append(_by_group(run, groups, _what(rows), len(rows)))
    words = [] if groups else _frequent(rows)
    body += [
        _lengths(run, rows, total),
        _browser(shown_rows, groups, _what(rows), words, len(rows)),
    ]
    return joined(body)


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
    return stripped(plain(": ".join(str(one) for one in (label, named) if one)))


def _what(rows: Sequence[Row]) -> str:
    return "topic" if any("topic" in row for row in rows) else "class"


def _by_group(run: RunFolder, groups: Counter[str], what: str, counted: int) -> Html:
    """How many texts each topic or class has."""
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
    data = [{"name": stripped(name, 34), "value": count} for name, count in most]
    listing = table(title, headings, rows)
    return figure(title, guarantee(run), listing, lambda: bars(data, value="texts"))


def _released_shares(run: RunFolder) -> dict[str, str]:
    """The noisy shares of the largest topics, by their keywords."""
    largest = mapping((run.summary or {}).get("topics")).get("largest")
    found = [mapping(one) for one in largest] if isinstance(largest, list) else []
    return {
        _group({"keywords": one.get("keywords"), "topic": ""}): f"{one['share']:.1%}"
        for one in found
        if is_number(one.get("share"))
    }


def _lengths(run: RunFolder, rows: Sequence[Row], total: int) -> Html:
    """A histogram of the texts' words."""
    words = sorted(len(units(str(row["text"]))) for row in rows)
    if not words:
        return Html()
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
    listing = table("Texts by their number of words", ["words", "texts"], body)
    draw = lambda: bars(data, value="texts", label="words", upright=True)  # noqa: E731
    return figure(title, guarantee(run), listing, draw)


def _browser(
    rows: Sequence[Row],
    groups: Counter[str],
    what: str,
    words: list[tuple[str, int]],
    counted: int,
) -> Html:
    """The texts themselves, to search; without JavaScript, a list to scroll."""
    numbers = {name: str(place) for place, (name, _) in enumerate(groups.most_common())}
    options = [element("option", f"every {what}", value="")]
    options += [element("option", name, value=place) for name, place in numbers.items()]
    search = [
        element("label", "Search", for_="search"),
        element("input", id="search", type="search", autocomplete="off", spellcheck="false"),
    ]
    if groups:
        search.append(element("label", f"Of {what}", for_="group"))
        search.append(element("select", *options, id="group"))
    items = [
        element("li", *_item(row), data_group=numbers.get(_group(row)), dir="auto") for row in rows
    ]
    return joined(
        [
            element("h3", "Synthetic texts"),
            element("div", *search, class_="controls", role="search"),
            _choices(words, counted),
            element("p", "", id="found", role="status"),
            element(
                "ol", *items, class_="texts", id="texts", tabindex=0, aria_label="Synthetic texts"
            ),
            element("button", "Show more", id="more", type="button", hidden=True),
        ]
    )


def _choices(words: list[tuple[str, int]], counted: int) -> Html:
    """Frequent words, each to be searched for."""
    if not words:
        return Html()
    buttons = [
        element("button", f"{word} ({number(count)})", type="button", data_word=word)
        for word, count in words
    ]
    title = element(
        "p", f"Frequent words, and how many of {number(counted)} texts have them:", class_="remark"
    )
    return joined([title, element("p", *buttons, class_="words")])


def _item(row: Row) -> list[Html]:
    text, name = str(row["text"]), _group(row)
    left = len(text) - LONGEST
    parts = [element("span", name, class_="tag")] if name else []
    parts.append(element("span", text[:LONGEST], class_="text"))
    if left > 0:
        parts.append(element("span", f" \u2026 {number(left)} more characters", class_="remark"))
    return parts


def _kept(found: Mapping[str, Any]) -> Html:
    """Public text that the trained model keeps."""
    by = found.get("by")
    rows = [
        [name, number(mapping(one).get("kept")), number(mapping(one).get("of"))]
        for name, one in {"all": found, **mapping(by)}.items()
    ]
    title = "Public texts that the trained model keeps"
    share = mapping(found.get("minority_share"))
    told = facts(
        [
            ("kept", size(found.get("bytes_kept"))),
            ("of", size(found.get("bytes_of"))),
            ("minority's share before", _percent(share.get("before"))),
            ("minority's share after", _percent(share.get("after"))),
        ]
    )
    carried = small("Public text that the trained model chose carries the epsilon of the training.")
    listing = table(title, ["public text", "kept", "of"], rows)
    return joined([element("h3", title), told, listing, carried])


def _percent(value: object) -> str | None:
    return f"{value:.1%}" if is_number(value) else None
