"""`privsyn account` and `privsyn calibrate` for integer noise and for samplers."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from privsyn_flower.cli import app
from privsyn_flower.privacy import calibrate, epsilon

PLAN = ["--rounds", "20", "--delta", "3e-6"]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def figure(*arguments: str) -> float:
    result = call(*arguments, *PLAN, "--json")
    assert result.exit_code == 0, result.output
    (value,) = json.loads(result.stdout).values()
    return float(value)


def test_integer_noise() -> None:
    noise = ("account", "--noise-multiplier", "19.3", "--mechanism", "skellam")
    assert figure(*noise) == epsilon(19.3, 20, 3e-6, mechanism="skellam")
    assert figure(*noise, "--sensitivity", "4") == pytest.approx(0.9974, abs=5e-5)
    assert figure(*noise, "--accountant", "rdp") == figure(*noise)
    found = figure("calibrate", "--epsilon", "1", "--mechanism", "skellam")
    assert found == calibrate(1.0, 20, 3e-6, mechanism="skellam")
    coarse = figure("calibrate", "--epsilon", "1", "--mechanism", "skellam", "--sensitivity", "1")
    assert coarse > found


def test_gaussian_noise_is_the_default() -> None:
    assert figure("account", "--noise-multiplier", "19.3") == epsilon(19.3, 20, 3e-6)
    assert set(json.loads(call("account", "--noise-multiplier", "9", *PLAN, "--json").stdout)) == {
        "epsilon"
    }


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
    assert json.loads(as_json.stdout)["epsilon"] == epsilon(3.4, 20, 3e-6)
    assert "no amplification" in as_json.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--sampler", "fixed", "--sampling-rate", "0.1"), "sampling rate = 0.1 belongs to"),
        (("--sampler", "full", "--sampling-rate", "0.1"), "not 'full'"),
        (("--sampling-rate", "0"), "sampling rate = 0.0"),
        (("--mechanism", "skellam", "--accountant", "pld"), "accountant = 'pld' must be 'rdp'"),
        (("--mechanism", "skellam", "--sensitivity", "0.5"), "sensitivity = 0.5"),
        (("--mechanism", "laplace"), "laplace"),
        (("--sampler", "some"), "some"),
    ],
)
def test_bad_values_are_named(arguments: tuple[str, ...], word: str) -> None:
    for command in (("account", "--noise-multiplier", "9"), ("calibrate", "--epsilon", "1")):
        result = call(*command, *PLAN, *arguments)
        assert result.exit_code == 2
        assert word in result.output
