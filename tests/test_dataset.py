"""`make dataset`: what both epsilons come to together, and where it goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from privsyn_flower.privacy.accounting.composition import composed_epsilon
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from scripts import dataset
from scripts.dataset import card, finished_run, together
from scripts.report_figures import summary

RUNS = {f"epsilon-{e}": summary(f"chats/pretext-epsilon{e}-seed0.json") for e in ("7.58", "1.29")}


def test_two_runs_on_the_same_people_are_one_gaussian() -> None:
    epsilon, delta = together(list(RUNS.values()))
    noise = {(one["noise_multiplier"], 1.0): 5 for one in RUNS.values()}  # four rounds, one spare
    lost = 2 * (3e-6 - gaussian_delta(3e-6))
    assert delta == 3e-6 and epsilon == pytest.approx(composed_epsilon(noise, delta - lost))
    assert 7.58 < epsilon < 7.58 + 1.29
    assert epsilon > composed_epsilon(noise, delta)  # both runs' integers are paid for
    assert together([RUNS["epsilon-7.58"]])[0] == pytest.approx(7.58)


@pytest.mark.parametrize("mu", [None, 0.0])
def test_what_has_no_sum_is_refused(mu: float | None) -> None:
    with pytest.raises(ValueError, match="no mu_gdp in a summary of"):
        together([RUNS["epsilon-7.58"], {**RUNS["epsilon-1.29"], "mu_gdp": mu}])


def test_the_card_says_whose_chats_each_claim_and_the_sum() -> None:
    text = card(RUNS, "")
    words = " ".join(text.split())
    total = together(list(RUNS.values()))[0]
    assert re.findall(r"epsilon = ([\d.]+) at delta = 3e-06", words) == [f"{total + 5e-5:.4f}"]
    assert "the same 1,000 people, so their epsilons add up" in words
    assert "public since 2019" in words and "without the curve: 8.87 at 6e-06" in words
    for name, one in RUNS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| [{name}]"))
        assert f"| {one['synthetic_samples']} | {one['seeds']} |" in row
        assert one["verdict"]["sentences"][0] in row and one["privacy_short"] in text
    front = yaml.safe_load(text.split("---")[1])
    assert front["license"] == "unknown" and "no permission" in words
    files = [one["data_files"] for one in front["configs"]]
    assert files == [f"{name}/data/train.parquet" for name in RUNS]
    assert not re.findall(r"\{\w*\}", text)


def test_a_licence_an_early_end_and_other_people() -> None:
    early: dict[str, Any] = {**RUNS["epsilon-1.29"], "ended_early": "the ledger is empty"}
    text = card({**RUNS, "epsilon-1.29": early}, "cc-by-4.0")
    assert "license: cc-by-4.0" in text and "(ended early: the ledger is empty)" in text
    with pytest.raises(ValueError, match=r"\[999, 1000\] users"):
        card({**RUNS, "epsilon-1.29": {**early, "users": 999}}, "")


def test_a_run_is_begun_continued_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, ...]] = []
    codes = iter([1, 3])

    def privsyn(*words: str) -> int:
        called.append(words)
        (tmp_path / "epsilon-1.29").mkdir(exist_ok=True)
        (tmp_path / "epsilon-1.29" / "config.toml").touch()
        return next(codes)

    monkeypatch.setattr(dataset, "privsyn", privsyn)
    with pytest.raises(SystemExit, match="ended with 1"):
        finished_run(1.29, tmp_path, ["rounds=2"])
    assert {"epsilon=1.29", "benchmark=false", "rounds=2"} < set(called[0])
    run = finished_run(1.29, tmp_path, ["rounds=2"])
    assert called[1:] == [("run", "--resume", str(run))]
    monkeypatch.setattr(dataset, "complete", lambda folder: folder == run)
    assert finished_run(1.29, tmp_path, ["rounds=2"]) == run and len(called) == 2
    (tmp_path / "epsilon-7.58").mkdir()  # of nobody knows which settings
    for epsilon, settings in ((1.29, []), (7.58, ["rounds=2"])):
        with pytest.raises(SystemExit, match="other settings"):
            finished_run(epsilon, tmp_path, settings)
