"""Training through the whole pipeline in one process: real handlers, a random model."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

from privsyn_flower.app.cli.ending import ending
from privsyn_flower.app.report.guarantee import curve, fact_sheets
from privsyn_flower.app.report.tables import report
from privsyn_flower.client_apps import updates
from privsyn_flower.common.progress import silent
from privsyn_flower.config import ConfigError, RunConfig, load_config
from privsyn_flower.data import DataError
from privsyn_flower.evaluation import public
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.privacy import calibrate
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.runs import RunFolder, complete, read_jsonl
from privsyn_flower.server_apps import run as stages
from privsyn_flower.server_apps.methods import recipe_of, training
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.privacy_plan import privacy_plan, statement
from privsyn_flower.server_apps.public_text import PublicText, public_text
from privsyn_flower.server_apps.run import Run
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.engine.rounds import Rounds
from tests.conftest import sentences
from tests.server_apps.in_process import (
    CONFIGS,
    DP_FEDAVG,
    FTRL,
    HANDLERS,
    TEXTS_PER_USER,
    Killed,
    charges,
    committed,
    deployed_nodes,
    ending_early,
    grid_for,
    killing,
    kind,
    run,
    run_on,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def configured(small: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Dotted keys on top of DP-FedAvg in two rounds -> the configuration."""
    return partial(small, **DP_FEDAVG)


POLICY = """
queries = ["update"]
min-noise-multiplier = 0.01
lifetime-epsilon = 1e9
"""


def arrays(packed: Path) -> dict[str, np.ndarray[Any, Any]]:
    from safetensors.numpy import load

    return dict(load(packed.read_bytes()))


def test_dp_fedavg_from_data_to_figures(
    configured: Any, loopback: Any, tmp_path: Path, shared: Path
) -> None:
    config = configured(**{"benchmark": True, "training.evaluate": True})
    summary, grid = run(config, loopback, tmp_path / "run")
    assert {kind(message) for message in grid.sent} == {"query.hello", "query.evaluation", "train"}
    assert not (tmp_path / "run" / "synthetic.jsonl").exists()

    # The claim, and what was paid for it: two rounds, a spare one and the evaluation.
    assert (summary["method"], summary["rounds"], summary["synthetic_samples"]) == (
        "dp-fedavg", 2, 0,
    )  # fmt: skip
    assert summary["noise_multiplier"] == calibrate(500.0, 4, gaussian_delta(config.delta))
    assert 0 < summary["epsilon_ledger"] < summary["epsilon"] <= 500.0
    assert (summary["epsilon"], config.delta) in curve(summary)
    assert summary["mu_gdp"] == pytest.approx(math.sqrt(2 * summary["rho_zcdp"]))
    assert "(2 rounds were released)" in fact_sheets([summary])
    assert summary["accountant"] == "exact" and "honest-but-curious" in summary["threat_model"]
    assert "2 rounds and 1 spare and 1 evaluation of models on the nodes" in summary["privacy"]
    name = RunFolder(tmp_path / "run").load_value("run")
    paid = [(row["run"], row["query"]) for row in charges(tmp_path / "run")]
    assert paid == [(name, "update")] * 2 + [(f"{name}-evaluation", "evaluation")]

    # Only factors travel: the start is a folder that the nodes have.
    (metrics, _) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    trained = arrays(tmp_path / "run" / "models" / "final.safetensors")
    assert all(name.endswith((".up", ".down")) for name in trained)
    values = sum(array.size for array in trained.values())
    up = sum(array.size for name, array in trained.items() if name.endswith(".up"))
    assert summary["parameters"] == up
    assert metrics["bytes_down_per_node"] < 4 * values + 12_000
    assert "candidates" not in metrics and metrics["clip_norm"] == 1.0

    # The model loads, and is the start with the factors on it.
    start = next((shared / "cache" / "models").glob("start-*[0-9a-f]"))
    before, after = (Downstream(f, length=16).parameters() for f in (start, tmp_path / "run/model"))
    for name, array in before.items():
        product = 0.0
        if f"{name}.up" in trained:
            product = trained[f"{name}.up"] @ trained[f"{name}.down"].astype(np.float32)
            assert np.abs(product).max() > 0
        np.testing.assert_allclose(after[name], array + product, atol=1e-6)

    found = summary["benchmark"]
    assert list(found["methods"]) == [
        "pretrained", "random_public", "noise_updates", "trained", "private",
    ]  # fmt: skip
    assert {"trained-random_public", "trained-noise_updates", "private-trained"} <= set(
        found["loss_difference"]
    )
    # What has hardly any noise has learned something; noise alone has not.
    assert found["loss_difference"]["trained-random_public"][2] < 0
    loss = found["loss"]
    assert abs(loss["noise_updates"] - loss["random_public"]) < 0.01
    assert (tmp_path / "run" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    costs = found["costs"]
    assert costs["releases"] == 3 and costs["server_wall_seconds"] >= 0
    assert costs["client_cpu_seconds_per_user"] > costs["client_cpu_seconds_per_user_round"] > 0
    assert costs["bytes_down_per_user_round"] == summary["bytes_down_per_user_round"] > 0

    evaluation = summary["evaluation"]
    assert list(evaluation["estimates"]) == ["start", "final"]
    saved, low, high = evaluation["loss_saved"]
    assert low < saved < high  # of real noise: its sign may be wrong in so few users
    estimate = evaluation["estimates"]["final"]
    assert estimate["loss_low"] < estimate["loss"] < estimate["loss_high"]
    assert "against random public text: accuracy" in " ".join(ending(summary, tmp_path).split())
    assert "dp-fedavg" in report([summary])

    told = summary["verdict"]
    assert metrics["excess_degrees"] == up and told["signal"] != "drowned"
    assert told["signal_to_noise"][0] == pytest.approx(metrics["excess"] ** 0.5, abs=1e-4)
    assert told["evaluation"] in ("better", "worse", "unclear") and len(told["sentences"]) == 2
    assert any(line.startswith("against random public text: ") for line in found["verdict"])

    again, grid = run(config, loopback, tmp_path / "run")
    assert grid.sent == [] and again["benchmark"] == found
    assert (again["evaluation"], again["epsilon_ledger"]) == (
        evaluation, summary["epsilon_ledger"],
    )  # fmt: skip


@pytest.mark.parametrize("chosen", ["", "random-public"])
def test_controls_that_were_left_out_are_nowhere(
    configured: Any, loopback: Any, tmp_path: Path, chosen: str
) -> None:
    small = {"rounds": 1, "aggregation": "plain", "benchmark": True}
    config = configured(**small, **{"evaluation.controls": chosen})
    summary, _ = run(config, loopback, tmp_path / "run")
    public = ["random_public"] * bool(chosen)
    found = summary["benchmark"]
    assert list(found["methods"]) == ["pretrained", *public, "trained", "private"]
    assert found["training_texts"].keys() == {"private"}
    assert not (tmp_path / "run" / "control").exists()
    assert (tmp_path / "run" / "accuracy.png").exists()
    told = " ".join(ending(summary, tmp_path / "run").split())
    assert ("against random public text: accuracy" in told) == bool(chosen)
    assert ("no control on random public text" in told) != bool(chosen)


def test_a_control_of_another_method_is_an_error(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    config = configured(**{"benchmark": True, "evaluation.controls": "unaligned"})
    with pytest.raises(ConfigError, match=r"'unaligned' is none of dp-fedavg's.*noise"):
        run(config, loopback, tmp_path / "run")
    assert not (tmp_path / "run" / "queries").exists()


def test_dp_ftrl_with_turns_and_a_trusted_aggregator(
    configured: Any, loopback: Any, tmp_path: Path, keys: Path
) -> None:
    config = configured(**FTRL, **{"benchmark": True, "training.evaluate": True})
    summary, grid = run(config, loopback, tmp_path / "run")
    assert summary["threat_model"].startswith("trusted aggregator")
    for words in ("TRUSTED", "correlated across rounds (banded)", "at most 2 rounds, 2 or more"):
        assert words in summary["privacy"]
    assert (summary["rounds"], summary["participations_per_user"]) == (4, 2)
    assert summary["accountant"] == "exact"
    # The rounds and the evaluation together are worth epsilon, and were all charged.
    assert summary["epsilon"] == pytest.approx(500.0, rel=1e-6)
    assert summary["epsilon_ledger"] == pytest.approx(500.0, rel=1e-6)
    assert summary["epsilon_ledger"] <= 500.0
    rows = charges(tmp_path / "run")
    assert [row["query"] for row in rows] == ["update"] * 4 + ["evaluation"]
    assert {row["mechanism"] for row in rows if "mechanism" in row} <= {"gaussian"}
    costs = [1 / row["noise_multiplier"] ** 2 for row in rows]
    assert costs[-1] == pytest.approx(sum(costs) / 3)  # one of three participations
    # The key of the noise is gone with the run.
    assert [path for path in keys.rglob("*") if path.is_file()] == []
    found = summary["benchmark"]
    assert "noise_updates" in found["methods"]
    noisy = read_jsonl(tmp_path / "run" / "control" / "metrics.jsonl")
    assert [row["round"] for row in noisy] == [1, 2, 3, 4]
    assert not (tmp_path / "run" / "control" / "control").exists()
    assert set(arrays(tmp_path / "run" / "models" / "final.safetensors")) == {
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.norm.weight",
    }
    again, grid = run(config, loopback, tmp_path / "run")
    assert grid.sent == [] and again["benchmark"] == found


def test_a_failed_evaluation_leaves_no_key(
    configured: Any, loopback: Any, tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def down(message: Message, context: Any) -> Message:
        begun.append(len([path for path in keys.rglob("key") if path.is_file()]))
        return Message(Error(0, "down"), reply_to=message)

    monkeypatch.setitem(HANDLERS, "query.evaluation", down)
    config = configured(**{**FTRL, "rounds": 2, "training.evaluate": True})
    summary, _ = run(config, loopback, tmp_path / "run")
    assert "no round was released" in summary["evaluation"]["failed"]
    assert begun and set(begun) == {1}  # the evaluation's own, while it was tried
    assert [path for path in keys.rglob("*") if path.is_file()] == []


def test_whole_nodes_take_turns(configured: Any, loopback: Any, tmp_path: Path) -> None:
    own = {"ftrl.schedule": "nodes", "nodes": 6, "aggregation": "plain", "training.public-steps": 0}
    config = configured(**{**FTRL, "rounds": 2, **own})
    _, grid = run(config, loopback, tmp_path / "run")
    asked = [m.metadata.dst_node_id for m in grid.sent if kind(m) == "train"]
    assert sorted(asked) == [1, 2, 3, 4, 5, 6] and set(asked[:3]) == {1, 3, 5}


def test_an_aggregator_may_add_independent_noise(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    config = configured(**{"training.noise": "aggregator", "training.parameters": "full"})
    summary, _ = run(config, loopback, tmp_path / "run")
    assert summary["noise_multiplier"] == pytest.approx(
        calibrate(500.0, 2, gaussian_delta(config.delta))
    )
    assert summary["threat_model"].startswith("trusted aggregator")
    assert "benchmark" not in summary and "evaluation" not in summary
    start, final = (arrays(tmp_path / "run/models" / f"{n}.safetensors") for n in STORED)
    assert set(start) == set(final) and any(np.any(start[n] != final[n]) for n in start)


STORED = ("training-start", "final")


STAGES: list[tuple[str, Any, str, Any]] = [
    ("public", public, "save_model", None),
    ("asking", updates, "update", lambda m, c: m.metadata.dst_node_id == 2),
    ("learning", TrainingStrategy, "learn", lambda self, rnd, *a: rnd == 2),
    ("evaluation", training, "facts", None),
    ("export", training, "export_model", None),
    ("control", training, "noise_updates", None),
    ("benchmark", training, "training_benchmark", None),
    ("summary", stages, "write_json", None),
]
RESULT_STANDS = {"control", "benchmark", "summary"}


def test_the_result_is_on_disk_before_its_benchmark_begins(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and what finishes the benchmark later changes nothing in it."""
    values = {"benchmark": True, "evaluation.controls": "", "cache": str(tmp_path / "cache")}
    config, path = configured(**values), tmp_path / "run"
    with monkeypatch.context() as patch:
        killing(patch, training.Training, "benchmark", None)
        with pytest.raises(Killed):
            run(config, loopback, path)
    early = json.loads((path / "summary.json").read_text())
    assert early.pop("unfinished") == "benchmark" and "benchmark" not in early
    assert early["epsilon"] <= config.epsilon and (path / "privacy.md").exists()
    model = (path / "model" / "model.safetensors").read_bytes()
    told = ending(early, path)
    assert told.startswith("privacy ") and "held-out users" not in told

    with monkeypatch.context() as patch:
        killing(patch, Rounds, "_attempt", None)
        late, grid = run(config, loopback, path)
    assert grid.sent == [] and late.pop("benchmark")["accuracy"].keys() >= {"trained", "private"}
    assert (path / "model" / "model.safetensors").read_bytes() == model
    spent = {"wall_seconds", "stage_seconds"}
    assert {k: v for k, v in late.items() if k not in spent} == {
        k: v for k, v in early.items() if k not in spent
    }


@pytest.mark.parametrize("ftrl", [False, True], ids=["fedavg", "ftrl"])
def test_a_run_killed_in_every_stage_ends_as_if_it_had_not_been(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ftrl: bool
) -> None:
    values = {"benchmark": not ftrl, "training.evaluate": True, "cache": str(tmp_path / "cache")}
    config = configured(**(FTRL if ftrl else {}), **values)
    path = tmp_path / "run"
    for stage, place, name, when in STAGES:
        if ftrl and stage in {"export", "control", "benchmark"}:  # the other method's alike
            continue
        with monkeypatch.context() as patch:
            killing(patch, place, name, when)
            with pytest.raises(Killed, match=name):
                run(config, loopback, path)
        assert not complete(path), stage
        assert (path / "summary.json").exists() == (stage in RESULT_STANDS and not ftrl), stage
    summary, grid = run(config, loopback, path)
    assert grid.sent == []  # all that was asked was on disk
    assert "loss_saved" in summary["evaluation"]
    rounds = config.rounds
    assert summary["rounds"] == rounds
    paid = committed(path)
    assert [row["round"] for row in paid] == [*range(1, rounds + 1), 1]
    assert summary["epsilon_ledger"] <= summary["epsilon"]

    # The model is what one process makes of the stored releases, bit for bit.
    replayed = RunFolder(tmp_path / "replay")
    models = Models(config, PublicText([], None), replayed, silent)
    method = recipe_of(config)(Run(config, grid, replayed), models)
    method.start = public_folder(config)
    strategy = method.strategy(replayed)
    folder = RunFolder(path)
    for row in folder.metrics():
        released = folder.load_release(row["round"])
        assert released is not None
        strategy.learn(row["round"], released, row["noise_std"])
    final = arrays(path / "models" / "final.safetensors")
    for array_name, array in strategy.parameters().items():
        assert array.tobytes() == final[array_name].tobytes()


def test_the_model_is_the_last_one_of_a_run_that_ended_early_and_went_on(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed after it had exported an earlier one."""
    config, path = configured(cache=str(tmp_path / "cache")), tmp_path / "run"
    with monkeypatch.context() as patch:
        ending_early(patch)
        killing(patch, stages, "write_json", None)
        with pytest.raises(Killed):
            run(config, loopback, path)
    first = arrays(path / "model" / "model.safetensors")
    assert (RunFolder(path).last_checkpoint() or {})["round"] == 1
    summary, _ = run(config, loopback, path)
    assert summary["rounds"] == config.rounds > 1
    final = arrays(path / "models" / "final.safetensors")
    wanted = arrays(
        public.export_model(public_folder(config), final, tmp_path / "wanted") / "model.safetensors"
    )
    model = arrays(path / "model" / "model.safetensors")
    assert all(np.array_equal(model[name], wanted[name]) for name in wanted)
    assert any(not np.array_equal(first[name], wanted[name]) for name in wanted)


def public_folder(config: RunConfig) -> Path:
    (found,) = (Path(config.cache) / "models").glob("start-" + "?" * 24)
    return found


def test_a_noisy_evaluation_leaves_the_model(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    small = {"rounds": 1, "aggregation": "plain", "training.public-steps": 0}
    # Real noise alone looks like users once in forty times, however much there is of it.
    small["simulation-seeded-noise"] = True
    config = configured(**{"epsilon": 1.0, "training.evaluate": True, **small})
    summary, _ = run(config, loopback, tmp_path / "run")
    assert summary["evaluation"].keys() == {"failed"} and summary["rounds"] == 1
    again, grid = run(config, loopback, tmp_path / "run")
    assert grid.sent == [] and again["evaluation"] == summary["evaluation"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"training.parameters": "layers", "training.layers": "*.nothing"}, r"training\.layers"),
        ({"training.lora-rank": 33}, r"training\.lora-rank = 33"),
        ({"evaluation.sequence-length": 400}, r"evaluation\.sequence-length = 400"),
        ({"evaluation.sequence-length": 4000}, r"sequence-length = 4000"),
        ({"noise-multiplier": 1e-3}, r"noise-multiplier = 0\.001 costs epsilon"),
        ({**FTRL, "noise-multiplier": 1e-3}, r"noise-multiplier = 0\.001 costs epsilon.*4 rounds"),
        ({"training.public-steps": 3, "data.public-path": ""}, r"training\.public-steps = 3"),
    ],
)
def test_wrong_keys_are_told_before_a_node_is_asked(
    configured: Any, loopback: Any, tmp_path: Path, values: Any, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        run(configured(**values), loopback, tmp_path / "run")
    assert not (tmp_path / "run" / "queries").exists()


def test_a_deployed_base_is_tuned_before(configured: Any, loopback: Any, tmp_path: Path) -> None:
    config = configured(**{"data.path": "", "training.public-steps": 3})
    with pytest.raises(ConfigError, match=r"training\.public-steps = 3.*models\.downstream"):
        Run(config, loopback({}), RunFolder(tmp_path / "run")).run()


def test_a_deployed_training_needs_no_public_text(
    configured: Any, loopback: Any, tmp_path: Path, causal_folder: Path
) -> None:
    """The nodes have the users; the server has the base and nothing to read."""
    there = {"data.path": "", "data.public-path": "", "training.public-steps": 0}
    texts = [sentences(6 * TEXTS_PER_USER, seed=number) for number in range(3)]
    own = {"downstream": str(causal_folder), "device": "cpu", "embedder": "ngram-64"}
    grid = grid_for(loopback, deployed_nodes(tmp_path, POLICY, texts, **own))
    summary = run_on(grid, configured(**there), tmp_path / "run")
    assert summary["rounds"] == 2 and "benchmark" not in summary
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    # What makes text of public text still asks for it.
    with pytest.raises(DataError, match=r"data\.public-path is empty"):
        public_text(RunConfig.from_flat({"data.source": "files", "data.users": 18}), silent)


def test_the_keyboards_lstm_goes_the_whole_way(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    """All of its parameters, trained by DP-FTRL and measured: a folder like any other model's. Then
    it filters the public pool, and new LSTMs tell what that is worth."""
    from privsyn_flower.text.models.lstm import WordTraining, make_lstm

    words = sentences(30, seed=3)
    made = make_lstm(tmp_path / "lstm", words, WordTraining(2), words=60, hidden=12, embedding=6)
    whole = {"training.parameters": "full", "training.layers": "", "training.evaluate": True}
    named = {"models.downstream": str(made), "training.public-steps": 0, "benchmark": True}
    kept = {"proximity.filter": True, "proximity.least-score": -50.0, "proximity.gain": False}
    config = configured(**{**FTRL, **whole, **named, **kept, "evaluation.controls": "noise"})
    summary, _ = run(config, loopback, tmp_path / "run")
    before, after = (Downstream(f, length=16).parameters() for f in (made, tmp_path / "run/model"))
    assert summary["parameters"] == sum(array.size for array in before.values())
    assert all(np.abs(after[name] - before[name]).max() > 0 for name in before)
    assert set(summary["evaluation"]["estimates"]) == {"start", "final"}

    found, scratch = summary["benchmark"], {"scratch_filtered", "scratch_random", "scratch_noise"}
    assert set(found["accuracy"]) == {
        "pretrained", "noise_updates", "trained", "private", *scratch,
    }  # fmt: skip
    assert 0 <= found["unknown_rate"] < 1
    assert {f"scratch_filtered-{o}" for o in ("pretrained", "scratch_random", "scratch_noise")} <= (
        set(found["accuracy_difference"])
    )
    texts, folder = found["proximity"]["texts"], tmp_path / "run" / "anew"
    assert texts["scratch_filtered"] == texts["scratch_random"] == summary["proximity"]["kept"]
    assert texts["pretrained"] == summary["proximity"]["of"] >= texts["scratch_noise"] > 0
    assert {path.name for path in folder.iterdir() if path.is_dir()} == scratch | {"by-noise"}


def test_noise_and_evaluation_share_epsilon(configured: Any) -> None:
    """All releases of a trusted aggregator's are one Gaussian; the numbers by hand."""
    central = {"training.noise": "aggregator", "rounds": 8, "epsilon": 7.58}
    plain = configured(**central)
    assert privacy_plan(plain).main.multiplier == pytest.approx(
        calibrate(7.58, 8, gaussian_delta(plain.delta))
    )
    both = configured(**central, **{"training.evaluate": True})
    assert privacy_plan(both).main.multiplier == pytest.approx(
        calibrate(7.58, 9, gaussian_delta(both.delta))
    )
    assert statement(both).evaluations == 1
    given = configured(**central, **{"noise-multiplier": 4.0})
    assert privacy_plan(given).main.multiplier == 4.0
    assert statement(given).epsilon < 7.58
    # Bands no longer than the separation do not overlap: k times the norm of one column.
    ftrl = {**FTRL, "rounds": 32, "ftrl.min-separation": 4, "epsilon": 7.58}
    correlated = configured(**ftrl)
    columns = [1.0, 1 / 2, 3 / 8, 5 / 16]
    norm = np.sqrt(8 * np.sum(np.square(columns)))
    one = calibrate(7.58, 1, gaussian_delta(correlated.delta))
    assert privacy_plan(correlated).main.multiplier == pytest.approx(one * norm)
    claim = statement(correlated)
    assert claim.noise_multiplier == pytest.approx(one * np.sqrt(8))
    assert (claim.correlated, claim.min_separation, claim.spare_rounds) == ("banded", 4, 0)


@pytest.mark.parametrize("name", ["dp-fedavg-test", "dp-ftrl-test"])
def test_shipped_miniatures(
    name: str, shared: Path, loopback: Any, tmp_path: Path, causal_folder: Path
) -> None:
    """As shipped, but with text and a model that need no training."""
    config = load_config(
        CONFIGS / f"{name}.toml",
        {
            "cache": str(shared / "cache"),
            "data.source": "files",
            "data.path": str(shared / "private.jsonl"),
            "data.public-path": str(shared / "public.jsonl"),
            "data.users": 18,
            "data.public-pool": 50,
            "models.downstream": str(causal_folder),
            "models.device": "cpu",
        },
    )
    summary, _ = run(config, loopback, tmp_path / "run")
    assert summary["rounds"] == config.rounds and summary["epsilon"] <= 50.0
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_the_evaluation_of_an_earlier_model_is_not_the_results(
    configured: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """A run that ended early was evaluated, was killed before its summary, and went on."""
    config = configured(**{"training.evaluate": True})
    recipe: Any = object.__new__(recipe_of(config))
    recipe.config, recipe.folder = config, RunFolder(tmp_path)
    recipe.run = SimpleNamespace(clock=lambda stage: contextlib.nullcontext())
    asked = []

    def evaluated(final: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(final)
        return {"loss_saved": len(asked)}

    recipe._evaluated = evaluated
    for weight, found in ((1.0, {"loss_saved": 1}), (1.0, {"loss_saved": 1}), (2.0, None)):
        weights = {"w": np.full(3, weight, np.float32)}
        recipe.evaluate(SimpleNamespace(parameters=lambda weights=weights: weights))
        assert recipe.evaluation == (found or {"failed": training.EARLIER})
    assert len(asked) == 1  # paid for once


def test_a_classifier_is_refused_where_next_tokens_are_learned(
    configured: Any, loopback: Any, tmp_path: Path, causal_folder: Path
) -> None:
    public.save_classifier(causal_folder, ("one", "two"), tmp_path / "classifier")
    config = configured(**{"models.downstream": str(tmp_path / "classifier")})
    with pytest.raises(ConfigError, match=r"has the classes \['one', 'two'\], and training.labels"):
        run(config, loopback, tmp_path / "run")
