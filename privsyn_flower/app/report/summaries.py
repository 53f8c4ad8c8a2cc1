"""The summary of a finished run (summary.json): read, and what is said of it everywhere, of what
was checked, too: in the terminal, on the page and on a card.

It may have been written by another version, or changed by somebody: what is no number is shown as
it is or left out, and never taken for one.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from privsyn_flower.privacy.wording import at_most

Summary = Mapping[str, Any]

RESULTS = ("synthetic", "trained")  # the run's own result among the benchmark's names
DISTRIBUTED = "Noise of the nodes under secure aggregation: nobody has a sum without noise"
TRUSTED = "A trusted aggregator: it has sums without the guaranteed noise, or single answers"
NO_QUERIES = "Public text alone: nobody was asked"
LOCAL = "Local privacy: the texts that leave the devices are noisy themselves"
NONE = "No privacy is claimed"
# How a threat model begins -> its table, in the order of the tables.
TRUSTS = {
    "honest-but-curious": DISTRIBUTED,
    "trusted aggregator": TRUSTED,
    "local": LOCAL,
    "nobody was asked": NO_QUERIES,
    "none": NONE,
}


DRAW = "these intervals are over held-out users: they leave out the draw of the noise"
DROWNED_DRAW = ", which drowned the users' answers, so another draw may come out otherwise"


class ReportError(ValueError):
    """A folder is no finished run; the text says which and why."""


def read_summary(folder: Path) -> Summary:
    """The summary of a finished run. Raises ReportError, which says what to do about a damaged
    one."""
    path = folder / "summary.json" if folder.is_dir() else folder
    again = ""
    if path.name == "summary.json":
        again = f"; delete it, and `privsyn run --resume {path.parent}` writes it again"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path} is not the summary of a finished run: {error}") from None
    except ValueError as error:
        raise ReportError(f"{path} is damaged ({error}){again}") from None
    if not isinstance(found, dict) or not {"method", "epsilon", "threat_model"} <= set(found):
        raise ReportError(
            f"{path} is not the summary of a run (method, epsilon, threat_model){again}"
        )
    return found


def read_named(place: Path) -> Summary:
    """`read_summary`, with the run's name (`run`) and its seed (None where nothing says it)."""
    summary = read_summary(place)
    own = place if place.is_dir() else place.parent
    alone = not place.is_dir() and place.name != "summary.json"  # a summary that was put elsewhere
    name = place.stem if alone else own.absolute().name
    return {"seed": None if alone else _seed(own / "config.toml"), **summary, "run": name}


def _seed(config: Path) -> int | None:
    try:
        seed = tomllib.loads(config.read_text(encoding="utf-8")).get("seed")
    except (OSError, ValueError):
        return None
    return seed if isinstance(seed, int) else None


def claim(summary: Summary) -> Iterator[tuple[str, str]]:
    """The run's sentence, then whether the answers can be told from their noise."""
    yield "privacy", str(summary.get("privacy_short", summary["privacy"]))
    yield from (("verdict", line) for line in summary.get("verdict", {}).get("sentences", []))


def trust_of(summary: Summary) -> str:
    """The table that a run belongs to, by the threat model that it states."""
    model = str(summary["threat_model"])
    return next((title for begin, title in TRUSTS.items() if model.startswith(begin)), NONE)


def unusable_lines(summary: Summary) -> list[str]:
    """Why a result is of no use, before anything else is said of it."""
    reasons = summary.get("unusable")
    return [f"NOT USABLE: {why}" for why in reasons] if isinstance(reasons, list) else []


def verdict_lines(summary: Mapping[str, Any]) -> list[str]:
    """What the run came to; nothing of runs of earlier versions."""
    lines = [f"verdict: {one}" for one in summary.get("verdict", {}).get("sentences", [])]
    lines += [f"benchmark, not covered by epsilon: {one}" for one in benchmark_lines(summary)]
    return lines + [f"note: {one}" for one in summary.get("notes", [])]


def benchmark_lines(summary: Mapping[str, Any]) -> list[str]:
    """The benchmark's comparisons, and what their intervals leave out."""
    found = (summary.get("benchmark") or {}).get("verdict")
    if not isinstance(found, list) or not found:
        return []
    drowned = (summary.get("verdict") or {}).get("signal") == "drowned"
    return [*map(str, found), DRAW + DROWNED_DRAW * drowned]


def epsilon_of(summary: Summary) -> str:
    """In words, rounded up; JSON has no infinity, so null is that."""
    value = summary["epsilon"]
    return at_most(math.inf if value is None else value)


# What was checked -------------------------------------------------------------------------


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
    count = writer.get("parameters")
    told = f"{count / 1e6:,.1f} million" if is_number(count) else "an unknown number of"
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


# Values -----------------------------------------------------------------------------------


def mapping(value: object) -> Mapping[str, Any]:
    """A JSON object, {} in the place of anything else."""
    return value if isinstance(value, Mapping) else {}


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_triple(values: object) -> TypeGuard[Sequence[float]]:
    """Whether a JSON value is [value, low, high]."""
    return isinstance(values, list | tuple) and len(values) == 3 and all(map(is_number, values))


def number(value: object, form: str = ",.4g") -> str:
    """A number in the given form; a dash for None, and other values as they are."""
    if value is None:
        return "-"
    if not is_number(value):
        return str(value)
    if form == ",.4g" and float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return format(value, form)


def percent(value: object) -> str:
    """A share in words."""
    return f"{value:.1%}" if is_number(value) else number(value)


def size(value: object) -> str:
    """Bytes in words."""
    if not is_number(value):
        return number(value)
    amount = float(value)
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(amount) >= scale:
            return f"{amount / scale:.3g} {unit}"
    return f"{amount:,.0f} bytes"


def seconds(value: object) -> str:
    """A time in words."""
    if not is_number(value):
        return number(value)
    amount = float(value)
    if amount >= 5400:
        return f"{amount / 3600:.1f} h"
    if amount >= 90:
        return f"{amount / 60:.1f} min"
    return f"{amount:.3g} s"


def interval(values: object, *, sign: bool = False) -> str:
    """[value, low, high] as a figure with the ends of its interval, alone where they are missing; a
    dash where it is."""
    form = "+.4f" if sign else ".4f"
    if not is_triple(values):
        return number(values[0], form) if isinstance(values, list) else number(values)
    value, low, high = (format(one, form) for one in values)
    return f"{value} [{low}, {high}]"


def ends(figures: Mapping[str, Any], what: str) -> list[Any]:
    """[value, low, high] of a model's measure, None in the place of what is not there."""
    return [figures.get(what), figures.get(f"{what}_low"), figures.get(f"{what}_high")]


def measured_cells(figures: Mapping[str, Any], gained: object) -> list[str]:
    """Accuracy, accuracy gained ([value, low, high] or None) and loss of a model."""
    return [
        interval(ends(figures, "accuracy")),
        interval(gained, sign=True),
        interval(ends(figures, "loss")),
    ]
