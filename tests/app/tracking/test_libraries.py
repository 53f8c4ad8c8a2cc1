"""Each adapter writes for real, in its own process, and what it wrote is read back."""

from __future__ import annotations

import json
import logging
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.tracking import Trackers
from privsyn_flower.app.tracking import trackers as trackers_file
from privsyn_flower.app.tracking.trackers import notes
from privsyn_flower.strategies.engine.callbacks import RunStart
from tests.end_to_end.conftest import left_running

RUN = "0f" * 16
SENTENCE = "Epsilon = 1 at delta = 1e-06 for each user."
FACTS = {"users": 9, "epsilon": 1.0, "method": "pretext", "privacy_short": SENTENCE}
SETTINGS = {"rounds": 3, "pretext.clip": "normalised"}
SECRET = "what the user wrote"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own trackers, and no network."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [
        {"round": r, "noise_std": r / 2, "charge": SECRET, "evaluation.loss": 1.0 / r}
        for r in range(first, last + 1)
    ]


def started(name: str, folder: Path, before: int = 0, patience: float = 120.0) -> Trackers:
    """Patience: for a machine that does much else."""
    found = Trackers([name], patience=patience)
    earlier = {"rounds": rows(1, before)} if before else {}
    found.run_started(RunStart(RUN, folder, FACTS, SETTINGS, earlier))
    return found


def twice(name: str, folder: Path) -> None:
    """A run that is stopped after round 2, and goes on to round 3."""
    found = started(name, folder)
    for row in rows(1, 2):
        found.round_ended("rounds", row)
    found.run_failed("KeyboardInterrupt", True)
    found = started(name, folder, 2)
    for row in rows(1, 3):
        found.round_ended("rounds", row)
    found.stage("rounds", 2.5)
    found.run_ended({"rounds": 3, "benchmark": 0.9, "privacy_short": f"{SENTENCE} Simulated."})


@pytest.mark.slow
def test_tensorboards_files_are_read_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    twice("tensorboard", tmp_path)
    assert caplog.messages == []
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(one.step, one.value) for one in found.Scalars("rounds/noise_std")] == [
        (1, 0.5), (2, 1.0), (3, 1.5)
    ]  # fmt: skip
    assert [one.step for one in found.Scalars("rounds/evaluation.loss")] == [1, 2, 3]
    assert [(one.step, one.value) for one in found.Scalars("stage_seconds/rounds")] == [(3, 2.5)]
    assert set(found.Tags()["scalars"]) == {
        "rounds/noise_std", "rounds/evaluation.loss", "stage_seconds/rounds", "result/rounds"
    }  # fmt: skip
    (page,) = found.Tensors("run")
    (text,) = page.tensor_proto.string_val
    (last,) = found.Tensors("result")
    assert last.tensor_proto.string_val[0].decode() == f"{SENTENCE} Simulated."
    assert SENTENCE in text.decode() and "| pretext.clip | normalised |" in text.decode()
    assert SECRET not in "".join(
        path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()
    )


@pytest.mark.slow
def test_mlflows_store_is_read_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    twice("mlflow", tmp_path)
    assert caplog.messages == []
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # before the import
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("privsyn-flower")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "rounds/noise_std")
    assert [(one.step, one.value) for one in history] == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert set(run.data.metrics) == {
        "rounds/noise_std", "rounds/evaluation.loss", "stage_seconds/rounds", "result/rounds"
    }  # fmt: skip
    assert run.data.params == {"rounds": "3", "pretext.clip": "normalised"}
    assert run.data.tags["privacy_short"] == f"{SENTENCE} Simulated."
    assert run.data.tags["status"] == "finished"
    assert set(run.data.tags) == {*FACTS, "privsyn.run", "status", "mlflow.runName"}
    assert (run.info.run_name, run.info.status) == (tmp_path.name, "FINISHED")
    assert [path.name for path in tmp_path.iterdir() if path.name != "checkpoints"] == ["mlflow.db"]


@pytest.mark.slow
def test_wandbs_offline_files_are_read_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    twice("wandb", tmp_path)
    assert caplog.messages == []
    first, second = sorted((tmp_path / "wandb").glob(f"offline-run-*/run-{RUN}.wandb"))
    history, _, exits = read_wandb(first)
    assert [row["round"] for row in history] == ["1", "2"] and exits == [255]
    history, config, exits = read_wandb(second)
    assert history[0]["rounds/noise_std"] == "1.5" and history[0]["round"] == "3"
    assert history[1] == {**history[1], "round": "3", "stage_seconds/rounds": "2.5"}
    assert len(history) == 2 and exits == [0]
    assert (
        f"{SENTENCE} Simulated." in config["privacy_short"]
        and config["pretext.clip"] == '"normalised"'
    )
    stored = first.read_bytes() + second.read_bytes()
    for word in (SECRET, os.uname().nodename, str(Path.cwd()), "requirements.txt"):
        assert len(word) < 3 or word.encode() not in stored, word
    names = {path.name for path in (tmp_path / "wandb").rglob("*") if path.is_file()}
    assert {name for name in names if not name.endswith(".log")} == {first.name}


def read_wandb(path: Path) -> tuple[list[dict[str, str]], dict[str, str], list[int]]:
    """Rows of the history, the config, and exit codes, of a file of an offline run."""
    from wandb.proto import wandb_internal_pb2

    history: list[dict[str, str]] = []
    config: dict[str, str] = {}
    exits: list[int] = []
    for data in logged(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = record.history.item
            history.append({"".join(i.nested_key) or i.key: i.value_json for i in items})
        elif kind == "run":
            config |= {item.key: item.value_json for item in record.run.config.update}
        elif kind == "config":
            config |= {item.key: item.value_json for item in record.config.update}
        elif kind == "exit":
            exits.append(record.exit.exit_code)
    return history, config, exits


def logged(data: bytes) -> Iterator[bytes]:
    """Records of a log as LevelDB has it: blocks of 32 KiB, in them a sum of 4 bytes, a length of
    2 and a kind (1: whole, 2: first part, 3: middle, 4: last). The file begins with 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # too little is left of the block
            place += 32768 - place % 32768
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


@pytest.mark.slow
def test_a_service_that_cannot_be_had_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W&B without a key asks for none; the next start tells all of it again."""
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING, "flwr"):
        found = started("wandb", tmp_path)
        for row in rows(1, 3):
            found.round_ended("rounds", row)
        found.run_ended({})
    (warning,) = caplog.messages
    assert "tracker wandb: UsageError: No API key configured" in warning
    assert json.loads(notes(tmp_path, "wandb").read_text())["offset"] == 0


def test_a_process_that_hangs_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers_file, "START", "import time; time.sleep(600)")
    with caplog.at_level(logging.WARNING, "flwr"):
        found = started("tensorboard", tmp_path, patience=0.5)
        process = found._processes["tensorboard"]
        for row in rows(1, 2000):  # more than a pipe holds
            found.round_ended("rounds", row)
        found.run_ended({})
    (warning,) = caplog.messages
    assert "it did not finish in time" in warning
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


KILLED = """
import sys, time
from pathlib import Path
from privsyn_flower.app.tracking import Trackers
from privsyn_flower.strategies.engine.callbacks import RunStart
found = Trackers(["tensorboard"])
found.run_started(RunStart({run!r}, Path(sys.argv[1]), {{}}))
found.round_ended("rounds", {{"round": 1, "noise_std": 2.0}})
print("told", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_is_written_to_its_end(sign: int, tmp_path: Path) -> None:
    """Its trackers read what is left when the pipe ends, and end themselves."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = subprocess.Popen(
        [sys.executable, "-P", "-c", KILLED.format(run=RUN), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert run.stdout is not None
    with run.stdout:
        run.stdout.readline()
    os.kill(run.pid, sign)
    run.wait(30)
    assert left_running(str(tmp_path)) == []
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [one.step for one in found.Scalars("rounds/noise_std")] == [1]


@pytest.mark.slow
def test_the_process_opens_nothing_of_its_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that lies where the run was started is not taken for a library."""
    (tmp_path / "tensorboard.py").write_text("raise SystemExit('a stray module')")
    monkeypatch.chdir(tmp_path)
    started("tensorboard", tmp_path).run_ended({})
    assert (tmp_path / "tensorboard").is_dir()
