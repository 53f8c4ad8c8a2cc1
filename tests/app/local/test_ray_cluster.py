"""What is told about a Ray cluster before a simulation starts in it, without any Ray."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.cli.run import run_command
from privsyn_flower.app.local import ray_cluster, ray_probe
from privsyn_flower.app.local.ray_cluster import (
    ClusterError,
    check_cluster,
    check_here,
    differences,
    parsed,
)
from privsyn_flower.app.local.simulation import CLUSTER_CHECKED, LocalFlower, users_cluster
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.runs import write_jsonl

SEEN = {"reads": True, "flock": True, "lockf": True}
HERE = {"account": "0", "torch": "2.13.0", "data": "ab"}


def config(tmp_path: Path) -> RunConfig:
    path = tmp_path / "users.jsonl"
    write_jsonl(path, ({"user_id": f"u{i}", "text": "a b"} for i in range(20)))
    return RunConfig.from_flat(
        {
            "cache": str(tmp_path / "cache"),
            "data.source": "files",
            "data.path": str(path),
            "data.public-path": str(path),
            "data.users": 20,
        }
    )


def node(**changes: Any) -> dict[str, Any]:
    plain = {"id": "f" * 56, "address": "10.0.0.2", "host": "b", "facts": HERE, "folder": SEEN}
    return plain | {"written": True} | changes


@pytest.mark.parametrize(
    ("address", "found"),
    [("a.b:6379", ("a.b", 6379)), ("[::1]:1", ("::1", 1)), ("1.2.3.4:65535", ("1.2.3.4", 65535))],
)
def test_an_address_is_a_host_and_a_port(address: str, found: tuple[str, int]) -> None:
    assert parsed(address) == found


@pytest.mark.parametrize("address", ["a", "a:", ":1", "a:b", "a:0", "a:65536", "ray://a:1", "a:1/"])
def test_anything_else_is_none(address: str) -> None:
    with pytest.raises(ClusterError, match="must be HOST:PORT"):
        parsed(address)


def test_an_address_where_nobody_answers_is_told_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(ClusterError, match=f"no Ray cluster answers at 127.0.0.1:{port}"):
        check_cluster(config(tmp_path), f"127.0.0.1:{port}")
    assert time.monotonic() - start < 60
    assert not (tmp_path / "cache").exists()


def test_machines_that_are_alike_differ_in_nothing(tmp_path: Path) -> None:
    assert differences(HERE, [node(), node(id="e" * 56)], tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"facts": HERE | {"torch": "2.12.0"}}, "torch: 2.12.0, here 2.13.0"),
        ({"facts": {"account": "0", "torch": "2.13.0"}}, "data: unknown, here ab"),
        ({"error": "TimeoutError: no answer within 60 s"}, "no answer within 60 s"),
        ({"error": "first\nmiddle\nlast"}, "first ... last"),
        ({"written": False}, "is not the folder of this name here"),
        ({"folder": SEEN | {"reads": False}}, "is not the folder of this name here"),
        ({"folder": SEEN | {"lockf": False}}, r"locks \(lockf\)"),
        ({"folder": SEEN | {"lockf": False, "flock": False}}, r"locks \(flock, lockf\)"),
    ],
)
def test_a_node_that_differs_is_named(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    (line,) = differences(HERE, [node(), node(id="e" * 56, **changes)], tmp_path)
    with pytest.raises(ValueError, match=told):
        raise ValueError(line)
    assert line.startswith("Ray node 10.0.0.2 (b, eeeeeeee): ")


@pytest.mark.parametrize(
    ("status", "out", "err", "told"),
    [
        (1, "", "x InvalidAuthToken y\nConnectionError", "asks for another token"),
        (1, "", "ConnectionError: cannot\n", "ConnectionError: cannot.*must be one of its nodes"),
        (0, "", "", "no reason given"),
        (0, '{"here": {}, "nodes": [], "cpus": 0}', "", "no node with a CPU"),
    ],
)
def test_what_the_probe_says_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, out: str, err: str, told: str
) -> None:
    seen: dict[str, Any] = {}

    def run(command: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
        seen.update(given, question=json.loads(given["input"]))
        return subprocess.CompletedProcess(command, status, out, err)

    monkeypatch.setattr(ray_cluster, "_reach", lambda host, port: None)
    monkeypatch.setattr(ray_cluster.subprocess, "run", run)
    with pytest.raises(ClusterError, match=told):
        check_cluster(config(tmp_path), "10.0.0.1:6379")
    assert seen["env"]["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert seen["question"]["config"]["data.users"] == 20
    assert list((tmp_path / "cache").iterdir()) == [], "the folder that was tried is gone"


def test_a_probe_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # answers, and says nothing
        monkeypatch.setattr(ray_cluster, "PATIENCE", 0.01)
        with pytest.raises(ClusterError, match="did not answer within"):
            check_cluster(config(tmp_path), f"127.0.0.1:{server.getsockname()[1]}")


def test_what_was_looked_at_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ray_cluster, "check_cluster", lambda config, at: asked.append(at) or "fine")
    for address, checked, told in (
        ("", "", ""),
        ("auto", "", ""),
        ("a:1", "a:1", ""),
        ("a:1", "b:1", "fine"),
        ("a:1", "", "fine"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setenv(CLUSTER_CHECKED, checked)
        assert check_here(config(tmp_path)) == told, (address, checked)
    assert asked == ["a:1", "a:1"]


def test_whoever_starts_flower_says_what_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "a:1")
    monkeypatch.setattr("privsyn_flower.app.local.simulation.spawn", _refuse)
    flower = LocalFlower(tmp_path / "run", port=1)
    with pytest.raises(OSError, match="not here"):
        flower.start()
    assert flower.environment()[CLUSTER_CHECKED] == "a:1"
    assert "RAY_AUTH_TOKEN" not in flower._ray and flower.scratch is None


def _refuse(*_: object) -> None:
    raise OSError("not here")


def test_a_federation_is_no_simulation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="drop one"):
        run_command(None, [], None, tmp_path, "a:1")


@pytest.mark.parametrize("address", ["auto", "local", "ray://a:1"])
def test_only_an_address_can_be_asked_for(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "b:1")
    with pytest.raises(ClusterError, match="must be HOST:PORT"):
        run_command(None, [], None, None, address)
    assert users_cluster() == "b:1"


def test_facts_name_what_is_missing(tmp_path: Path) -> None:
    wanted = config(tmp_path)
    question = {
        "config": wanted.flat(),
        "libraries": ["flwr", "no-such-thing"],
        "paths": [str(tmp_path), str(tmp_path / "gone")],
    }
    found = ray_probe.facts(question)
    assert found["no-such-thing"] == "not installed" != found["flwr"]
    assert found[str(tmp_path / "gone")] == "not there" != found[str(tmp_path)]
    assert ray_probe.facts(question) == found
    Path(wanted.data.path).write_text('{"user_id": "u", "text": "another"}\n')
    again = ray_probe.facts(question)
    changed = {name for name in found if again[name] != found[name]}
    assert changed == {"data", str(tmp_path)}  # sizes of files
    Path(wanted.data.path).unlink()
    assert "DataError" in ray_probe.facts(question)["data"]


def test_a_folder_is_shared_where_words_and_locks_are(tmp_path: Path) -> None:
    for name in ("here", "flock", "lockf"):
        (tmp_path / name).write_text("word")
    context = multiprocessing.get_context("spawn")  # locks of one process do not keep itself out
    with (tmp_path / "flock").open("r+b") as one, (tmp_path / "lockf").open("r+b") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.lockf(two, fcntl.LOCK_EX)
        with context.Pool(1) as pool:
            assert pool.apply(ray_probe.tried, (str(tmp_path), "a")) == SEEN
    assert (tmp_path / "a").read_text() == "word"
    assert ray_probe.tried(str(tmp_path), "b") == {"reads": True, "flock": False, "lockf": False}


def test_a_folder_without_the_word_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_probe, "SEEN_WITHIN", 0.0)
    found = ray_probe.tried(str(tmp_path), "a")
    assert not any(found.values())
    assert not (tmp_path / "a").exists()
