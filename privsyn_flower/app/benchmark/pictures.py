"""Pictures of a run, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from privsyn_flower.evaluation.drawing import BLUE, DARK, GREY, pyplot, save

Floats = npt.NDArray[np.floating]

RESULTS = ("synthetic", "trained")  # the run's own among the benchmark's names
MEASURED = "figures of a benchmark, which epsilon does not cover"
SHOWN = 2000  # points of one set that are drawn
SHOWN_TOPICS, SHOWN_WORDS = 24, 4  # topics of a picture, and keywords of each


def principal_plane(reference: Floats) -> tuple[Floats, Floats]:
    """reference (n, d) -> its mean (d,) and its first two principal directions (2, d)."""
    rows = np.asarray(reference, dtype=np.float64)
    if rows.ndim != 2 or min(rows.shape) < 2:
        raise ValueError(f"reference has shape {rows.shape}: a plane needs at least (2, 2)")
    center = rows.mean(axis=0)
    axes = np.linalg.svd(rows - center, full_matrices=False)[2][:2]
    # The sign of an axis is arbitrary; fix it, so that repeated runs look alike.
    axes *= np.where(axes.sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
    return center, axes


def draw_rounds(
    candidates: Sequence[Floats], held_out: Floats, path: Path, *, caption: str
) -> Path:
    """Candidates of the rounds, each (m, d), over held-out embeddings (n, d) in a 2-PCA plane.

    The plane is that of the first candidates and the held-out text together. Shows the first,
    a middle and the last round. Writes a PNG to `path`. The held-out points are PRIVATE, so this
    is for benchmarks only. Raises ValueError without rounds.
    """
    if not candidates:
        raise ValueError("no rounds to draw")
    plt = pyplot()
    center, axes = principal_plane(np.concatenate([candidates[0], held_out]))
    shown = sorted({0, (len(candidates) - 1) // 2, len(candidates) - 1})
    figure, panels = plt.subplots(
        1, len(shown), figsize=(4 * len(shown), 3.8), sharex=True, sharey=True, squeeze=False
    )
    target = (held_out[:SHOWN] - center) @ axes.T
    for panel, index in zip(panels[0], shown, strict=True):
        points = (candidates[index] - center) @ axes.T
        panel.scatter(*target.T, s=5, c=GREY, linewidths=0, label="held-out users' text")
        panel.scatter(*points.T, s=7, c=BLUE, linewidths=0, alpha=0.8, label="candidates")
        panel.set_title(f"round {index + 1} of {len(candidates)}", fontsize=11)
        panel.set_xticks([])
        panel.set_yticks([])
    panels[0][0].legend(loc="lower left", fontsize=8, frameon=False, markerscale=2)
    figure.supxlabel("first principal component", fontsize=9)
    figure.supylabel("second", fontsize=9)
    return save(figure, path, f"{caption}\n{MEASURED}")


def draw_accuracy(
    accuracy: Mapping[str, Sequence[float]],
    differences: Mapping[str, Sequence[float]],
    path: Path,
    *,
    caption: str,
) -> Path:
    """Accuracy by method, {method: [value, low, high]}, as bars with intervals, and beside it the
    paired differences, {"A-B": [value, low, high]}.

    Every held-out user has both of a pair, so a difference may be told from zero where the bars
    seem to overlap. caption: above the panels. Writes a PNG to `path`. Raises ValueError without
    methods.
    """
    if not accuracy:
        raise ValueError("no method to draw")
    widths = [1.15 * len(accuracy) + 1.0, 6.2]
    height = max(3.8, 0.36 * len(differences) + 1.4)
    if differences:
        figure, (bars, pairs) = pyplot().subplots(
            1, 2, figsize=(sum(widths), height), width_ratios=widths
        )
        _draw_pairs(pairs, differences)
    else:
        figure, bars = pyplot().subplots(figsize=(widths[0], height))
    _draw_bars(bars, accuracy)
    return save(figure, path, f"{caption}\n{MEASURED}")


def _draw_bars(panel: Any, accuracy: Mapping[str, Sequence[float]]) -> None:
    names = list(accuracy)
    values = np.array([accuracy[name] for name in names], dtype=np.float64)
    spread = np.abs(values[:, 1:] - values[:, :1]).T
    colours = [BLUE if name in RESULTS else GREY for name in names]
    bars = panel.bar(range(len(names)), values[:, 0], color=colours, width=0.65)
    panel.errorbar(
        range(len(names)), values[:, 0], yerr=spread, fmt="none", ecolor="black", capsize=3
    )
    panel.bar_label(bars, labels=[f"{value:.3f}" for value in values[:, 0]], padding=9, fontsize=9)
    panel.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names], fontsize=9)
    panel.set_ylim(0, max(values[:, 2].max() * 1.15, 0.01))
    panel.set_ylabel("accuracy, held-out users")
    panel.spines[["top", "right"]].set_visible(False)


def _draw_pairs(panel: Any, differences: Mapping[str, Sequence[float]]) -> None:
    """A row for each pair, the first on top; filled where zero is outside of the interval."""
    for place, (value, low, high) in enumerate(differences.values()):
        told = low > 0 or high < 0
        style = {"color": BLUE if told else DARK, "markerfacecolor": BLUE if told else "white"}
        panel.errorbar(
            value, place, xerr=[[value - low], [high - value]], fmt="o", capsize=3, **style
        )
        panel.annotate(
            f"{value:+.4f} [{low:+.4f}, {high:+.4f}]", (1.02, place), fontsize=8,
            xycoords=("axes fraction", "data"), va="center", color=style["color"],
        )  # fmt: skip
    panel.axvline(0.0, color=GREY, linewidth=1, zorder=0)
    names = [pair.replace("_", " ").replace("-", " minus ") for pair in differences]
    panel.set_yticks(range(len(names)), names, fontsize=8)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.set_xlabel("paired difference of accuracy; filled: zero is outside of its interval")
    panel.xaxis.label.set_size(8)
    panel.tick_params(axis="x", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def draw_minority(shares: Mapping[str, float], path: Path, *, caption: str) -> Path:
    """The minority's share of the text of each row, {method: share}, as bars.

    Writes a PNG to `path`. Raises ValueError without rows.
    """
    if not shares:
        raise ValueError("no row to draw")
    plt = pyplot()
    names = list(shares)
    values = np.array([100 * shares[name] for name in names])
    figure, panel = plt.subplots(figsize=(1.3 * len(names) + 1.2, 3.4))
    colours = [BLUE if name == "scratch_filtered" else GREY for name in names]
    bars = panel.bar(range(len(names)), values, color=colours, width=0.65)
    panel.bar_label(bars, labels=[f"{value:.1f} %" for value in values], padding=3, fontsize=9)
    panel.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names], fontsize=9)
    panel.set_ylim(0, max(values.max() * 1.15, 0.01))
    panel.set_ylabel("minority's share of the public text, %")
    panel.spines[["top", "right"]].set_visible(False)
    return save(figure, path, caption)


def draw_distances(by_round: Mapping[str, Sequence[float]], path: Path, *, caption: str) -> Path:
    """Frechet distances of the rounds' responses, {to what: [round 1, ...]}, as lines.

    Writes a PNG to `path`. Raises ValueError without rounds.
    """
    if not by_round or not all(map(len, by_round.values())):
        raise ValueError("no rounds to draw")
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(4.8, 3.6))
    for colour, (name, values) in zip((BLUE, GREY, "#c2571a"), by_round.items(), strict=False):
        rounds = range(1, len(values) + 1)
        panel.plot(rounds, values, marker="o", markersize=4, color=colour, label=name)
    panel.set_xlabel("round")
    panel.set_ylabel("Frechet distance of the responses")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(fontsize=8, frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    return save(figure, path, f"{caption}\n{MEASURED}")


def draw_topics(
    keywords: Sequence[Sequence[str]],
    noisy: Floats,
    true: Floats | None,
    path: Path,
    *,
    caption: str,
) -> Path:
    """Shares of the largest topics, as released and as they are, as bars and points.

    keywords, noisy, true: of m topics. The true shares are PRIVATE, so they are for benchmarks
    only; None draws without them. Writes a PNG to `path`. Raises ValueError without topics.
    """
    if not len(noisy):
        raise ValueError("no topics to draw")
    plt = pyplot()
    rank = noisy if true is None else np.maximum(noisy, true)
    shown = np.argsort(-rank, kind="stable")[:SHOWN_TOPICS][::-1]  # the largest on top
    places = np.arange(len(shown))
    figure, panel = plt.subplots(figsize=(7.2, 0.26 * len(shown) + 1.2))
    panel.barh(places, noisy[shown], color=BLUE, height=0.7, label="noisy, as released")
    if true is not None:
        label = "true (benchmark only, not covered by epsilon)"
        panel.plot(true[shown], places, "o", color="black", markersize=4, label=label)
    words = [", ".join(keywords[topic][:SHOWN_WORDS]) for topic in shown]
    panel.set_yticks(places, words, fontsize=7)
    panel.set_xlabel(f"share of the text, the {len(shown)} largest of {len(noisy)} topics")
    panel.legend(fontsize=8, frameon=False, loc="lower right")
    panel.spines[["top", "right"]].set_visible(False)
    return save(figure, path, caption)


def draw_benchmark(
    summary: Mapping[str, Any],
    candidates: Sequence[Floats],
    held_out: Floats,
    folder: Path,
    *,
    caption: str,
) -> None:
    """All pictures of a benchmark, with the caption above each; distances.png is for methods
    with responses, minority.png for a filter of public text that has a minority."""
    accuracy = {
        name: [value, *summary["accuracy_interval"][name]]
        for name, value in summary["accuracy"].items()
    }
    draw_accuracy(
        accuracy, summary["accuracy_difference"], folder / "accuracy.png", caption=caption
    )
    if shares := summary.get("proximity", {}).get("minority_share"):
        draw_minority(shares, folder / "minority.png", caption=caption)
    if candidates:
        draw_rounds(candidates, held_out, folder / "candidates.png", caption=caption)
    if "responses" in summary:
        rounds = summary["responses"]
        by_round = {
            "to held-out users' text": rounds["frechet_held_out"],
            "to the private users' text": rounds["frechet_private"],
        }
        draw_distances(by_round, folder / "distances.png", caption=caption)
