"""When a training's loss on other text has stopped falling."""

import json

import pytest

from privsyn_flower.evaluation.tuning import Plateau


def test_it_is_reached_when_the_lowest_loss_is_too_long_ago() -> None:
    plateau = Plateau.of(8)
    assert plateau.every == 2
    for step, loss in ((0, 4.0), (2, 3.0), (4, 3.5), (6, 2.5), (8, 2.5)):
        plateau.add(step, loss)
        assert not plateau.reached(step)
    assert plateau.best == 6, "of equal losses the first"
    plateau.add(14, float("nan"))
    assert plateau.reached(14) and plateau.best == 6
    assert plateau.figures(14) == {
        "steps": 14, "kept_step": 6, "public_validation_loss": 2.5, "loss_before": 4.0,
        "converged": True,
    }  # fmt: skip


def test_it_goes_on_from_a_checkpoint() -> None:
    plateau, other = Plateau(1, 2), Plateau(1, 2)
    plateau.add(0, 2.0)
    plateau.add(1, 3.0)
    other.restore(json.loads(json.dumps(plateau.losses)))
    assert other == plateau
    other.add(2, 3.0)
    assert other.reached(2)
    with pytest.raises(ValueError):
        Plateau.of(1).best  # noqa: B018
