"""The verdict of a run: drowned, heard, better, worse; in the summary, the terminal, the report."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.cli.ending import ending, product_lines
from privsyn_flower.app.report.summaries import verdict_lines
from privsyn_flower.app.report.tables import report
from privsyn_flower.config import RunConfig
from privsyn_flower.evaluation.verdict import (
    FALSE_ALARM,
    benchmark_verdict,
    excess,
    judged,
    verdict,
)
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods import evaluation
from privsyn_flower.server_apps.run import Run
from privsyn_flower.strategies.evaluation.strategy import read_estimates
from tests.rigs.tables import SECURE, summary
from tests.server_apps.in_process import deployed, grid_for

DIMENSION, STD = 300, 2.0


def rows(signal: float, rounds: int = 3, seed: int = 0) -> list[dict[str, Any]]:
    """Metrics of rounds whose signal has so many times the noise's norm."""
    rng = np.random.default_rng(seed)
    metrics = []
    for rnd in range(1, rounds + 1):
        found = excess(signal * STD + rng.normal(0, STD, DIMENSION), STD)
        assert found is not None
        row = {"round": rnd, "excess": found.value, "excess_degrees": found.degrees}
        metrics.append(row)
    return metrics


def judge(signal: float, seed: int = 0, **figures: Any) -> dict[str, Any]:
    return verdict(rows(signal, seed=seed), figures, what="update", independent=True)


def test_pure_noise_is_called_drowned_but_for_the_stated_share() -> None:
    runs = 2000
    heard = np.mean([judge(0.0, seed)["signal"] != "drowned" for seed in range(runs)])
    assert 0.002 < heard < FALSE_ALARM + 5 * (FALSE_ALARM / runs) ** 0.5


@pytest.mark.parametrize(("signal", "state"), [(0.6, "below the noise"), (2.0, "above the noise")])
def test_a_strong_signal_is_never_called_drowned(signal: float, state: str) -> None:
    found = [judge(signal, seed) for seed in range(200)]
    assert {one["signal"] for one in found} == {state}
    assert np.mean([one["signal_to_noise"] for one in found]) == pytest.approx(signal, rel=0.05)
    assert "the update can be told from noise" in found[0]["sentences"][0]


def test_the_words_for_noise_and_for_a_model_that_became_worse() -> None:
    evaluation = {
        "estimates": {}, "loss_saved": [-0.02, -0.024, -0.016],
        "accuracy_gained": [0.001, -0.002, 0.004],
    }  # fmt: skip
    found = judge(0.0, evaluation=evaluation)
    assert found["signal"] == "drowned" and found["evaluation"] == "worse"
    assert found["excess_error"] == pytest.approx((2 / 900) ** 0.5, abs=1e-6)
    first, second = found["sentences"]
    assert first.startswith("the noise drowned the update: 3 releases cannot be told from pure")
    assert "loss saved -0.0200 [-0.0240, -0.0160]" in second
    assert second.endswith("the training made the model worse")
    json.dumps(found, allow_nan=False)


def test_no_p_value_is_told_as_zero() -> None:
    sentence = verdict(rows(100.0), {}, what="votes", independent=True)["sentences"][0]
    assert "(p < 1e-300; round by round: " in sentence


@pytest.mark.parametrize("signal", [0.0, 2.0])
def test_the_benchmarks_intervals_say_that_they_leave_out_the_noise(signal: float) -> None:
    told = summary("pretext", SECURE, verdict=judge(signal))
    told["benchmark"]["verdict"] = ["against random public text: accuracy +0.05, better"]
    last = verdict_lines(told)[-1]
    assert "they leave out the draw of the noise" in last
    assert ("which drowned the users' answers" in last) == (signal == 0.0)


def test_an_evaluation_that_gave_nothing_says_nothing() -> None:
    assert len(judge(0.0, evaluation={"failed": "too noisy"})["sentences"]) == 1
    assert verdict([{"round": 1}], {}, what="votes", independent=True) == {"sentences": []}


def test_a_selection_is_told_with_its_interval() -> None:
    estimates = {"round-0002": {"loss": 4.0, "loss_low": 3.9, "loss_high": 4.1}}
    found = judge(2.0, selection={"round": 2, "estimates": estimates})
    assert "round 2 is best, loss 4.0000 [3.9000, 4.1000]" in found["sentences"][1]
    failed = judge(2.0, selection={"round": 3, "estimates": {}, "failed": "no release"})
    assert len(failed["sentences"]) == 1


def test_the_best_of_many_models_has_an_interval_that_holds_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each at 1 - 0.05 / K; two have one comparison and need no words."""
    caps = evaluation.Caps()

    def released(models: dict[str, Path], *, confidence: float, **_: Any) -> dict[str, Any]:
        sums = np.array([1000.0, *(x for i in range(len(models)) for x in (200.0 + i, 400.0))])
        return read_estimates(sums, list(models), 5.0, caps, confidence)

    monkeypatch.setattr(evaluation, "evaluate", released)
    recipe: Any = object.__new__(evaluation.Evaluation)
    recipe.config = RunConfig.from_flat({"method": "evaluation", "measure.models": "a=x,b=y"})
    recipe.run, recipe.base = SimpleNamespace(session=None), Path()
    widths = {}
    for many in (1, 2, 16):
        found = recipe._query({f"m{i}": Path() for i in range(many)})
        last = found["models"][f"m{many - 1}"]
        widths[many] = last["accuracy_high"] - last["accuracy_low"]
        (said,) = judge(0.0, measured=found)["sentences"][1:]
        assert (f"of {many}, in intervals that hold for all of them" in said) == (many > 2)
        assert f"'m{many - 1}' is right most often" in said
    z = [NormalDist().inv_cdf(1 - 0.025 / many) for many in widths]
    assert [w / widths[1] for w in widths.values()] == pytest.approx([x / z[0] for x in z], 0.01)


@pytest.mark.parametrize(
    ("interval", "word"),
    [([1, 0.5, 2], "better"), ([-1, -2, -0.5], "worse"), ([0.1, -0.1, 0.3], "unclear"),
     ([0, 0, 0], "unclear")],
)  # fmt: skip
def test_better_or_worse_needs_an_interval_beside_zero(interval: list[float], word: str) -> None:
    assert judged(interval) == word


def test_the_benchmarks_part_compares_the_result_alone() -> None:
    found = benchmark_verdict(
        {
            "accuracy_difference": {
                "trained-pretrained": [0.01, 0.005, 0.015],
                "private-trained": [0.2, 0.1, 0.3],
            },
            "loss_difference": {"trained-pretrained": [0.02, 0.01, 0.03]},
        }
    )
    assert found == [
        "against the model before: accuracy +0.0100 [+0.0050, +0.0150], better; "
        "loss saved -0.0200 [-0.0300, -0.0100], worse"
    ]


def test_it_is_in_the_terminal_and_in_the_report() -> None:
    told = summary("dp-fedavg", SECURE, verdict=judge(0.0))
    told |= {"noise_multiplier": 1.0, "synthetic_samples": 0, "wall_seconds": 3, "privacy": "long"}
    told |= {"privacy_short": "short", "unfinished": "benchmark"}
    told["benchmark"]["loss"]["private"] = 4.0
    told["benchmark"] |= {"verdict": ["against noise: unclear"], "frechet": {}, "methods": {}}
    assert verdict_lines(told)[0].startswith("verdict: the noise drowned the update")
    assert verdict_lines(told)[1] == "benchmark, not covered by epsilon: against noise: unclear"
    none = Path("none")
    for text in (report([told]), ending(told, none), "\n".join(product_lines(told, none))):
        assert "the noise drowned the update" in text
    assert "(drowned) |" in report([told])
    older = summary("pretext", SECURE)
    assert verdict_lines(older) == [] and "drowned" not in report([older])


def test_a_real_run_has_one(tmp_path: Path, loopback: Any) -> None:
    """Six users' votes on 16 candidates in two rounds, at epsilon 50: they can be heard."""
    config, contexts = deployed(tmp_path)
    folder = RunFolder(tmp_path / "run")
    Run(config, grid_for(loopback, contexts), folder).run()
    found = json.loads((folder.path / "summary.json").read_text())["verdict"]
    metrics = folder.metrics()
    assert [row["excess_degrees"] for row in metrics] == [15, 15]
    for row in metrics:
        released = folder.load_release(row["round"])
        assert released is not None
        expected = excess(released, row["noise_std"], [16])
        assert expected is not None and row["excess"] == pytest.approx(expected.value)
    assert found["signal"] in ("drowned", "below the noise", "above the noise")
    assert len(found["signal_to_noise"]) == 2 and "the votes" in found["sentences"][0]
