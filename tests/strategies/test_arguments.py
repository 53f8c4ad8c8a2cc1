"""A second start in a folder is told what differs, and an error names an argument."""

from __future__ import annotations

import inspect
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from privsyn_flower.config import AveragingConfig, PreTextConfig
from privsyn_flower.config import api as config_api
from privsyn_flower.strategies import (
    CTCL,
    DPFedAvg,
    POPri,
    PrEText,
    SynthesisStrategy,
    TrainingStrategy,
)
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.engine.aggregation import PlainSum, SecureAggregation
from privsyn_flower.strategies.engine.arguments import (
    _KEYS,
    changes,
    check_arguments,
    described,
    print_last,
)
from privsyn_flower.text import MaskFill, Retrieval, load_embedder
from tests.conftest import sentences
from tests.rigs.arguments import Zeros
from tests.strategies.training_rig import WEIGHTS, record, trainers


@pytest.fixture
def flower_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What Flower's log has had since the last call."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO)

    def lines() -> str:
        found = "\n".join(r.getMessage() for r in caplog.records if r.name == "flwr")
        caplog.clear()
        return found

    return lines


def train(grid: Any, folder: Path, rate: float, clip: float = 10.0) -> Any:
    strategy = DPFedAvg(AveragingConfig(clip_norm=clip, server_learning_rate=rate))
    return strategy.start(
        grid,
        record(),
        num_rounds=2,
        train_config=ConfigRecord({"lr": rate}),
        epsilon=8.0,
        delta=1e-5,
        users=100,
        nodes=4,
        folder=folder,
        aggregation=PlainSum(),
        node_timeout=0.2,
    )


def test_a_complete_folder_says_that_nothing_was_asked_and_what_differs(
    tmp_path: Path, loopback: Any, flower_log: Any
) -> None:
    first = train(loopback(trainers(4, users=25)), tmp_path, 1.0)
    told = flower_log()
    assert "complete already" not in told and "\nverdict: the update can be told" in told
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["verdict"]["sentences"][0] in told
    grid = loopback(trainers(2, users=25))
    again = train(grid, tmp_path, 0.25)
    told = flower_log()
    assert again.metrics == first.metrics and grid.sent == []
    assert f"{tmp_path} is complete already, nothing was asked" in told
    assert "config.server_learning_rate = 0.25 was 1.0" in told
    assert "train_config.lr = 0.25 was 1.0" in told
    assert "2 nodes are connected, were 4" in told and "context.run_id" in told
    train(loopback(trainers(4, users=25)), tmp_path, 1.0)
    assert "(no argument differs from then)" in flower_log()


def test_values_in_words() -> None:
    retrieval = Retrieval(["a b", "c d"], np.eye(2, 64), load_embedder("ngram-64"), 1)
    found = described("variation", retrieval)
    assert found["variation"] == "Retrieval" and found["variation.neighbors"] == "1"
    one, other = described("texts", ["a", "b"]), described("texts", ["a", "c"])
    assert one["texts"].startswith("2 texts (") and len(changes(one, other)) == 1
    assert described("config", PreTextConfig(lookahead=3))["config.lookahead"] == "3"
    assert described("key", "it's") == {"key": '"it\'s"'} and described("f", sorted) == {}


@pytest.fixture
def own_app() -> Any:
    """As in a ServerApp that no configuration made."""
    token = config_api._CONFIGURED.set(False)
    yield
    config_api._CONFIGURED.reset(token)


def pretext(texts: int, **options: Any) -> PrEText:
    return PrEText(
        sentences(texts, 0), embedder=load_embedder("ngram-64"), variation=None, rounds=1, **options
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: MaskFill("/no/such"), "MaskFill(model) = '/no/such'"),
        (lambda: MaskFill("m", mask_fraction=2.0), "MaskFill(mask_fraction) = 2.0: must lie"),
        (lambda: load_embedder("no such"), "load_embedder(name) = 'no such'"),
        (
            lambda: Retrieval(["a", "b"], np.eye(2, 64), load_embedder("ngram-64"), 9),
            "Retrieval(neighbors) = 9: must lie in [1, 1]",
        ),
        (lambda: pretext(20), "lower PreTextConfig(population) or raise the public texts"),
        (
            lambda: Zeros().start(  # type: ignore[call-arg]
                None, folder="f", users=10, epsilon=1.0, delta=1e-5, colluding_weight=0.5
            ),
            "min_surviving_weight = 0.85 and colluding_weight = 0.5 need",
        ),
    ],
)
def test_an_error_in_an_app_of_ones_own_names_an_argument(
    call: Any, words: str, own_app: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception) as caught:
        call()
    assert words in str(caught.value)
    with config_api.configured(), pytest.raises(Exception) as caught:
        call()
    assert words not in str(caught.value)  # a configuration has keys


NAN, WEIGHT = float("nan"), "min_surviving_weight"


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("epsilon", "4", "a valid number"),
        ("delta", 2, "less than 1"),
        ("users", "40", "a valid integer"),
        ("users", 4.5, "a valid integer"),
        ("users", -4, "greater than or equal to 1"),
        ("nodes", -1, "greater than or equal to 1"),
        ("num_rounds", 0, "greater than or equal to 1"),
        ("num_rounds", 2.5, "a valid integer"),
        ("spare_rounds", -1, "greater than or equal to 0"),
        (WEIGHT, -1.0, "greater than 0"),
        (WEIGHT, 2.0, "less than or equal to 1"),
        ("colluding_weight", -1.0, "greater than or equal to 0"),
        ("node_keys", "foo", "'first-use' or 'roster'"),
        ("timeout", None, "a valid number"),
        ("timeout", -1.0, "greater than 0"),
        ("round_timeout", None, "a valid number"),
        ("stage_timeout", 0.0, "greater than 0"),
        ("node_timeout", NAN, "a finite number"),
        ("initial_arrays", WEIGHTS, "an ArrayRecord"),
        ("train_config", 5, "a ConfigRecord"),
        ("evaluate_fn", 0.5, "a function"),
        ("aggregation", "plane", "'secure' or 'plain'"),
        ("aggregation", 5, "'secure' or 'plain'"),
        ("aggregation", SecureAggregation, "'secure' or 'plain'"),  # and no instance of it
        ("folder", 5, "a path"),
    ],
)
def test_a_start_names_the_value_and_its_bound_before_anything_is_written(
    name: str, value: Any, bound: str, tmp_path: Path, loopback: Any, own_app: None
) -> None:
    grid = loopback(trainers())
    folder = tmp_path / "run"
    options = {"epsilon": 8.0, "delta": 1e-5, "users": 20, "nodes": 4, "folder": folder}
    bare = CtclConfig(condition="none", histogram=False)
    words = re.escape(f"{name} = ") + rf".*must be {bound}|.*: Input should be {bound}"
    for start, like, own in (
        (DPFedAvg().start, TrainingStrategy.start, {"initial_arrays": record()}),
        (Zeros().start, SynthesisStrategy.start, {}),
        (CTCL(None, "x", config=bare).start, SynthesisStrategy.start, {}),
    ):
        if name in inspect.signature(like).parameters:
            with pytest.raises(ValueError) as caught:
                start(grid, **{**options, **own, name: value})
            assert re.match(words, str(caught.value)) and ";" not in str(caught.value)
    assert grid.sent == [] and not folder.exists()


@pytest.mark.parametrize("start", [TrainingStrategy.start, SynthesisStrategy.start])
def test_every_number_of_a_start_has_the_bounds_of_a_key(start: Any) -> None:
    parameters = inspect.signature(start).parameters.values()
    assert {p.name for p in parameters if p.annotation in ("int", "float")} <= _KEYS.keys()


@pytest.mark.parametrize("rounds", [0, 2.5, "2"])
@pytest.mark.parametrize(
    "strategy",
    [
        lambda rounds: PrEText(["a"], embedder=object(), variation=None, rounds=rounds),  # type: ignore[arg-type]
        lambda rounds: POPri(["a"], embedder=None, generator=None, trainer=None, rounds=rounds),  # type: ignore[arg-type]
        lambda rounds: CTCL(None, "generator", rounds=rounds),
    ],
)
def test_a_constructor_names_rounds_that_cannot_be(strategy: Any, rounds: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"rounds = {rounds!r}: Input should be ")):
        strategy(rounds)


def test_no_other_objects_are_checked() -> None:
    check_arguments(grid=None, seed="x", noise_keys="", evaluate_config=None)


FLOWER = logging.getLogger("flwr")
EXIT = "Exit Code: 700\nAn unhandled exception occurred.\n\nFor more information, visit: <...>"


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What stands below Flower's last message, as Flower writes it when a ServerApp raised."""
    capsys.readouterr()
    FLOWER.error("ServerApp raised an exception")
    assert capsys.readouterr().err.count("privsyn:") == 0
    FLOWER.error(EXIT)
    FLOWER.error(EXIT)  # and only once
    lines = [line for line in capsys.readouterr().err.splitlines() if "privsyn:" in line]
    assert len(lines) == 1
    return lines[0]


def test_all_missing_arguments_are_named(
    tmp_path: Path, loopback: object, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = trainers()
    with pytest.raises(TypeError, match="lacks epsilon, users, folder"):
        DPFedAvg().start(loopback(nodes), record(), delta=1e-5)  # type: ignore
    assert last_line(capsys).startswith("privsyn: TypeError: start lacks epsilon, users, folder")
    with pytest.raises(TypeError, match=r"lacks folder, users, epsilon, delta.*docs/dropin\.md"):
        PrEText.start(object(), object())  # type: ignore


def test_what_start_raises_is_the_last_word(
    tmp_path: Path, loopback: object, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"epsilon": -1.0, "delta": 1e-5, "users": 20, "folder": tmp_path / "run"}
    print_last("of an earlier failure, which was caught")
    with pytest.raises(ValueError, match="epsilon"):
        DPFedAvg().start(loopback(trainers()), record(), **wrong)  # type: ignore
    assert last_line(capsys).startswith("privsyn: ValueError: ")
