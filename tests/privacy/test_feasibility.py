"""Numbers that cannot give anything are told before they are spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.preflight.numbers import noise_of
from privsyn_flower.config import load_config
from privsyn_flower.privacy.accounting import calibrate
from privsyn_flower.privacy.accounting.calibration import DOUBTFUL_SHARE, infeasibilities
from privsyn_flower.server_apps.privacy_plan import baseline

FOLDER = Path(__file__).parents[2] / "configs"
OTHERS = {*FOLDER.glob("compare-*.toml"), *FOLDER.glob("*-public.toml")}  # no runs
FILES = [*sorted({*FOLDER.glob("*.toml")} - OTHERS), *sorted(FOLDER.glob("papers/*.toml"))]
CONFIGS = [path for path in FILES if baseline(load_config(path)) is None]


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [  # thousands of sampled rounds: the search for CTCL's noise takes a second each
        pytest.param(path, marks=pytest.mark.slow if "ctcl" in path.stem else (), id=path.stem)
        for path in CONFIGS
    ],
)
def test_shipped_configurations_are_far_from_both_limits(path: Path) -> None:
    config = load_config(path)
    assert config.delta * config.data.users < 0.5
    noise, answers, _ = noise_of(config)
    assert 0 < noise < DOUBTFUL_SHARE / 10 * answers
