"""How close texts come to held-out users' texts, by embeddings."""

from __future__ import annotations

import numpy as np
import pytest

from privsyn_flower.common.arrays import F32
from privsyn_flower.evaluation.metrics import HeldOut, closeness, frechet_distance, frontier_area


def texts(count: int, seed: int, *, shift: float = 0.0, width: int = 8) -> F32:
    rows = np.random.default_rng(seed).standard_normal((count, width)) + shift
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


HELD_OUT = HeldOut(texts(120, 0, shift=0.5), np.repeat(np.arange(30), 4))


def test_texts_of_the_same_kind_are_closer_in_every_figure() -> None:
    rng = np.random.default_rng(3)
    near = closeness(texts(100, 1, shift=0.5), HELD_OUT, rng)
    far = closeness(texts(100, 2, shift=-0.5), HELD_OUT, rng)
    assert near["frechet"].high < far["frechet"].low
    for name in ("mauve", "precision", "recall"):
        assert near[name].low > far[name].high, name
        assert 0 <= far[name].low <= far[name].value <= far[name].high <= 1
    assert near["frechet"].value == pytest.approx(
        frechet_distance(texts(100, 1, shift=0.5), HELD_OUT.rows)
    )


def test_one_text_again_and_again_is_precise_and_recalls_little() -> None:
    copies = np.repeat(HELD_OUT.rows[:1], 60, axis=0) + texts(60, 4) * 1e-4
    found = closeness(copies.astype(np.float32), HELD_OUT, np.random.default_rng(0))
    assert found["precision"].value == 1.0 and found["recall"].value < 0.05
    assert found["mauve"].value < 0.2


def test_users_are_drawn_and_not_their_texts() -> None:
    """Twelve texts of one user tell as much as one of them."""
    near, far = texts(1, 1), -texts(1, 1)
    rows = np.concatenate([np.repeat(near, 60, axis=0), np.repeat(far, 60, axis=0)])
    rows = rows + texts(120, 5) * np.float32(1e-3)
    own = np.repeat(near, 20, axis=0) + texts(20, 6) * np.float32(1e-3)

    def width(users: int) -> float:
        held_out = HeldOut(rows, np.arange(120) * users // 120)
        found = closeness(own, held_out, np.random.default_rng(0), resamples=200)["frechet"]
        return found.high - found.low

    assert width(10) > 2 * width(120) > 0


def test_the_frontier_of_known_histograms() -> None:
    even = np.full(4, 0.25)
    assert frontier_area(even, even) == pytest.approx(1.0)
    apart = frontier_area(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    # KL of each to the mixture: -log of its share; exp(-5 KL) = share ** 5
    share = np.linspace(0, 1, 27)
    up, across = share**5, (1 - share) ** 5
    assert apart == pytest.approx(float(-(np.diff(across) * (up[1:] + up[:-1]) / 2).sum()))
    assert 0 < apart < 0.02


def test_too_few_texts() -> None:
    with pytest.raises(ValueError, match="3 texts: precision and recall need 4"):
        closeness(texts(3, 0), HELD_OUT, np.random.default_rng(0))
