"""What was measured of a run's result, what was not, and how to: for the terminal, page and card.

Values may come from a summary that somebody changed: what is no number is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from privsyn_flower.app.report.html.markup import interval, is_number, mapping, number, percent

INSPECT = (
    "`privsyn inspect RUN` compares the texts with private ones, where these may be read. What it "
    "finds is private: no report shows it, and `privsyn publish` takes none of it."
)
OUTSIDE = "measured with held-out text, not covered by epsilon"
ROWS = {  # key of a part of `quality` -> what it is
    "unknown_words": "words that neither public text nor a word list has",
    "repetitive": "texts that repeat themselves",
    "shared_runs": "runs of four words that another text has, too",
}


CLOSENESS = {  # of `evaluation.metrics` -> what it is
    "frechet": "Frechet distance", "mauve": "MAUVE", "precision": "precision", "recall": "recall",
}  # fmt: skip


class Checked(NamedTuple):
    """Lines of what was checked, and of what was not; both empty of a run without a result."""

    done: list[str]
    missing: list[str]


def quality_line(summary: Mapping[str, Any]) -> str:
    """The signals of a run's text in one line; "" where there are none."""
    found = mapping(summary.get("quality"))
    own, public = mapping(found.get("synthetic")), mapping(found.get("public"))
    parts = []
    for key, what in (("unknown_words", "of the words unknown"), ("repetitive", "repetitive")):
        if is_number(own.get(key)):
            beside = f" ({percent(public[key])} in public text)" if key in public else ""
            parts.append(f"{percent(own[key])} {what}{beside}")
    if not parts:
        return ""
    if is_number(found.get("copies")) and public:
        parts.append(f"{percent(found['copies'])} copies of public text")
    writer = mapping(found.get("writer"))
    by = f"; written by {_writer(writer)}" if writer else ""
    return f"{', '.join(parts)}{by}"


def quality_notes(summary: Mapping[str, Any]) -> list[str]:
    """What is wrong with a run's text, as far as `unusable` does not say it already."""
    told, known = mapping(summary.get("quality")).get("sentences"), summary.get("unusable")
    known = known if isinstance(known, list) else []
    return [str(one) for one in told if one not in known] if isinstance(told, list) else []


def text_lines(summary: Mapping[str, Any]) -> list[str]:
    """What is wrong with the text, then its signals."""
    return [*quality_notes(summary), *filter(None, [quality_line(summary)])]


def quality_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """(measure, of the synthetic text, of public text)."""
    found = mapping(summary.get("quality"))
    own, public = mapping(found.get("synthetic")), mapping(found.get("public"))
    if not own:
        return []
    pair = [own, public]
    rows = [[what, *(percent(part.get(key)) for part in pair)] for key, what in ROWS.items()]
    rows.append(["copies of a public text, word for word", percent(found.get("copies")), "-"])
    rows.append(
        ["words of a text: 5 %, median, 95 %", *(_list(part.get("words")) for part in pair)]
    )
    what = "distinct runs of one, two, three words, of all"
    rows.append([what, *(_list(part.get("distinct"), share=True) for part in pair)])
    if writer := mapping(found.get("writer")):
        rows.append(["written by", _writer(writer), "-"])
    return rows


def closeness_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """(text, its figures of CLOSENESS): of the result and what it stands beside."""
    texts = mapping(mapping(summary.get("benchmark")).get("closeness"))
    return [
        [str(name).replace("_", " "), *(interval(mapping(own).get(key)) for key in CLOSENESS)]
        for name, own in texts.items()
    ]


def _list(values: object, *, share: bool = False) -> str:
    if not isinstance(values, list):
        return "-"
    return " / ".join(percent(one) if share else number(one) for one in values)


def _writer(writer: Mapping[str, Any]) -> str:
    size = writer.get("parameters")
    told = f"{size / 1e6:,.1f} million" if is_number(size) else "an unknown number of"
    return f"{_base(writer.get('model'))} ({told} parameters)"


def _base(model: object) -> str:
    """A model's name; of a folder its last part, as places are not told."""
    name = str(model)
    local = name.startswith(("/", "~", ".")) or "\\" in name or name.count("/") > 1
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2] if local else name


def checked(summary: Mapping[str, Any]) -> Checked:
    """What the summary says of a finished run's checks."""
    if not summary:
        return Checked([], [])
    benchmark = mapping(summary.get("benchmark"))
    return Checked(list(_done(summary, benchmark)), list(_missing(summary, benchmark)))


def _done(summary: Mapping[str, Any], benchmark: Mapping[str, Any]) -> Iterator[str]:
    if summary.get("quality"):
        yield "the text by itself and beside public text: no private text was read for it"
    if mapping(summary.get("verdict")).get("signal"):
        yield "whether what was released can be told from noise"
    if any(summary.get(key) for key in ("measured", "evaluation", "evaluation_curve", "selection")):
        yield "models on the users' devices, in noisy releases that epsilon covers"
    if benchmark.get("accuracy"):
        yield f"what the result is worth to a model: accuracy, {OUTSIDE}"
    if benchmark.get("closeness") or benchmark.get("frechet"):
        yield f"how close the text comes to the users': {OUTSIDE}"
    if "private" in mapping(benchmark.get("near_duplicates")):
        yield f"how much text is a near copy of private text: shares alone, {OUTSIDE}"


def _missing(summary: Mapping[str, Any], benchmark: Mapping[str, Any]) -> Iterator[str]:
    writes = bool(summary.get("quality") or summary.get("synthetic_samples"))
    if not benchmark.get("accuracy"):
        yield "what the result is worth to a model of the users' text"
    if writes and not (benchmark.get("closeness") or benchmark.get("frechet")):
        yield "how close the text comes to the users' text"
    if writes and "private" not in mapping(benchmark.get("near_duplicates")):
        yield (
            "copies of private text: epsilon bounds what can be told of one user, and nobody has "
            "compared the texts"
        )
    if writes:
        yield "whether what the texts say is true or decent"
