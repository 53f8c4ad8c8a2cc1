"""Numbers that cannot give anything are told before they are spent."""

from __future__ import annotations

from typing import Any

from privsyn_flower.privacy.accounting import calibrate
from privsyn_flower.privacy.accounting.calibration import infeasibilities


def about(**changes: Any) -> list[tuple[bool, str]]:
    numbers = {"epsilon": 1.0, "delta": 1e-6, "users": 100, "noise": 2.0, "answers": 100.0}
    return [
        (infeasibility.hopeless, infeasibility.text)
        for infeasibility in infeasibilities(**{**numbers, **changes})
    ]


def test_delta_must_stay_below_one_user() -> None:
    assert about(delta=0.0099) == []
    for delta in (0.01, 0.5):
        [(hopeless, text)] = about(delta=delta)
        assert hopeless and f"delta = {delta:g}" in text and "1 / data.users = 0.01" in text
    assert "1 / users" in about(delta=0.5, key="users")[0][1]


def test_noise_is_weighed_against_all_who_answer() -> None:
    assert about(noise=9.99) == []
    [(hopeless, text)] = about(noise=43.0)
    assert not hopeless and "fewer than 43% of them" in text and "raise epsilon" in text
    for noise in (100.0, 4570.0):
        [(hopeless, text)] = about(noise=noise)
        assert hopeless and f"{noise:,.4g} in bounds" in text and "nothing can be learnt" in text
    assert [hopeless for hopeless, _ in about(noise=20.0, answers=50.0)] == [False]  # a sample


def test_a_tiny_epsilon_for_few_users_is_hopeless() -> None:
    noise = calibrate(0.001, 9, 3e-6)
    assert noise > 4000 and about(epsilon=0.001, noise=noise)[0][0]
