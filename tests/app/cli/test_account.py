"""`privsyn account` and `privsyn calibrate` for all noise and for samplers."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from privsyn_flower.app.cli.main import app
from privsyn_flower.privacy import calibrate, epsilon
from privsyn_flower.privacy.accounting import renyi_epsilon
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta

PLAN = ["--rounds", "20", "--delta", "3e-6"]
LEFT = gaussian_delta(3e-6)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def figure(*arguments: str) -> float:
    result = call(*arguments, *PLAN, "--json")
    assert result.exit_code == 0, result.output
    (value,) = json.loads(result.stdout).values()
    return float(value)


def test_figures_are_those_of_a_run() -> None:
    """A thousandth of delta is for the nodes' integers, there as here."""
    noise = ("account", "--noise-multiplier", "19.3")
    assert figure(*noise) == epsilon(19.3, 20, LEFT) > epsilon(19.3, 20, 3e-6)
    assert figure("calibrate", "--epsilon", "1") == calibrate(1.0, 20, LEFT)
    assert figure("calibrate", "--epsilon", "1") == pytest.approx(17.87, abs=5e-3)
    sampled = ("--sampling-rate", "0.1")
    assert figure(*noise, *sampled) == epsilon(19.3, 20, LEFT, sampling_rate=0.1)
    assert call(*noise, *PLAN, "--json").stdout.count(":") == 1


def test_renyi_is_what_the_papers_had() -> None:
    noise = ("account", "--noise-multiplier", "19.3", "--renyi")
    assert figure(*noise) == renyi_epsilon(19.3, 20, 3e-6) == pytest.approx(0.9973, abs=5e-5)
    sampled = ("account", "--noise-multiplier", "3.4", "--renyi", "--sampling-rate", "0.1")
    assert figure(*sampled) == renyi_epsilon(3.4, 20, 3e-6, sampling_rate=0.1)
    assert figure(*sampled) > figure(*sampled[:3], *sampled[4:])
    assert "to compare" in call(*noise, *PLAN).output
    assert call("calibrate", "--epsilon", "1", *PLAN, "--renyi").exit_code == 2


def test_the_bound_behind_a_figure_is_named() -> None:
    noise = ["account", "--noise-multiplier", "30", "--rounds", "100"]
    assert "closed form" in call(*noise, "--delta", "1e-6").output
    noise += ["--sampling-rate", "0.01"]
    assert "privacy loss distribution" in call(*noise, "--delta", "1e-6").output
    small = call(*noise, "--delta", "1e-13", "--json")
    assert json.loads(small.stdout)["epsilon"] < 0.1 and "Renyi bounds" in small.stderr
    many = call(*noise[:3], "--rounds", "1000000000", *noise[5:], "--delta", "1e-6")
    assert many.exit_code == 0 and "Renyi bounds" in many.output


def test_no_noise_is_no_finite_epsilon() -> None:
    noise = ("account", "--noise-multiplier", "0", *PLAN)
    assert "epsilon = inf" in call(*noise).output
    assert json.loads(call(*noise, "--json").stdout) == {"epsilon": None}


@pytest.mark.parametrize("option", ["--accountant", "--mechanism", "--sensitivity"])
def test_all_noise_has_one_accounting(option: str) -> None:
    result = call("account", "--noise-multiplier", "9", *PLAN, option, "rdp")
    assert result.exit_code == 2 and "No such option" in result.output


def test_samplers_say_what_they_claim() -> None:
    noise = ("account", "--noise-multiplier", "3.4", *PLAN)
    rate = ("--sampling-rate", "0.1")
    assert call(*noise, *rate).output == call(*noise, *rate, "--sampler", "poisson").output
    assert "hidden from the adversary" in call(*noise, *rate).output
    full = call(*noise).output
    assert full == call(*noise, "--sampler", "full").output and "amplification" not in full
    fixed = call(*noise, "--sampler", "fixed")
    assert fixed.stdout.startswith(full) and "no amplification" in fixed.stdout
    as_json = call(*noise, "--sampler", "fixed", "--json")
    assert json.loads(as_json.stdout)["epsilon"] == epsilon(3.4, 20, LEFT)
    assert "no amplification" in as_json.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--sampler", "fixed", "--sampling-rate", "0.1"), "sampling rate = 0.1 belongs to"),
        (("--sampler", "full", "--sampling-rate", "0.1"), "not 'full'"),
        (("--sampling-rate", "0"), "sampling rate = 0.0"),
        (("--delta", "0"), "delta = 0.0 must be above 0"),
        (("--delta", "1"), "delta = 1.0 must be above 0 and below 1"),
        (("--sampler", "some"), "some"),
    ],
)
def test_bad_values_are_named(arguments: tuple[str, ...], word: str) -> None:
    for command in (("account", "--noise-multiplier", "9"), ("calibrate", "--epsilon", "1")):
        result = call(*command, *PLAN, *arguments)
        assert result.exit_code == 2
        assert word in result.output
