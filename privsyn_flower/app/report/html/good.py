"""How good: what nodes measured in paid releases, and what a benchmark measured beside epsilon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from privsyn_flower.app.report.html.charts import bars, by_round, intervals, lines, spanned
from privsyn_flower.app.report.html.markup import Context, Figure, Table, few, spread
from privsyn_flower.app.report.html.overview import guarantee, why_unclaimed
from privsyn_flower.app.report.reading import RunFolder
from privsyn_flower.app.report.summaries import (
    CLOSENESS,
    INSPECT,
    RESULTS,
    benchmark_lines,
    checked,
    closeness_rows,
    ends,
    interval,
    is_number,
    is_triple,
    mapping,
    measured_cells,
    number,
    quality_rows,
)
from privsyn_flower.app.report.tables import NOISE, interval_note

MEASURES = {"accuracy": "Accuracy", "macro_f1": "Macro-F1", "loss": "Loss (nats a token)"}
OVER_USERS = "95 % intervals over held-out users, not over the draw of the noise"


def good(run: RunFolder) -> Context:
    """The verdict, paid evaluations, and the benchmark, each marked by what covers it."""
    sentences = mapping(run.summary.get("verdict")).get("sentences")
    return {
        "sentences": sentences if isinstance(sentences, list) else [],
        "quality": _quality(run),
        "signal": _signal(run),
        "paid": list(_paid(run)),
        "benchmark": _benchmark(run) if run.benchmark else None,
        "unfinished": "unfinished" in run.summary,
    }


def what_was_checked(run: RunFolder) -> Context:
    """What was measured, what was not, and how to."""
    return {**checked(run.summary)._asdict(), "how": INSPECT if run.text_count() else ""}


def _quality(run: RunFolder) -> Figure | None:
    found, rows = mapping(run.summary.get("quality")), quality_rows(run.summary)
    if not rows:
        return None
    listed = found.get("word_list")
    known = f"Word list: {listed}." if listed else "No word list fits: public text has the words."
    title = f"Quality of {number(found.get('texts'))} texts, by public things alone"
    remark = f"Post-processing ({guarantee(run)}): no private text was read. {known}"
    beside = f"{number(found.get('public_texts'))} public texts"
    return Figure(title, remark, Table("Quality", ["measure", "synthetic", beside], rows))


def _signal(run: RunFolder) -> Figure | None:
    """The signal over the noise, by round; from the releases alone."""
    squares = by_round(run.metrics, "excess", "signal")
    data = [{**row, "value": max(0.0, float(row["value"])) ** 0.5} for row in squares]
    if len(data) < 2:
        return None
    title = "Norm of what the answers say, over the noise's"
    rows = [[number(one["x"]), number(one["value"], ".3f")] for one in spread(data)]
    listing = Table(f"By round{few(len(rows), len(data))}", ["round", "signal / noise"], rows)
    remark = f"From the released sums ({guarantee(run)}). At 1 the two are as large."
    return Figure(title, remark, listing, partial(lines, data, value="signal / noise"))


# Paid releases of the nodes ------------------------------------------------------------------


def _paid(run: RunFolder) -> Iterator[Figure]:
    points = run.summary.get("evaluation_curve")
    if isinstance(points, list) and points:
        yield _by_round(run, points)
    for name, key in (("measured", "models"), ("evaluation", "estimates")):
        found = mapping(run.summary.get(name))
        if models := mapping(found.get(key)):
            yield _given(run, models, found)


def _by_round(run: RunFolder, points: Sequence[Any]) -> Figure:
    found = [mapping(one) for one in points]
    data = [
        spanned(around, x=one["round"], series="accuracy")
        for one in found
        if is_number(one.get("round")) and is_triple(around := ends(one, "accuracy"))
    ]
    rows = []
    for one in spread(found):
        accuracy, *rest = measured_cells(one, one.get("accuracy_gained"))
        rows.append([number(one.get("round")), one.get("failed") or accuracy, *rest])
    title = "Accuracy on users' text by round"
    headings = ["round", "accuracy", "gained over the start", "loss"]
    listing = Table(f"Paid evaluations{few(len(rows), len(found))}", headings, rows)
    draw = partial(lines, data, value="accuracy", zero=False) if data else None
    return Figure(title, f"{guarantee(run)}. {NOISE}", listing, draw)


def _given(run: RunFolder, models: Mapping[str, Any], found: Mapping[str, Any]) -> Figure:
    """Models of one release beside each other; of a training, its start and its end."""
    gained = mapping(found.get("gained"))
    rows, data = [], []
    for name, one in models.items():
        own = mapping(gained.get(name)) or (found if name == "final" else {})
        gain = own.get("accuracy_gained")
        rows.append([name, *measured_cells(mapping(one), gain)])
        if is_triple(gain):
            data.append(spanned(gain, name=str(name), own=True))
    against = found.get("against", "start")
    title = f"Accuracy gained over {str(against)!r} on users' text"
    listing = Table("Models on users' text", ["model", "accuracy", "gained", "loss"], rows)
    draw = partial(intervals, data, value="accuracy gained", zero=True) if data else None
    return Figure(title, f"{guarantee(run)}. {interval_note(found)}", listing, draw)


# The benchmark -------------------------------------------------------------------------------


def beside(run: RunFolder) -> str:
    """The run's guarantee beside a figure that it says nothing of."""
    if why_unclaimed(run.claimed):
        return "No privacy is claimed."
    return f"The run has {guarantee(run)}; this figure is not covered by it."


def _benchmark(run: RunFolder) -> Context:
    blocks: list[Figure | Table] = []
    for key, title in MEASURES.items():
        if values := mapping(run.benchmark.get(key)):
            blocks.append(_models(run, key, title, values))
            blocks += _pairs(run, key, title)
    blocks += [*_distances(run), *_closeness(run), *_rounds(run), *_repeated(run)]
    return {
        "note": str(run.benchmark.get("note", "")).partition("; ")[2].partition("; ")[2],
        "lines": benchmark_lines(run.summary),
        "blocks": blocks,
        "rest": _rest(run.benchmark),
    }


def _models(run: RunFolder, key: str, title: str, values: Mapping[str, Any]) -> Figure:
    """One measure of the small model, by what it was trained on."""
    found = run.benchmark
    around, names = mapping(found.get(f"{key}_interval")), mapping(found.get("methods"))
    texts = mapping(found.get("training_texts"))
    rows, data = [], []
    for name, value in values.items():
        low_high = around.get(name)
        whole = [value, *low_high] if isinstance(low_high, list | tuple) else None
        cell = interval(whole) if is_triple(whole) else number(value, ".4f")
        rows.append([names.get(name, name), cell, number(texts.get(name))])
        if is_number(value):
            drawn = whole if is_triple(whole) else [value] * 3
            data.append(spanned(drawn, name=_words(name), own=name in RESULTS))
    users = number(found.get("held_out_users"))
    heading = f"{title} on {users} held-out users, by what the model was trained on"
    remark = f"{beside(run)} {OVER_USERS}."
    listing = Table(title, ["trained on", f"{title.lower()} [95 %]", "texts"], rows)
    return Figure(heading, remark, listing, partial(intervals, data, value=title.lower()))


def _pairs(run: RunFolder, key: str, title: str) -> list[Figure]:
    """Paired differences: these, and not overlapping bars, say what is better."""
    rows, data = [], []
    for pair, difference in mapping(run.benchmark.get(f"{key}_difference")).items():
        if not is_triple(difference):
            continue
        one, _, other = str(pair).partition("-")
        name = f"{_words(one)} \u2212 {_words(other)}"
        rows.append([name, interval(difference, sign=True), _judged(key, *difference[1:])])
        data.append(spanned(difference, name=name, own=one in RESULTS))
    if not rows:
        return []
    heading = f"{title}: paired differences on the same held-out users"
    remark = (
        f"{beside(run)} {OVER_USERS}: one that leaves out 0 is a difference, also where the "
        "intervals above overlap."
    )
    listing = Table(f"{title}, differences", ["pair", "difference [95 %]", "the first is"], rows)
    draw = partial(intervals, data, value="difference", zero=True)
    return [Figure(heading, remark, listing, draw)]


def _judged(key: str, low: float, high: float) -> str:
    """In words; a loss is better when it is smaller."""
    if low <= 0 <= high:
        return "unclear"
    return "better" if (low > 0) != (key == "loss") else "worse"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _distances(run: RunFolder) -> Iterator[Figure]:
    """Frechet distances to held-out text, the run's own beside its controls."""
    for group, values in mapping(run.benchmark.get("frechet")).items():
        named = {name: value for name, value in mapping(values).items() if is_number(value)}
        if not named:
            continue
        data = [
            {"name": _words(name), "value": value, "own": name in (*RESULTS, "seeds")}
            for name, value in named.items()
        ]
        title = f"Frechet distance to held-out text: {group}"
        remark = f"{beside(run)} Smaller is closer."
        rows = [[_words(name), number(value, ".4f")] for name, value in named.items()]
        listing = Table(f"Frechet distance, {group}", ["text", "distance"], rows)
        yield Figure(title, remark, listing, partial(bars, data, value="distance"))


def _closeness(run: RunFolder) -> list[Figure]:
    """The four figures of `evaluation.metrics`, of the result and what it stands beside."""
    rows = closeness_rows(run.summary)
    if not rows:
        return []
    title = "Closeness to held-out text, by embeddings"
    remark = (
        f"{beside(run)} Measured with held-out text. {OVER_USERS}. Precision: the share of texts "
        "like somebody's; recall: of users' texts like one of these. All are of equally many texts."
    )
    return [Figure(title, remark, Table(title, ["text", *CLOSENESS.values()], rows))]


BY_ROUND = {  # key -> title, and the series of each line
    "responses": (
        "Frechet distance of the responses by round",
        {"frechet_held_out": "to held-out text", "frechet_private": "to private text"},
    ),
    "true_votes": (
        "Share of the true votes by round",
        {"survivors": "of the survivors", "random": "of as many random candidates"},
    ),
}


def _rounds(run: RunFolder) -> Iterator[Figure]:
    """What the benchmark knows of each round."""
    for key, (title, series) in BY_ROUND.items():
        own = mapping(run.benchmark.get(key))
        columns = {label: own[name] for name, label in series.items() if _numbers(own.get(name))}
        if not columns:
            continue
        data = [
            {"x": place, "value": value, "series": label}
            for label, values in columns.items()
            for place, value in enumerate(values, start=1)
        ]
        count = max(map(len, columns.values()))
        rows = [
            [
                str(place + 1),
                *(number(v[place], ".4f") if place < len(v) else "-" for v in columns.values()),
            ]
            for place in spread(range(count))
        ]
        listing = Table(f"{title}{few(len(rows), count)}", ["round", *columns], rows)
        draw = partial(lines, data, value=title.partition(" by ")[0])
        yield Figure(title, beside(run), listing, draw)


def _numbers(values: object) -> bool:
    return isinstance(values, list) and bool(values) and all(map(is_number, values))


def _repeated(run: RunFolder) -> list[Table]:
    near = mapping(run.benchmark.get("near_duplicates"))
    rows = [
        [
            _words(name),
            number(mapping(one).get("reference_texts")),
            *(_share(mapping(one).get(key)) for key in ("share", "similar_share", "copies")),
            number(mapping(one).get("longest_shared_words")),
        ]
        for name, one in near.items()
    ]
    if not rows:
        return []
    headings = ["text", "texts", "share that repeat", "similar", "copies", "longest run of words"]
    return [Table("Synthetic texts that repeat others", headings, rows)]


def _share(value: object) -> str:
    return f"{value:.2%}" if is_number(value) else number(value)


def _rest(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is one number."""
    topics, votes = mapping(found.get("true_topics")), mapping(found.get("true_votes"))
    minority = mapping(mapping(found.get("proximity")).get("minority_share"))
    pairs: list[tuple[str, object]] = [
        ("distance of the released topics to the true ones", topics.get("distance")),
        ("distance of equal shares to the true topics", topics.get("uniform")),
        ("true votes of survivors, over as many random", votes.get("mean_ratio")),
        ("held-out words outside of the vocabulary", found.get("unknown_rate")),
        *((f"minority's share of the text: {_words(name)}", v) for name, v in minority.items()),
    ]
    return [(name, number(value)) for name, value in pairs if value is not None]
