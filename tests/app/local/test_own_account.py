"""A server on loopback hangs up on other accounts, and is not mistaken for somebody else's."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from privsyn_flower.app.cli import run as cli_run
from privsyn_flower.app.local import own_account
from privsyn_flower.app.local.simulation import LocalFlower, private_ray, ray_folder, users_cluster
from tests.strangers import NOBODY, descendants, listeners, spoken_to

pytestmark = pytest.mark.skipif(not own_account.can_tell(), reason="only Linux has the table")


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

    own_account.guard(Config)
    yield from serve(Config)


@pytest.fixture
def bare() -> Iterator[int]:
    """The port of a server that talks to everybody."""
    yield from serve(uvicorn.Config)


def test_the_table_names_the_account_at_the_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        anyone = ("0.0.0.0", 0)
        assert own_account.account_of(here, anyone, own_account.LISTENING) == os.getuid()
        with socket.create_connection(here) as client:
            there = client.getsockname()
            assert own_account.account_of(there, here) == os.getuid()
            server.accept()[0].close()
        assert own_account.account_of(there, here) is None
    assert own_account.account_of(here, anyone, own_account.LISTENING) is None


def test_the_own_account_is_served(guarded: int) -> None:
    assert b"come in" in spoken_to(guarded)
    assert own_account.answers(guarded)


@pytest.mark.parametrize("account", [os.getuid() + 1, None])
def test_another_account_and_an_unknown_one_are_hung_up_on(
    guarded: int, account: int | None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(own_account, "account_of", lambda there, here: account)
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
    assert not own_account.answers(bare)


def test_a_port_that_somebody_else_took_counts_as_no_server(
    guarded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = own_account.account_of

    def taken(here: Any, there: Any, state: str = own_account.ESTABLISHED) -> int | None:
        return os.getuid() + 1 if state == own_account.LISTENING else real(here, there, state)

    monkeypatch.setattr(own_account, "account_of", taken)
    assert not own_account.answers(guarded)


def test_the_table_is_read_again_before_a_row_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = ("127.0.0.1", 80), ("127.0.0.1", 81)
    row = f"  0: {own_account._row(here)} {own_account._row(there)} 01 0:0 0:0 0 4711 0 1"

    readings = iter(["header\n", f"header\n{row}\n"])
    table = SimpleNamespace(read_text=lambda encoding: next(readings))
    monkeypatch.setattr(own_account, "TABLE", table)
    assert own_account.account_of(here, there) == 4711


@pytest.mark.parametrize("account", [None, os.getuid() + 1])  # no table; one that says nothing
def test_where_accounts_cannot_be_told_apart_flowers_command_is_started_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: int, capsys: Any, account: int | None
) -> None:
    if account is None:
        monkeypatch.setattr(own_account, "TABLE", tmp_path / "none")
    else:
        monkeypatch.setattr(own_account, "account_of", lambda *_: account)
    own_account.can_tell.cache_clear()
    try:
        assert not own_account.can_tell()
        assert own_account.command("flower-superlink") == ["flower-superlink"]
        assert own_account.answers(bare)
        monkeypatch.setattr("sys.argv", ["own_account", "flower-superlink"])
        with pytest.raises(SystemExit, match="cannot be told apart"):
            own_account.main()
        cli_run._say_what_is_open()
        assert "can run code as you" in capsys.readouterr().err
    finally:
        own_account.can_tell.cache_clear()


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
    monkeypatch.setattr("sys.argv", ["own_account", "flwr"])
    with pytest.raises(SystemExit, match="flower-superlink, flower-supernode"):
        own_account.main()


def test_what_flowers_command_writes_is_for_its_account_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the SuperLink's database, which Flower makes as the umask says."""
    made = tmp_path / "superlink.db"
    command = SimpleNamespace(load=lambda: lambda: made.touch())
    monkeypatch.setattr("sys.argv", ["own_account", "flower-superlink"])
    monkeypatch.setattr(own_account, "guard", lambda config: None)
    monkeypatch.setattr(own_account.importlib.metadata, "entry_points", lambda **_: [command])
    before = os.umask(0o022)
    try:
        with pytest.raises(SystemExit):
            own_account.main()
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
        one.rmdir()
        two.rmdir()
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    short = ray_folder()
    short.rmdir()
    assert len(str(short)) < 30  # the sockets in it have 107 characters


def test_a_run_takes_its_folder_away(tmp_path: Path) -> None:
    flower = LocalFlower(tmp_path / "run", port=1)
    flower.scratch = ray_folder()
    (flower.scratch / "ray").mkdir()
    flower.close()
    assert not flower.scratch.exists()


def test_what_listens_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("", 0)) as wide:
        ports = {server.getsockname()[1]: server is here for server in (here, wide)}
        found = {s.port: s.loopback for s in listeners(descendants(os.getpid()))}
    assert ports.items() <= found.items()
