"""The table of docs/dropin.md: every argument of Flower's strategies, and what it is here."""

from __future__ import annotations

import inspect
import logging
import re
from typing import Any
from unittest.mock import Mock

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy

from privsyn_flower import AveragingConfig, DPFedAvg
from privsyn_flower.strategies import CTCL, DPFTRL, DPFedAvg, POPri, PrEText, TrainingStrategy
from tests.rigs.docs import DOCS, text_of
from tests.strategies.training_rig import record

NAMES = ("FedAvg", "FedAvgM", "FedAdam", "FedYogi", "FedProx")
SECTION = text_of(DOCS / "dropin.md").partition("\n## From FedAdam or FedProx\n")[2]
ROWS = re.findall(r"^\| (.*) \| (.*) \|$", SECTION.partition("\nFedAdam")[0], re.MULTILINE)[1:]


def arguments(*functions: Any) -> set[str]:
    found = {name for own in functions for name in inspect.signature(own).parameters}
    return found - {"self", "keys", "config"}


def code(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_the_first_column_has_every_argument_once() -> None:
    told = [name for first, _ in ROWS for name in re.findall(r"`(\w+)`", first)]
    assert len(told) == len(set(told))
    assert set(told) == arguments(*(getattr(flower, name).__init__ for name in NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_arguments_of_one_strategy_say_so(name: str) -> None:
    """What FedAvg has not is of the strategies in brackets behind it."""
    own = arguments(getattr(flower, name).__init__) - arguments(flower.FedAvg.__init__)
    told = set()
    for first, _ in ROWS:
        for names, classes in re.findall(r"((?:`\w+`(?:, )?)+) \(([\w, ]+)\)", first):
            told |= code(names) if name in classes.split(", ") else set()
    assert told == own


def test_the_second_column_names_what_there_is() -> None:
    there = arguments(AveragingConfig, DPFedAvg.__init__, DPFedAvg.start)
    told = {name for _, second in ROWS for name in code(second)}
    assert len(told) > 7 and told <= there
    server = AveragingConfig.model_fields["server_optimizer"].annotation
    first = ROWS[0][1]
    for name in ("fedavg", "fedavgm", "fedadam", "fedyogi"):
        assert f'`"{name}"`' in first and name in str(server)


def test_defaults_that_differ_are_those_of_both() -> None:
    text = dict(ROWS)
    ours, eta = AveragingConfig(), "`eta` (FedAdam, FedYogi)"
    rates = [inspect.signature(one).parameters["eta"].default for one in (
        flower.FedAdam, flower.FedYogi)]  # fmt: skip
    assert f"{ours.server_learning_rate} by default, not {rates[0]} or {rates[1]}" in text[eta]
    momentum = inspect.signature(flower.FedAvgM).parameters["server_momentum"].default
    row = text["`server_learning_rate`, `server_momentum` (FedAvgM)"]
    assert f"{ours.server_momentum} by default, not {momentum}" in row
    for name in ("beta_2", "tau"):
        assert inspect.signature(flower.FedAdam).parameters[name].default == getattr(ours, name)


def test_start_takes_what_flowers_start_takes() -> None:
    assert arguments(flower.FedAvg.start) <= arguments(DPFedAvg.start)


STRATEGIES = [DPFedAvg(clip_norm=0.5), DPFTRL(noise="aggregator", clip_norm=0.5)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_training_methods_are_flower_strategies(strategy: TrainingStrategy) -> None:
    assert isinstance(strategy, Strategy)


@pytest.mark.parametrize("other", [CTCL, POPri, PrEText])
def test_methods_that_train_no_given_arrays_do_not_pretend(other: type) -> None:
    assert not issubclass(other, Strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_single_reply_is_aggregated(strategy: TrainingStrategy) -> None:
    arrays, config, grid = ArrayRecord(), ConfigRecord(), Mock()
    for refused in (
        lambda: strategy.configure_train(1, arrays, config, grid),
        lambda: strategy.configure_evaluate(1, arrays, config, grid),
        lambda: strategy.aggregate_train(1, []),
        lambda: strategy.aggregate_evaluate(1, []),
    ):
        with pytest.raises(NotImplementedError, match=r"outside of the secure sum.*start\(grid"):
            refused()


def test_a_wrapper_that_would_read_replies_gets_the_reason() -> None:
    wrapped = DifferentialPrivacyServerSideFixedClipping(DPFedAvg(), 1.0, 0.5, 10)
    with pytest.raises(NotImplementedError, match=r"DPFedAvg\.configure_train is not"):
        wrapped.configure_train(1, record(), ConfigRecord(), Mock())


def test_the_summary_names_what_differs(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "flwr"):
        DPFedAvg(clip_norm=0.5).summary()
        DPFTRL(noise="aggregator", server_optimizer="fedavgm").summary()
    logging.getLogger("flwr").removeHandler(caplog.handler)
    for line in ("DPFedAvg settings:", "clip_norm: 0.5", "sampler: full", "mechanism: blt"):
        assert line in caplog.text
    assert "server_optimizer: fedavgm" in caplog.text and "tau" not in caplog.text
