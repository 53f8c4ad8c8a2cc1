"""DPFedAvg and DPFTRL are strategies of Flower's, but for the hooks that would read one reply."""

from __future__ import annotations

import logging
from unittest.mock import Mock

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy

from privsyn_flower.strategies import CTCL, DPFTRL, DPFedAvg, POPri, PrEText, TrainingStrategy
from tests.strategies.training_rig import record

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
