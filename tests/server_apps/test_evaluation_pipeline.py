"""`method = "evaluation"` in one process: real handlers, given models, one release."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from safetensors.numpy import load_file, save_file

from privsyn_flower.app.audit import audit
from privsyn_flower.app.cli.ending import ending
from privsyn_flower.app.cli.errors import json_text
from privsyn_flower.app.cli.plan import described
from privsyn_flower.app.preflight.plan import plan_of
from privsyn_flower.app.report.tables import report
from privsyn_flower.config import ConfigError, RunConfig, absolute_paths, cache_folder
from privsyn_flower.data import Federation, prepare
from privsyn_flower.privacy import calibrate
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.server_apps.methods import evaluation
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from privsyn_flower.strategies.engine.rounds import NoRelease
from privsyn_flower.strategies.evaluation import config as measure_keys
from privsyn_flower.text.models.lm_metrics import Scorer
from privsyn_flower.text.models.parameters import MOST_MODELS, read_model
from tests.conftest import sentences
from tests.rigs.plan import BOX
from tests.server_apps.in_process import (
    HANDLERS,
    TEXTS_PER_USER,
    Killed,
    charges,
    committed,
    deployed_nodes,
    grid_for,
    killing,
    kind,
    run,
    run_on,
)

pytestmark = pytest.mark.slow


MODELS = "before=downstream, changed={0}, again=generator"


@pytest.fixture(scope="module")
def changed(causal_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base with its embeddings noised: another model of the same shapes."""
    folder = tmp_path_factory.mktemp("changed") / "model"
    shutil.copytree(causal_folder, folder)
    weights = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(0)
    name = "model.embed_tokens.weight"
    noise = rng.standard_normal(weights[name].shape).astype(np.float32)
    save_file({**weights, name: weights[name] + 0.3 * noise}, folder / "model.safetensors")
    return folder


@pytest.fixture
def configured(small: Callable[..., RunConfig], changed: Path) -> Callable[..., RunConfig]:
    """Three models, the first and the last alike; dotted keys on top."""
    own = {"method": "evaluation", "epsilon": 500.0, "measure.models": MODELS.format(changed)}
    return partial(small, **own)


def truth(config: RunConfig, folder: Path, base: Path) -> tuple[float, float]:
    """Accuracy and loss on all users' text, without noise."""
    scorer, own = Scorer(base, "cpu"), config.measure
    users = Federation(prepare(config.data, cache_folder(config))).shard(0, 1).values()
    limits = {"max_tokens": own.tokens(config), "length": config.evaluation.sequence_length}
    rows = [scorer.encode(list(texts), **limits) for texts in users]
    with scorer.with_parameters(read_model(folder, base)):
        sums = np.sum([scorer.sums(one, own.max_loss) for one in rows], axis=0)
    tokens = sum(len(row) - 1 for one in rows for row in one)
    return float(sums[0] / tokens), float(sums[1] / tokens)


def test_a_table_of_models_from_one_release(
    configured: Any, loopback: Any, tmp_path: Path, causal_folder: Path, changed: Path
) -> None:
    config = configured()
    summary, grid = run(config, loopback, tmp_path / "run")
    assert {kind(message) for message in grid.sent} == {"query.hello", "query.evaluation"}
    (paid,) = committed(tmp_path / "run")
    assert len(charges(tmp_path / "run")) == 1
    assert paid["noise_multiplier"] == calibrate(500.0, 2, gaussian_delta(config.delta))  # a spare
    assert "over 1 evaluation of models on the nodes and 1 spare, each with" in summary["privacy"]
    assert summary["epsilon_ledger"] < summary["epsilon"] <= 500.0

    found = summary["measured"]
    assert list(found["models"]) == ["before", "changed", "again"]
    assert found["against"] == "before" and list(found["gained"]) == ["changed", "again"]
    halves = {
        what: max(own[f"{what}_high"] - own[f"{what}_low"] for own in found["models"].values()) / 2
        for what in ("accuracy", "loss")
    }
    for name, folder in (("before", causal_folder), ("changed", changed)):
        own, (accuracy, loss) = found["models"][name], truth(config, folder, causal_folder)
        for what, value in (("accuracy", accuracy), ("loss", loss)):
            # An interval of 1.96 standard deviations; five of them never miss. That of an accuracy
            # near 0 ends there, and may be empty; hardly those of all three models.
            half = halves[what]
            assert abs(own[what] - value) < 5 / 1.96 * half + 1e-3, (name, what)
    value, low, high = found["gained"]["again"]["loss_saved"]
    assert low < value < high and abs(value) < 2 * (high - low)  # the same model

    assert (tmp_path / "run" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert any(line.startswith("evaluated on the nodes: ") for line in said(summary))
    own = found["models"]["changed"]
    assert f"| changed | {own['accuracy']:.4f} [" in report([summary])
    assert "changed: accuracy" in ending(summary, tmp_path / "run")
    again, grid = run(config, loopback, tmp_path / "run")
    assert grid.sent == [] and again["measured"] == found


def said(summary: dict[str, Any]) -> list[str]:
    found: list[str] = summary["verdict"]["sentences"]
    return found


def test_killed_before_its_figures_it_is_not_asked_again(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killing(patch, evaluation, "figures")
        with pytest.raises(Killed):
            run(configured(), loopback, tmp_path / "run")
    summary, grid = run(configured(), loopback, tmp_path / "run")
    assert grid.sent == [] and len(committed(tmp_path / "run")) == 1
    assert len(summary["measured"]["models"]) == 3


def test_nodes_that_fail_are_asked_again_by_a_resume(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is given up that nothing else was paid for."""
    with monkeypatch.context() as patch:
        patch.setitem(
            HANDLERS, "query.evaluation", lambda m, c: Message(Error(0, "down"), reply_to=m)
        )
        with pytest.raises(NoRelease):
            run(configured(), loopback, tmp_path / "run")
    summary, _ = run(configured(), loopback, tmp_path / "run")
    assert "models" in summary["measured"]


def test_noise_that_drowns_it_is_said(configured: Any, loopback: Any, tmp_path: Path) -> None:
    config = configured(**{"epsilon": 0.05, "simulation-seeded-noise": True})
    summary, _ = run(config, loopback, tmp_path / "run")
    assert list(summary["measured"]) == ["failed"] and said(summary) == []
    assert "standard deviations of its noise" in report([summary])
    assert not (tmp_path / "run" / "accuracy.png").exists()
    text = described(planned(config, tmp_path))
    assert "no figure would have an interval" in text


def planned(config: RunConfig, tmp_path: Path) -> Any:
    return plan_of(absolute_paths(config, tmp_path / "planned"), tmp_path / "planned", BOX)


def test_its_plan(configured: Any, tmp_path: Path, causal_folder: Path) -> None:
    plan = planned(configured(), tmp_path)
    told, text = json.loads(json_text(plan.as_dict())), described(plan)
    assert told["privacy"]["releases"] == 2 and told["ready"]
    assert told["device"]["coordinates"] == 1 + 2 * 3
    assert "an accuracy's 95 % interval is then about +-" in text
    assert {stage["stage"] for stage in told["stages"]} == {"evaluation"}
    assert all(stage["tasks"] for stage in told["stages"])
    (down,) = {told["device"]["down"]}
    weights = sum(a.size for a in load_file(causal_folder / "model.safetensors").values())
    assert down == pytest.approx(3 * 4 * weights, rel=0.5)


def test_its_audit(configured: Any) -> None:
    found = audit(configured(**{"epsilon": 1.0, "spare-rounds": 0}), trials=200)
    assert found.kind == "evaluation" and not found.contradiction
    assert found.claimed_epsilon <= 1.0


@pytest.mark.parametrize(
    ("models", "named"),
    [
        ("", "measure.models is empty"),
        ("a=downstream, b=/no/such/folder", "b = '/no/such/folder' cannot be measured"),
        ("a=downstream, b={other}", "has other parameters than its base"),
        ("a=downstream, b={words}", "has another tokenizer than its base"),
    ],
)
def test_models_that_do_not_fit_are_told_before_a_node_is_asked(
    configured: Any, loopback: Any, tmp_path: Path, changed: Path, models: str, named: str
) -> None:
    from privsyn_flower.text.models.lstm import WordTraining, make_lstm

    if "{other}" in models:
        make_lstm(
            tmp_path / "lstm", sentences(9, 1), WordTraining(1), words=20, hidden=4, embedding=4
        )
    if "{words}" in models:
        shutil.copytree(changed, tmp_path / "words")
        tokens = json.loads((tmp_path / "words" / "tokenizer.json").read_text())
        tokens["normalizer"] = {"type": "Lowercase"}
        (tmp_path / "words" / "tokenizer.json").write_text(json.dumps(tokens))
    places = {"other": tmp_path / "lstm", "words": tmp_path / "words"}
    config = configured(**{"measure.models": models.format(**places)})
    with pytest.raises(ConfigError, match=named):
        run(config, loopback, tmp_path / "run")
    assert not (tmp_path / "run" / "evaluations").exists()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"measure.models": "a"}, "NAME=MODEL pairs"),
        ({"measure.models": "a=x,a=y"}, "distinct names"),
        ({"measure.models": ",".join(f"m{i}=x" for i in range(17))}, "16 of them at most"),
        ({"benchmark": True}, "benchmark = true with method = 'evaluation'"),
        ({"method": "pretext", "measure.gap": 0.1}, "belong to method = 'evaluation'"),
    ],
)
def test_wrong_keys(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        RunConfig.from_flat({"method": "evaluation", **values})


def test_as_many_models_as_nodes_take() -> None:
    assert measure_keys.MOST_MODELS == MOST_MODELS


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    values = {"method": "evaluation", "measure.models": "x=a,y=downstream,z=org/name"}
    moved = absolute_paths(RunConfig.from_flat(values), tmp_path / "run").measure.named
    assert moved == {"x": str(tmp_path / "a"), "y": "downstream", "z": "org/name"}


POLICY = """
queries = ["evaluation"]
min-surviving-weight = 1.0
min-noise-multiplier = 0.01
lifetime-epsilon = 1e9
"""


def test_deployed_nodes_need_no_public_text(
    configured: Any, loopback: Any, tmp_path: Path, causal_folder: Path
) -> None:
    texts = [sentences(6 * TEXTS_PER_USER, seed=number) for number in range(3)]
    own = {"downstream": str(causal_folder), "device": "cpu"}
    contexts = deployed_nodes(tmp_path, POLICY, texts, **own)
    config = configured(**{"data.path": "", "data.public-path": "", "measure.gap": 0.1})
    summary = run_on(grid_for(loopback, contexts), config, tmp_path / "run")
    assert set(summary["measured"]["models"]) == {"before", "changed", "again"}
    assert privacy_plan(config).main.name == "evaluation"
