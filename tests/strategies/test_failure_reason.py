"""A failed `start` ends Flower's log with its own reason, not with an exit code."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from privsyn_flower.strategies import DPFedAvg, PrEText
from privsyn_flower.strategies.engine.arguments import print_last
from tests.strategies.training_rig import record, trainers

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
