"""The pictures are written, and a plane is what it says."""

import numpy as np
import pytest

from privsyn_flower.app.benchmark import pictures
from privsyn_flower.app.benchmark.pictures import (
    draw_accuracy,
    draw_distances,
    draw_minority,
    draw_rounds,
    draw_topics,
    principal_plane,
)
from privsyn_flower.server_apps.run import caption

CAPTION = caption("pretext", 1.29, 3e-6)


def test_plane_holds_the_two_widest_directions():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 6)) * [5, 0.1, 0.1, 3, 0.1, 0.1] + 7
    center, axes = principal_plane(rows)
    assert center == pytest.approx([7] * 6, abs=1)
    assert abs(axes[0, 0]) > 0.99 and abs(axes[1, 3]) > 0.99
    assert axes @ axes.T == pytest.approx(np.eye(2), abs=1e-9)
    with pytest.raises(ValueError, match="a plane needs"):
        principal_plane(rows[:1])


@pytest.mark.slow
def test_pictures_are_written(tmp_path):
    rng = np.random.default_rng(0)
    rounds = [rng.normal(size=(30, 8)) for _ in range(4)]
    path = draw_rounds(
        rounds, rng.normal(size=(50, 8)), tmp_path / "deep" / "rounds.png", caption=CAPTION
    )
    assert path.read_bytes().startswith(b"\x89PNG")
    bars = {"random_public": [0.2, 0.19, 0.21], "synthetic": [0.25, 0.24, 0.26]}
    pairs = {"synthetic-random_public": [0.05, 0.04, 0.06]}
    alone, beside = (
        draw_accuracy(bars, shown, tmp_path / f"accuracy-{len(shown)}.png", caption=CAPTION)
        for shown in ({}, pairs)
    )
    assert beside.stat().st_size > alone.stat().st_size > 2000
    shares = {"pretrained": 0.05, "scratch_filtered": 0.12}
    assert draw_minority(shares, tmp_path / "minority.png", caption=CAPTION).stat().st_size > 2000
    words = [("graph", "vertex"), ("rain", "storm"), ("soup",)]
    noisy, true = np.array([0.6, 0.4, 0.0]), np.array([0.7, 0.2, 0.1])
    alone, both = (
        draw_topics(words, noisy, shown, tmp_path / f"{shown is None}.png", caption=CAPTION)
        for shown in (None, true)
    )
    assert both.read_bytes() != alone.read_bytes() and alone.stat().st_size > 2000
    with pytest.raises(ValueError):
        draw_topics([], noisy[:0], None, tmp_path / "x.png", caption=CAPTION)
    with pytest.raises(ValueError):
        draw_rounds([], rounds[0], tmp_path / "x.png", caption=CAPTION)
    with pytest.raises(ValueError):
        draw_accuracy({}, {}, tmp_path / "x.png", caption=CAPTION)
    with pytest.raises(ValueError, match="no row to draw"):
        draw_minority({}, tmp_path / "x.png", caption=CAPTION)


def words_of(figure):
    """All text that stands in a figure."""
    from matplotlib.text import Text

    return [found.get_text() for found in figure.findobj(Text)]


def test_pictures_say_epsilon_and_what_pairs_come_to(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(pictures, "save", lambda figure, path, text: drawn.append((figure, text)))
    bars = {"random_public": [0.2, 0.19, 0.21], "synthetic": [0.206, 0.196, 0.216]}
    pairs = {
        "synthetic-random_public": [0.006, 0.004, 0.008],
        "synthetic-no_private_step": [0.001, -0.002, 0.004],
    }
    draw_accuracy(bars, pairs, tmp_path, caption=CAPTION)
    draw_distances({"to others": [2.0, 1.0]}, tmp_path, caption=CAPTION)
    for _, text in drawn:
        assert text.startswith("pretext: epsilon = 1.29, delta = 3e-06\n")
        assert text.endswith("which epsilon does not cover")
    figure = drawn[0][0]
    words = words_of(figure)
    assert "+0.0060 [+0.0040, +0.0080]" in words and "+0.0010 [-0.0020, +0.0040]" in words
    assert "synthetic minus random public" in words
    points = [line for line in figure.axes[1].get_lines() if line.get_marker() == "o"]
    assert [point.get_markerfacecolor() == "white" for point in points] == [False, True]


def test_captions_promise_what_the_statement_does():
    assert caption("popri", 7.57991, 3e-6) == "popri: epsilon = 7.58, delta = 3e-06"
    assert caption("expand-private", float("inf"), 0.0).endswith("NO PRIVACY, epsilon is infinite")
    assert caption("pe", 1.0, 1e-6, claimed=False).endswith("(NO PRIVACY IS CLAIMED)")
