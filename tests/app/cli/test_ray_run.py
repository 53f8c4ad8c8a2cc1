"""`privsyn run --ray`: a cluster that loses machines, and what is said of one without a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.cli import run
from privsyn_flower.app.local.ray_cluster import ClusterError
from privsyn_flower.config import RunConfig
from privsyn_flower.strategies.engine.rounds import LOST

LOSS = f"WorkersLost: {LOST} in mid-round: 2 nodes' workers are gone"


class Starts:
    """Stands for the starts of one run: each makes some releases and ends in its own way."""

    def __init__(self, folder: Path, *ends: tuple[int, str]) -> None:
        self.folder, self.ends, self.checks = folder, list(ends), 0
        (folder / "releases").mkdir(parents=True)

    def __call__(self, folder: Path, config: RunConfig, federation: Any) -> Path:
        releases, error = self.ends.pop(0)
        for number in range(releases):
            (folder / "releases" / f"{len(self.ends)}-{number}.npz").touch()
        if error:
            raise run.RunFailed(error)
        return folder

    def check(self, config: RunConfig, address: str) -> str:
        self.checks += 1
        return f"cluster {address} is fine"


def started(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *ends: tuple[int, str], address: str = "a:1"
) -> Starts:
    starts = Starts(folder, *ends)
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(run, "_started", starts)
    monkeypatch.setattr(run, "check_cluster", starts.check)
    return starts


def test_a_run_goes_on_with_the_machines_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    ends = [(1, LOSS), (0, LOSS), (0, LOSS), (1, LOSS), (0, LOSS), (0, "")]
    starts = started(monkeypatch, tmp_path, *ends)
    assert run._start(tmp_path, RunConfig(), None) == tmp_path
    assert starts.checks == 5 and starts.ends == []
    said = capsys.readouterr().err
    assert said.count("starting again on the machines that are left") == 5
    assert f"warning: {LOSS}" in said and "cluster a:1 is fine" in said


def test_it_gives_up_when_no_start_releases_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = started(monkeypatch, tmp_path, *[(0, LOSS)] * 9)
    with pytest.raises(run.RunFailed, match=LOST):
        run._start(tmp_path, RunConfig(), None)
    assert starts.checks == run.RESTARTS


def test_ray_that_was_too_slow_to_start_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    slow = "Exception: The current node timed out during startup. This could happen because some"
    starts = started(monkeypatch, tmp_path, (0, slow), (0, ""), address="")
    assert run._start(tmp_path, RunConfig(), None) == tmp_path and starts.ends == []
    assert "starting again a Ray that was not up within 30 s" in capsys.readouterr().err


@pytest.mark.parametrize(("address", "error"), [("", LOSS), ("a:1", "DataError: other")])
def test_nothing_else_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, error: str
) -> None:
    starts = started(monkeypatch, tmp_path, (3, error), (0, ""), address=address)
    with pytest.raises(run.RunFailed, match=error.partition(":")[0]):
        run._start(tmp_path, RunConfig(), None)
    assert starts.checks == 0


def test_a_cluster_that_is_no_longer_fit_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(monkeypatch, tmp_path, (1, LOSS), (0, ""))

    def unfit(config: RunConfig, address: str) -> str:
        raise ClusterError("no node with a CPU")

    monkeypatch.setattr(run, "check_cluster", unfit)
    with pytest.raises(ClusterError, match="no node with a CPU"):
        run._start(tmp_path, RunConfig(), None)


@pytest.mark.parametrize(("mode", "warned"), [("token", False), ("", True), ("disabled", True)])
def test_a_cluster_without_a_token_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, mode: str, warned: bool
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "a:1")
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    run._say_what_is_open()
    assert ("asks for no token" in capsys.readouterr().err) == warned
