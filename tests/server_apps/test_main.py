"""The ServerApp's own error reaches the person who runs it, on a full disk too."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privsyn_flower.app.local.processes import free_port
from privsyn_flower.app.local.ray_cluster import ClusterError, NoCluster
from privsyn_flower.common.progress import silent
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.runs import RunFolder, RunLocked, write_jsonl
from privsyn_flower.server_apps import main
from privsyn_flower.server_apps.public_text import public_text, warn_of_other_text
from privsyn_flower.server_apps.run import Run
from tests.conftest import sentences
from tests.server_apps.in_process import deployed, grid_for, small_config, with_texts, write_rows


def told(folder: RunFolder, error: Exception) -> None:
    try:
        raise error
    except Exception as caught:
        main._tell(folder, caught)


def test_a_failure_is_in_the_folder_and_in_its_log(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    error = ValueError("pretext.population = 9999 is above the pool")
    with pytest.raises(ValueError), folder.lock():
        told(folder, error)
        raise error
    text = "ValueError: pretext.population = 9999 is above the pool"
    assert (tmp_path / "error.txt").read_text() == f"{text}\n"
    assert "Traceback" in (tmp_path / "traceback.txt").read_text()
    assert f"ERROR {text}" in (tmp_path / "run.log").read_text()


def test_a_full_disk_is_told_without_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(main, "write_atomic", full)
    folder = RunFolder(tmp_path)
    place = tmp_path / "checkpoints" / "round-0001.json"
    told(folder, OSError(errno.ENOSPC, "No space left on device", str(place)))
    logging.getLogger("flwr").error("Exit Code: 700\nFor more information, visit: <...>")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == (
        f"privsyn: {place}: No space left on device (free space there, then `privsyn run --resume "
        f"{tmp_path}`)"
    )
    assert not (tmp_path / "error.txt").exists()


def test_a_deployed_servers_pool_is_drawn_from_its_whole_file(tmp_path: Path) -> None:
    config, _ = deployed(tmp_path)
    texts = [f"{kind} number {i} of them" for kind in ("cat", "dog") for i in range(100)]
    write_jsonl(tmp_path / "public.jsonl", ({"text": text} for text in texts))
    sizes = {"data.public-pool": 60, "data.public-validation": 40, "data.user-column": ""}
    own = RunConfig.from_flat({**config.flat(), **sizes})
    found = public_text(own, silent)
    assert public_text(own, silent).pool == found.pool and len(set(found.pool)) == 60
    assert not set(found.pool) & set(found.validation) and len(set(found.validation)) == 40
    for part in (found.pool, found.validation):
        assert 0.2 < sum(text.startswith("cat") for text in part) / len(part) < 0.8


def test_the_summary_says_that_a_run_ended_early(tmp_path: Path, loopback: Any) -> None:
    config, contexts = deployed(tmp_path)
    path = tmp_path / "shared.jsonl"
    shared = {"ledger": str(path), "population-name": "X", "rounds": 2, "spare-rounds": 0}
    config = RunConfig.from_flat({**config.flat(), **shared})
    pipeline = Run(config, grid_for(loopback, contexts), RunFolder(tmp_path / "run"))
    total = {"total_epsilon": config.epsilon, "total_delta": config.delta}
    multiplier = pipeline.session.privacy_plan.main.multiplier
    Ledger.open(path, population="X", **total).reserve(
        run="before", query="votes", round=1, attempt=1, noise_multiplier=multiplier
    )
    pipeline.run()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["rounds_planned"]) == (1, 2)
    assert summary["ended_early"] == "the ledger of population X is used up"


def test_a_complete_run_under_plain_flower_says_that_nobody_is_asked(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, contexts = deployed(tmp_path)
    monkeypatch.setattr(main, "_log_to_stderr", lambda: None)
    monkeypatch.setattr(main, "write_page", lambda *_: None)
    values = {**config.flat(), "run-folder": str(tmp_path / "run")}
    grid, context = grid_for(loopback, contexts), SimpleNamespace(run_config=values, run_id=7)
    main.main(grid, context)
    sent, said = len(grid.sent), f"{tmp_path / 'run'} is complete already: nobody is asked again"
    assert sent and said not in caplog.text
    main.main(grid, context)
    assert len(grid.sent) == sent and said in caplog.text
    monkeypatch.chdir(tmp_path)
    values["data.public-path"] = "public.jsonl"
    with pytest.raises(
        ConfigError, match=r"data\.public-path = 'public\.jsonl' is relative"
    ) as caught:
        main.main(grid, context)
    assert f"write the whole path, from here {tmp_path / 'public.jsonl'}" in str(caught.value)


def test_the_page_of_a_run_is_written_at_its_end_and_fails_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privsyn_flower.app.report.html.markup.library", lambda: "")
    folder = RunFolder(tmp_path / "run")
    with main._reported(folder), folder.lock():
        folder.save_value("run", "abc")
    text = (folder.path / "report.html").read_text()
    assert "This run is going on" not in text and "</html>" in text
    with pytest.raises(ValueError), main._reported(folder), folder.lock():
        told(folder, ValueError("pretext.population = 9999"))
        raise ValueError
    assert "This run failed: ValueError: pretext" in (folder.path / "report.html").read_text()

    def broken(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(main, "write_page", broken)
    with caplog.at_level("WARNING"), main._reported(folder):
        pass
    assert "no report.html: MemoryError: no room" in caplog.text


def test_a_run_of_another_process_gets_no_page(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.save_value("run", "abc")
    with pytest.raises(RunLocked), folder.lock(), main._reported(folder), folder.lock():
        pass
    assert not (folder.path / "report.html").exists()


def test_a_whole_run_leaves_its_page_and_ends_with_its_claim(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privsyn_flower.app.report.html.markup.library", lambda: "")
    monkeypatch.setattr(main, "_log_to_stderr", lambda: None)  # it is for a process of its own
    config, contexts = deployed(tmp_path)
    values = {**config.flat(), "rounds": 2, "run-folder": str(tmp_path / "run")}
    context: Any = SimpleNamespace(run_config=RunConfig.from_flat(values).flat(), run_id=1)
    with caplog.at_level("INFO", logger="privsyn_flower"):
        main.main(grid_for(loopback, contexts), context)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    text = unescape((tmp_path / "run" / "report.html").read_text())
    assert summary["privacy_short"] in text and "rounds released</dt><dd>2 of 2</dd>" in text
    assert "This part cannot be shown" not in text and "all 1 runs" not in text
    last = [record.getMessage() for record in caplog.records if record.name == "privsyn_flower"]
    verdict = [f"verdict: {line}" for line in summary["verdict"]["sentences"]]
    claim = [f"privacy: {summary['privacy_short']}", *verdict, f"result: {tmp_path / 'run'}"]
    assert verdict and last[-len(claim) :] == claim


def test_a_cluster_that_nobody_can_join_ends_flowers_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its main thread would go on trying for minutes. A cluster that is unfit alone does not."""
    users = tmp_path / "users.jsonl"
    write_rows(users, ["a b"] * 20, 1)
    flat = {
        "run-folder": str(tmp_path / "run"),
        "cache": str(tmp_path / "cache"),
        "data.source": "files",
        "data.path": str(users),
        "data.public-path": str(users),
        "data.users": 20,
    }
    context: Any = SimpleNamespace(run_config=flat, run_id=1)
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(main.os, "kill", lambda pid, sign: killed.append((pid, sign)))
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    monkeypatch.delenv("PRIVSYN_RAY_CHECKED", raising=False)
    with pytest.raises(NoCluster, match="no Ray cluster answers"):
        main.main(None, context)
    assert killed == [(os.getpid(), signal.SIGTERM)]
    assert "no Ray cluster answers" in (tmp_path / "run" / "error.txt").read_text()

    def unfit(config: Any) -> str:
        raise ClusterError("torch: 2, here 3")

    monkeypatch.setattr(main, "check_here", unfit)
    with pytest.raises(ClusterError, match="torch"):
        main.main(None, context)
    assert len(killed) == 1


def test_a_resumed_simulation_of_other_text_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing in the run folder, which may be published, tells which text it was."""
    shared, folder = with_texts(tmp_path), RunFolder(tmp_path / "run")
    config = small_config(shared, tmp_path)
    for _ in range(2):
        warn_of_other_text(config, folder)
    warn_of_other_text(config, RunFolder(tmp_path / "another"))
    assert "not what this run began with" not in caplog.text
    write_rows(shared / "private.jsonl", sentences(120, 3))
    warn_of_other_text(config, RunFolder(tmp_path / "new"))
    assert "not what this run began with" not in caplog.text
    warn_of_other_text(config, folder)
    assert "data.source = 'files' is not what this run began with" in caplog.text
    (value,) = (folder.path / "checkpoints").iterdir()
    assert len(json.loads(value.read_text())) == 24
    others = RunFolder(tmp_path / "another").load_value("read"), folder.load_value("read")
    assert others[0] != others[1]
