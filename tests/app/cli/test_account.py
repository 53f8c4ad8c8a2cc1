"""`privsyn account` and `privsyn calibrate` for all noise and for samplers; `privsyn ledger`: what
the runs of a population were charged, and copies that forget nothing.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from privsyn_flower.privacy import calibrate, epsilon
from privsyn_flower.privacy.accounting import renyi_epsilon
from privsyn_flower.privacy.ledger import Ledger, usage
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from tests.rigs.command_line import privsyn

PLAN = ["--rounds", "20", "--delta", "3e-6"]
LEFT = gaussian_delta(3e-6)


def figure(*arguments: str) -> float:
    result = privsyn(*arguments, *PLAN, "--json")
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
    assert privsyn(*noise, *PLAN, "--json").stdout.count(":") == 1
    text = privsyn(*noise, *PLAN).stdout
    assert "user-level" in text and "zero-out" in text


def test_renyi_is_what_the_papers_had() -> None:
    noise = ("account", "--noise-multiplier", "19.3", "--renyi")
    assert figure(*noise) == renyi_epsilon(19.3, 20, 3e-6) == pytest.approx(0.9973, abs=5e-5)
    sampled = ("account", "--noise-multiplier", "3.4", "--renyi", "--sampling-rate", "0.1")
    assert figure(*sampled) == renyi_epsilon(3.4, 20, 3e-6, sampling_rate=0.1)
    assert figure(*sampled) > figure(*sampled[:3], *sampled[4:])
    assert "to compare" in privsyn(*noise, *PLAN).output
    assert privsyn("calibrate", "--epsilon", "1", *PLAN, "--renyi").exit_code == 2


def test_the_bound_behind_a_figure_is_named() -> None:
    noise = ["account", "--noise-multiplier", "30", "--rounds", "100"]
    assert "closed form" in privsyn(*noise, "--delta", "1e-6").output
    noise += ["--sampling-rate", "0.01"]
    assert "privacy loss distribution" in privsyn(*noise, "--delta", "1e-6").output
    small = privsyn(*noise, "--delta", "1e-13", "--json")
    assert json.loads(small.stdout)["epsilon"] < 0.1 and "Renyi bounds" in small.stderr
    many = privsyn(*noise[:3], "--rounds", "1000000000", *noise[5:], "--delta", "1e-6")
    assert many.exit_code == 0 and "Renyi bounds" in many.output


def test_no_noise_is_no_finite_epsilon() -> None:
    noise = ("account", "--noise-multiplier", "0", *PLAN)
    assert "epsilon = inf" in privsyn(*noise).output
    assert json.loads(privsyn(*noise, "--json").stdout) == {"epsilon": None}


@pytest.mark.parametrize("option", ["--accountant", "--mechanism", "--sensitivity"])
def test_all_noise_has_one_accounting(option: str) -> None:
    result = privsyn("account", "--noise-multiplier", "9", *PLAN, option, "rdp")
    assert result.exit_code == 2 and "No such option" in result.output


def test_samplers_say_what_they_claim() -> None:
    noise = ("account", "--noise-multiplier", "3.4", *PLAN)
    rate = ("--sampling-rate", "0.1")
    assert privsyn(*noise, *rate).output == privsyn(*noise, *rate, "--sampler", "poisson").output
    assert "hidden from the adversary" in privsyn(*noise, *rate).output
    full = privsyn(*noise).output
    assert full == privsyn(*noise, "--sampler", "full").output and "amplification" not in full
    fixed = privsyn(*noise, "--sampler", "fixed")
    assert fixed.stdout.startswith(full) and "no amplification" in fixed.stdout
    as_json = privsyn(*noise, "--sampler", "fixed", "--json")
    assert json.loads(as_json.stdout)["epsilon"] == epsilon(3.4, 20, LEFT)
    assert "no amplification" in as_json.stderr


@pytest.mark.parametrize("epsilon", [0.5, 1.29, 2.0, 4.0, 7.58])
def test_the_noise_that_calibrate_prints_keeps_epsilon(epsilon: float) -> None:
    """In the digits on the terminal: 10.4862 for 1.29 would cost 1.2900051."""
    rest = ["--rounds", "11", "--delta", "3e-6"]
    shown = privsyn("calibrate", "--epsilon", epsilon, *rest).stdout
    noise = shown.splitlines()[0].partition(" = ")[2]
    args = ["account", "--noise-multiplier", noise, *rest]
    cost = json.loads(privsyn(*args, "--json").stdout)["epsilon"]
    assert 0.9999 * epsilon < cost <= epsilon
    printed = privsyn(*args).stdout.splitlines()[0].partition(" = ")[2]
    assert float(printed) >= cost


def test_an_epsilon_of_any_size_is_printed() -> None:
    args = ["account", "--rounds", 3, "--delta", "1e-6", "--noise-multiplier", "1e-11"]
    shown = float(privsyn(*args).stdout.splitlines()[0].partition(" = ")[2])
    assert shown >= json.loads(privsyn(*args, "--json").stdout)["epsilon"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--rounds", "-1"), "rounds"),
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
        result = privsyn(*command, *PLAN, *arguments)
        assert result.exit_code == 2
        assert word in result.output
    assert "noise" in privsyn("account", "--noise-multiplier", "-1", *PLAN).stderr


def show(place: Path, *options: str) -> str:
    result = privsyn("ledger", "show", place, *options)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger.open(tmp_path / "all", population="staff", total_epsilon=9.0, total_delta=1e-6)
    for run, attempts in (("a", 2), ("b", 1)):
        for attempt in range(1, attempts + 1):
            found.reserve(run=run, query="votes", round=1, attempt=attempt, noise_multiplier=8.0)
    first = found.charges()[0].id
    found.mark_sent(first)
    found.commit(first)
    found.void(found.charges()[1].id, "nobody was asked")
    return found


def test_every_run_and_all_together(tmp_path: Path, ledger: Ledger) -> None:
    before = ledger.path.read_bytes()
    lines = show(ledger.path).splitlines()
    assert lines[0].startswith("population 'staff': epsilon = ")
    assert lines[0].endswith("charged, total 9 at delta 1e-06")
    assert lines[1].startswith("run 'a': 1 released, 0 charged and not released, 1 void; epsilon")
    assert lines[2].startswith("run 'b': 0 released, 1 charged and not released, 0 void; epsilon")
    facts = json.loads(show(ledger.path, "--json"))
    assert facts["epsilon"] == pytest.approx(ledger.spent_epsilon())
    own = [row["epsilon"] for row in facts["runs"]]
    assert own == pytest.approx([ledger.spent_epsilon("a"), ledger.spent_epsilon("b")])
    assert len(facts["charges"]) == 3 and facts["whole"]
    assert ledger.path.read_bytes() == before


def test_a_runs_copy_says_that_others_are_missing(tmp_path: Path, ledger: Ledger) -> None:
    usage.export(ledger, "a", tmp_path / "ledger.jsonl")
    assert "(the run's own copy: other runs on these users are missing)" in show(
        tmp_path / "ledger.jsonl"
    )


def test_what_is_no_ledger_is_named(tmp_path: Path) -> None:
    for content in ("", "{}\n", "# text\n"):
        (tmp_path / "x").write_text(content)
        result = privsyn("ledger", "show", tmp_path / "x")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert str(tmp_path / "x") in result.stderr
    result = privsyn("ledger", "show", tmp_path)
    assert (result.exit_code, "holds no run" in result.stderr) == (2, True)


def copied(*places: Path) -> tuple[int, str]:
    result = privsyn("ledger", "copy", *places)
    return result.exit_code, result.output


def test_a_backup_is_put_back_unless_it_is_older(tmp_path: Path, ledger: Ledger) -> None:
    backup, older = tmp_path / "backup", tmp_path / "older"
    code, out = copied(ledger.path, older)
    day = (
        f"{datetime.now(UTC):%Y-%m}"  # of the last row: who restores must know what may be missing
    )
    assert code == 0 and out.startswith(f"{older}: 3 charges until {day}") and "later runs" in out
    charge = ledger.reserve(run="c", query="votes", round=1, attempt=1, noise_multiplier=8.0)
    assert copied(ledger.path, backup)[0] == 0
    latest = ledger.path.read_bytes()
    code, out = copied(older, ledger.path)
    assert code == 2 and "older copy" in out and ledger.path.read_bytes() == latest
    ledger.path.unlink()
    assert copied(backup, ledger.path)[0] == 0
    assert ledger.path.read_bytes() == latest and ledger.path.stat().st_mode & 0o777 == 0o600
    ledger.mark_sent(charge)
    older.write_bytes(older.read_bytes() + b'{"torn')
    assert copied(ledger.path, older)[0] == 0  # brought up to date
    assert older.read_bytes() == ledger.path.read_bytes()


def test_another_ledger_or_a_runs_copy_is_not_put_back(tmp_path: Path, ledger: Ledger) -> None:
    other = Ledger.open(tmp_path / "other", population="staff").path
    assert copied(other, ledger.path)[0] == copied(tmp_path / "none", ledger.path)[0] == 2
    usage.export(ledger, "a", tmp_path / "ledger.jsonl")
    code, out = copied(tmp_path / "ledger.jsonl", tmp_path / "new")
    assert code == 2 and "is no ledger" in out and not (tmp_path / "new").exists()
