"""`privsyn run` through a real `flwr run`: result, exit status, kill and resume, interrupt."""

from __future__ import annotations

import contextlib
import html
import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.local.processes import started_under
from privsyn_flower.config import load_config
from privsyn_flower.privacy import Ledger
from privsyn_flower.privacy.ledger.usage import exclusive
from privsyn_flower.privacy.wording import page as privacy_page
from privsyn_flower.runs import read_jsonl
from privsyn_flower.strategies.engine.record import commit, digest
from tests.end_to_end.conftest import left_running, privsyn
from tests.end_to_end.listening import IN, OUT, Tried, tried
from tests.rigs.registry import deployment_of
from tests.rigs.run import command, finish, wait_for
from tests.server_apps import in_process
from tests.strangers import NOBODY, Listener, descendants, listeners

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

SUMMARY_KEYS = {
    "method",
    "dataset",
    "users",
    "rounds",
    "unit",
    "adjacency",
    "threat_model",
    "epsilon",
    "delta",
    "accountant",
    "noise_multiplier",
    "epsilon_ledger",
    "synthetic_samples",
    "bytes_up_per_user_round",
    "bytes_down_per_user_round",
    "wall_seconds",
    "stage_seconds",
}


def releases(folder: Path) -> list[np.ndarray[Any, Any]]:
    return [np.load(file)["released"] for file in sorted((folder / "releases").glob("*.npz"))]


def kinds(folder: Path) -> Counter[str]:
    """The rows of the run's ledger."""
    return Counter(row["kind"] for row in read_jsonl(folder / "ledger.jsonl"))


ROUNDS = 16  # of long.toml
OPENED: list[Tried] = []  # by the resumed run


def try_ports(found: Sequence[Listener]) -> None:
    for one in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            OPENED.append(tried(one))


@pytest.fixture(scope="module")
def killed(mini: Path) -> Path:
    """A run whose ServerApp was killed; its folder was renamed since."""
    folder = mini / "killed"
    process = privsyn("run", mini / "long.toml", "--set", f"run-folder={folder}", cwd=mini)
    wait_for(folder / "metrics.jsonl", process, '"round": 3,')
    holder = int((folder / ".lock").read_text())
    os.kill(holder, signal.SIGKILL)  # the process that runs the ServerApp
    code, _, _ = finish(process)
    assert code == 1
    assert not (folder / "summary.json").exists(), "the run was over before the kill"
    assert 3 <= len(releases(folder)) < ROUNDS
    return folder.rename(mini / "renamed")


@pytest.fixture(scope="module")
def whole_run(mini: Path, killed: Path) -> tuple[Path, list[str]]:
    """It goes on to its end, tried by a stranger meanwhile.

    The command that resumes it is killed, and another attaches to the run.
    """
    folder = killed
    due = len(releases(folder)) + 1
    process = privsyn("run", "--resume", folder, cwd=mini)
    wait_for(folder / "metrics.jsonl", process, f'"round": {due},')
    found = listeners(descendants(process.pid) | set(started_under(folder / ".flower")))
    workers = [one for one in found if "ClientAppActor" in one.command]
    try_ports(workers)
    for one in workers:
        os.kill(one.pid, signal.SIGSTOP)  # no round ends while the others are tried
    try:
        try_ports([one for one in found if one not in workers])
        process.kill()
    finally:
        for one in workers:
            os.kill(one.pid, signal.SIGCONT)
    process.communicate(timeout=1500)
    assert not (folder / "summary.json").exists(), "the run was over before the kill"
    code, out, err = finish(privsyn("run", "--resume", folder, cwd=mini))
    assert code == 0, "\n".join(err)
    return folder, out


def test_a_run_that_outlived_its_command_is_attached_to(whole_run: tuple[Path, list[str]]) -> None:
    folder, out = whole_run
    assert out[-1] == str(folder)
    rows = kinds(folder)
    assert rows["commit"] == ROUNDS
    assert rows["reserve"] <= ROUNDS + 1  # but for the round of the kill nothing was asked twice


def test_run_folder_and_summary(whole_run: tuple[Path, list[str]]) -> None:
    folder, _ = whole_run
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["privacy_short"] in html.unescape((folder / "report.html").read_text())
    assert set(summary) >= SUMMARY_KEYS
    assert summary["rounds"] == ROUNDS
    assert summary["epsilon"] <= 50.0
    assert 0 < summary["epsilon_ledger"] <= summary["epsilon"]
    assert "NO PRIVACY IS CLAIMED" in summary["privacy"]
    page = (folder / "privacy.md").read_text(encoding="utf-8")
    assert page == privacy_page(summary["privacy_short"], summary["privacy"])
    assert len(summary["privacy_short"].split()) <= 60
    record = deployment_of(folder)
    assert record["privacy_loss"]["privacy_parameters"] == {}  # its noise is from the seed
    # Flower ran the code that these tests import.
    assert summary["code_sha256"] == digest() and summary["commit"] == commit()
    assert digest() in record["implementation"]["mechanisms"]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in metrics] == list(range(1, ROUNDS + 1))
    synthetic = [json.loads(line) for line in (folder / "synthetic.jsonl").read_text().splitlines()]
    assert len(synthetic) == summary["synthetic_samples"] > 0
    assert set(synthetic[0]) == {"text"}
    ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert ledger[0]["simulation"] is True
    assert sum(row["kind"] == "commit" for row in ledger) == ROUNDS
    # the votes did something: the private topic is a quarter of the pool and most of the seeds
    private_words = {"matrix", "vector", "tensor", "kernel", "lemma", "theorem"}
    hits = sum(bool(private_words & set(row["text"].split())) for row in synthetic)
    assert hits / len(synthetic) > 0.5


def test_everything_listens_on_loopback(whole_run: tuple[Path, list[str]]) -> None:
    commands = " ".join(one.listener.command for one in OPENED)
    for name in ("flower-superlink", "gcs_server", "raylet", "flwr-simulation", "ClientAppActor"):
        assert name in commands
    assert [one.listener for one in OPENED if not one.listener.loopback] == []


def test_a_stranger_is_refused_at_every_port(whole_run: tuple[Path, list[str]]) -> None:
    for one in OPENED:
        assert one.owner == IN, one  # the same question with leave is answered
        assert one.stranger in (OUT, None), one
    folder, _ = whole_run
    log = (folder / ".flower" / "superlink.log").read_text()
    assert (f"hung up on account {NOBODY}" in log) == (os.getuid() == 0)


def test_rays_files_are_the_accounts_own_and_go_with_the_run(
    whole_run: tuple[Path, list[str]],
) -> None:
    sessions = {
        Path(word.partition("=")[2])
        for one in OPENED
        for word in one.listener.command.split()
        if word.startswith("--log_dir=")
    }
    assert sessions
    for session in sessions:
        assert "privsyn-" in str(session)
        assert not session.exists()


def test_no_private_text_reaches_the_run_folder(
    whole_run: tuple[Path, list[str]], mini: Path
) -> None:
    folder, _ = whole_run
    private = [json.loads(line)["text"] for line in (mini / "users.jsonl").read_text().splitlines()]
    for file in folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes().decode("utf-8", errors="ignore")
            assert not any(text in data for text in private), file


def test_nothing_is_left_running(whole_run: tuple[Path, list[str]]) -> None:
    folder, _ = whole_run
    assert left_running(str(folder)) == []


def test_killed_renamed_and_resumed_is_bit_for_bit(
    mini: Path, whole_run: tuple[Path, list[str]], loopback: Any
) -> None:
    """As the same run in this process, never interrupted."""
    folder, _ = whole_run
    assert not (mini / "killed").exists()
    whole = mini / "whole"
    in_process.run(load_config(mini / "long.toml"), loopback, whole)
    assert len(releases(folder)) == ROUNDS
    for one, two in zip(releases(folder), releases(whole), strict=True):
        assert np.array_equal(one, two)
    assert (folder / "synthetic.jsonl").read_bytes() == (whole / "synthetic.jsonl").read_bytes()
    assert kinds(folder)["commit"] == ROUNDS  # every round was released exactly once


def test_interrupt_stops_flower_and_says_how_to_go_on(mini: Path) -> None:
    folder = mini / "interrupted"
    chosen = ["--set", f"run-folder={folder}", "--set", "trackers=tensorboard"]
    process = privsyn("run", mini / "long.toml", *chosen, cwd=mini)
    wait_for(folder / "metrics.jsonl", process, '"round": 1,')
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert any(f"--resume {folder}" in line for line in err)
    assert left_running(str(folder)) == []
    check_tracked(folder)


def check_tracked(folder: Path) -> None:
    """Its tracker was told of every round but the one under way, and wrote it all."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    notes = json.loads((folder / "checkpoints" / "tracked-tensorboard.json").read_text())
    events = (folder / "checkpoints" / "tracked.jsonl").read_bytes()
    assert notes["offset"] == len(events)  # all of it was read
    logs = [event["log"] for event in map(json.loads, events.splitlines()) if "log" in event]
    sent = [log["step"] for log in logs if log["group"] == "rounds"]
    released = len((folder / "metrics.jsonl").read_text().splitlines())
    assert released - 1 <= len(sent) <= released
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    steps = [one.step for one in found.Scalars("rounds/epsilon_so_far")]
    assert steps == sent == list(range(1, len(sent) + 1))


def test_failure_of_the_server_app_is_the_exit_status_and_the_last_line(mini: Path) -> None:
    folder, path = mini / "failing", mini / "held.jsonl"
    ledger = Ledger.open(
        path, population="held", total_epsilon=50.0, total_delta=3e-6, simulation=True,
    )  # fmt: skip
    settings = [f"run-folder={folder}", "population-name=held", f"ledger={path}"]
    with exclusive(ledger):  # what nothing before the ServerApp looks at
        chosen = [part for setting in settings for part in ("--set", setting)]
        code, out, err = finish(privsyn("run", mini / "mini.toml", *chosen, cwd=mini))
    assert code == 1
    assert out == []
    assert f"{path} is in use by the run of process {os.getpid()}" in err[-1]


def test_wrong_key_fails_before_anything_starts(mini: Path) -> None:
    code, _, err = command("run", mini / "mini.toml", "--set", "epsilom=1", cwd=mini)
    assert code == 1
    assert "did you mean 'epsilon'" in " ".join(err)
    assert not (mini / "runs").exists()


def test_a_used_run_folder_is_refused(mini: Path, whole_run: tuple[Path, list[str]]) -> None:
    folder, _ = whole_run
    code, _, err = command("run", mini / "mini.toml", "--set", f"run-folder={folder}", cwd=mini)
    assert code == 1
    assert "--resume" in " ".join(err)
