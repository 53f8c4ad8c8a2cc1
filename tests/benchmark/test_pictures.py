"""The pictures are written, and a plane is what it says."""

import numpy as np
import pytest

from privsyn_flower.benchmark.pictures import (
    draw_accuracy,
    draw_minority,
    draw_rounds,
    draw_topics,
    principal_plane,
)


def test_plane_holds_the_two_widest_directions():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 6)) * [5, 0.1, 0.1, 3, 0.1, 0.1] + 7
    center, axes = principal_plane(rows)
    assert center == pytest.approx([7] * 6, abs=1)
    assert abs(axes[0, 0]) > 0.99 and abs(axes[1, 3]) > 0.99
    assert axes @ axes.T == pytest.approx(np.eye(2), abs=1e-9)
    with pytest.raises(ValueError, match="a plane needs"):
        principal_plane(rows[:1])


def test_pictures_are_written(tmp_path):
    rng = np.random.default_rng(0)
    rounds = [rng.normal(size=(30, 8)) for _ in range(4)]
    path = draw_rounds(rounds, rng.normal(size=(50, 8)), tmp_path / "deep" / "rounds.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    bars = {"random_public": [0.2, 0.19, 0.21], "synthetic": [0.25, 0.24, 0.26]}
    assert draw_accuracy(bars, tmp_path / "accuracy.png").stat().st_size > 2000
    shares = {"pretrained": 0.05, "scratch_filtered": 0.12}
    assert draw_minority(shares, tmp_path / "minority.png").stat().st_size > 2000
    words = [("graph", "vertex"), ("rain", "storm"), ("soup",)]
    noisy, true = np.array([0.6, 0.4, 0.0]), np.array([0.7, 0.2, 0.1])
    alone, both = (
        draw_topics(words, noisy, shown, tmp_path / f"{shown is None}.png")
        for shown in (None, true)
    )
    assert both.read_bytes() != alone.read_bytes() and alone.stat().st_size > 2000
    with pytest.raises(ValueError):
        draw_topics([], noisy[:0], None, tmp_path / "x.png")
    with pytest.raises(ValueError):
        draw_rounds([], rounds[0], tmp_path / "x.png")
    with pytest.raises(ValueError):
        draw_accuracy({}, tmp_path / "x.png")
    with pytest.raises(ValueError, match="no row to draw"):
        draw_minority({}, tmp_path / "x.png")
