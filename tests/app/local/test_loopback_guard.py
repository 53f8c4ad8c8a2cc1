"""A server on loopback hangs up on other accounts, and is not mistaken for somebody else's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from privsyn_flower.app.cli import run as cli_run
from privsyn_flower.app.local import loopback_guard
from privsyn_flower.app.local.simulation import (
    LocalFlower,
    private_ray,
    ray_folder,
    ray_folder_of,
    users_cluster,
)
from tests.strangers import NOBODY, descendants, listeners, spoken_to

pytestmark = pytest.mark.skipif(not loopback_guard.can_tell(), reason="only Linux has the table")


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"come in"})


def serve(config: type[uvicorn.Config]) -> Iterator[int]:
    server = uvicorn.Server(config(app, port=0, lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture
def guarded() -> Iterator[int]:
    """The port of a guarded server."""

    class Config(uvicorn.Config):
        pass

    loopback_guard.guard(Config)
    yield from serve(Config)


@pytest.fixture
def bare() -> Iterator[int]:
    """The port of a server that talks to everybody."""
    yield from serve(uvicorn.Config)


def test_the_table_names_the_account_at_the_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        anyone = ("0.0.0.0", 0)
        assert loopback_guard.account_of(here, anyone, loopback_guard.LISTENING) == os.getuid()
        with socket.create_connection(here) as client:
            there = client.getsockname()
            assert loopback_guard.account_of(there, here) == os.getuid()
            server.accept()[0].close()
        assert loopback_guard.account_of(there, here) is None
    assert loopback_guard.account_of(here, anyone, loopback_guard.LISTENING) is None


def test_the_own_account_is_served(guarded: int) -> None:
    assert b"come in" in spoken_to(guarded)
    assert loopback_guard.answers(guarded)


@pytest.mark.parametrize("account", [os.getuid() + 1, None])
def test_another_account_and_an_unknown_one_are_hung_up_on(
    guarded: int, account: int | None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(loopback_guard, "account_of", lambda there, here: account)
    assert spoken_to(guarded) == b""
    assert f"hung up on account {account}" in capsys.readouterr().err
    monkeypatch.undo()
    assert b"come in" in spoken_to(guarded)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another account")
def test_a_real_stranger_is_hung_up_on(guarded: int, bare: int) -> None:
    assert b"come in" in spoken_to(bare, account=NOBODY)
    assert spoken_to(guarded, account=NOBODY) == b""


def test_a_server_without_the_guard_counts_as_no_server(bare: int) -> None:
    assert b"come in" in spoken_to(bare)
    assert not loopback_guard.answers(bare)


def test_a_port_that_somebody_else_took_counts_as_no_server(
    guarded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loopback_guard.account_of

    def taken(here: Any, there: Any, state: str = loopback_guard.ESTABLISHED) -> int | None:
        return os.getuid() + 1 if state == loopback_guard.LISTENING else real(here, there, state)

    monkeypatch.setattr(loopback_guard, "account_of", taken)
    assert not loopback_guard.answers(guarded)


def test_the_table_is_read_again_before_a_row_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = ("127.0.0.1", 80), ("127.0.0.1", 81)
    row = f"  0: {loopback_guard._row(here)} {loopback_guard._row(there)} 01 0:0 0:0 0 4711 0 1"

    readings = iter(["header\n", f"header\n{row}\n"])
    table = SimpleNamespace(read_text=lambda encoding: next(readings))
    monkeypatch.setattr(loopback_guard, "TABLE", table)
    assert loopback_guard.account_of(here, there) == 4711


@pytest.mark.parametrize("account", [None, os.getuid() + 1])  # no table; one that says nothing
def test_where_accounts_cannot_be_told_apart_flowers_command_is_started_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: int, capsys: Any, account: int | None
) -> None:
    if account is None:
        monkeypatch.setattr(loopback_guard, "TABLE", tmp_path / "none")
    else:
        monkeypatch.setattr(loopback_guard, "account_of", lambda *_: account)
    loopback_guard.can_tell.cache_clear()
    try:
        assert not loopback_guard.can_tell()
        assert loopback_guard.command("flower-superlink") == ["flower-superlink"]
        assert loopback_guard.answers(bare)
        monkeypatch.setattr("sys.argv", ["loopback_guard", "flower-superlink"])
        with pytest.raises(SystemExit, match="cannot be told apart"):
            loopback_guard.main()
        cli_run._say_what_is_open()
        assert "can run code as you" in capsys.readouterr().err
    finally:
        loopback_guard.can_tell.cache_clear()


@pytest.mark.parametrize(
    ("address", "said"), [("10.0.0.1:6379", True), ("local", False), ("auto", False), (" ", False)]
)
def test_only_a_cluster_of_the_users_own_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, address: str, said: bool
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert bool(users_cluster()) == said
    cli_run._say_what_is_open()
    assert ("as protected as that cluster is" in capsys.readouterr().err) == said


def test_only_flowers_servers_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["loopback_guard", "flwr"])
    with pytest.raises(SystemExit, match="flower-superlink, flower-supernode"):
        loopback_guard.main()


def test_what_flowers_command_writes_is_for_its_account_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the SuperLink's database, which Flower makes as the umask says."""
    made = tmp_path / "superlink.db"
    command = SimpleNamespace(load=lambda: lambda: made.touch())
    monkeypatch.setattr("sys.argv", ["loopback_guard", "flower-superlink"])
    monkeypatch.setattr(loopback_guard, "guard", lambda config: None)
    monkeypatch.setattr(loopback_guard.importlib.metadata, "entry_points", lambda **_: [command])
    before = os.umask(0o022)
    try:
        with pytest.raises(SystemExit):
            loopback_guard.main()
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == 0o600


def test_each_run_has_a_folder_and_a_token_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = ray_folder(), ray_folder()
    try:
        assert one != two
        assert one.stat().st_mode & 0o777 == 0o700
        first, second = private_ray(one), private_ray(two)
        assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]
        assert len(first["RAY_AUTH_TOKEN"]) == 64
    finally:
        shutil.rmtree(one)
        shutil.rmtree(two)
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    short = ray_folder()
    shutil.rmtree(short)
    assert len(str(short)) < 30  # the sockets in it have 107 characters


@pytest.mark.slow
def test_rays_autoscaler_finds_no_port_for_its_metrics(tmp_path: Path) -> None:
    code = "from ray.autoscaler._private.constants import AUTOSCALER_METRIC_PORT as port\n"
    code += "import socket; socket.create_server(('127.0.0.1', port))"
    own = {**os.environ, **private_ray(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True)
    assert "OverflowError" in done.stderr


def test_a_run_takes_its_folder_away(tmp_path: Path) -> None:
    flower = LocalFlower(tmp_path / "run", port=1)
    flower.scratch = ray_folder()
    (flower.scratch / "ray").mkdir()
    flower.close()
    assert not flower.scratch.exists()


@pytest.mark.parametrize("name", ["{tmp}/privsyn-1", "{temporary}", "/", ".", "", None])
def test_a_folder_that_a_run_folder_names_is_removed_only_if_it_is_rays(
    tmp_path: Path, name: str | None
) -> None:
    """flower.json may come from somebody else with the rest of the folder."""
    (tmp_path / "privsyn-1").mkdir()
    own = ray_folder()
    link = own.with_name(f"{own.name}-link")
    link.symlink_to(own)
    if name:
        name = name.format(tmp=tmp_path, temporary=tempfile.gettempdir())
    assert ray_folder_of({"scratch": str(own)}) == own
    assert ray_folder_of({"scratch": name}) is None
    assert ray_folder_of({"scratch": str(link)}) is None
    assert ray_folder_of({"scratch": f"{own}/.."}) is None
    link.unlink()
    moved = own.rename(tmp_path / own.name)  # TMPDIR was another when the run began
    assert ray_folder_of({"scratch": str(own)}) is None
    assert ray_folder_of({"scratch": str(moved)}) == moved


def test_what_listens_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("", 0)) as wide:
        ports = {server.getsockname()[1]: server is here for server in (here, wide)}
        found = {s.port: s.loopback for s in listeners(descendants(os.getpid()))}
    assert ports.items() <= found.items()
