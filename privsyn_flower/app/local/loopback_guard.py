"""Flower's servers for this account alone, as `python -P -m` of this module with `flower-...`.

Whoever reaches a SuperLink's port starts runs with code of their own, and Flower 1.41 has no way
to ask who it is. On loopback the kernel knows: its table of connections names the account at the
other end. Here Flower's command runs as it is, in a process whose web server (uvicorn) hangs up on
other accounts before it reads a byte. Where there is no such table (only Linux has it) Flower's
command is started as it is, and `can_tell` is false.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import socket
import ssl
import struct
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from privsyn_flower.common.terminal import plain_log

TABLE = Path("/proc/net/tcp")
ESTABLISHED, LISTENING = "01", "0A"
TRIES = 3  # the kernel hands the table out in pieces; while it changes, a row can be missed
HEADER = ("x-answers", "own-account")  # in every reply of a server that is guarded
COMMANDS = ("flower-superlink", "flower-supernode")

OPEN = (
    "warning: this system does not tell accounts apart on loopback; until this ends, whoever has "
    "an account on this machine can run code as you through Flower's ports (SECURITY.md)"
)

Address = tuple[str, int]
ANYBODY: Address = ("0.0.0.0", 0)  # the other end of a socket that listens


@functools.cache
def can_tell() -> bool:
    """Whether this system says which account a connection belongs to: tried with one of our own."""
    if not os.access(TABLE, os.R_OK):
        return False
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        with socket.create_connection(here) as client:
            ours = account_of(client.getsockname(), here), account_of(here, ANYBODY, LISTENING)
    return ours == (os.getuid(), os.getuid())


def command(name: str, python: str = sys.executable) -> list[str]:
    """How to start one of Flower's servers for this account alone, where that can be."""
    if not can_tell():
        return [name]
    return [python, "-P", "-m", "privsyn_flower.app.local.loopback_guard", name]


def account_of(here: Address, there: Address, state: str = ESTABLISHED) -> int | None:
    """The account that holds the IPv4 socket at `here`, connected to `there`; None: no such."""
    wanted = [_row(here), _row(there), state]
    for _ in range(TRIES):
        for line in TABLE.read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[1:4] == wanted:
                return int(fields[7])
    return None


def answers(port: int, authority: Path | None = None) -> bool:
    """Whether a server of this account answers on a port of loopback, and no other account.

    authority: the certificates to trust, for a server with TLS.
    """
    here = ("127.0.0.1", port)
    if can_tell() and account_of(here, ANYBODY, LISTENING) != os.getuid():
        return False  # nobody, or somebody else, who was faster at taking a port that was free
    trusted = None if authority is None else ssl.create_default_context(cafile=str(authority))
    scheme = "http" if authority is None else "https"
    try:
        url = f"{scheme}://127.0.0.1:{port}/health"
        with urllib.request.urlopen(url, timeout=2, context=trusted) as reply:
            guarded = not can_tell() or reply.headers[HEADER[0]] == HEADER[1]
            return int(reply.status) < 400 and guarded
    except (OSError, urllib.error.URLError):
        return False


def guard(config: Any) -> None:
    """Make every server that this uvicorn.Config class configures answer this account alone."""
    load = config.load

    def guarded(self: Any) -> None:
        self.headers.append(HEADER)
        load(self)
        self.http_protocol_class = _guarded(self.http_protocol_class)

    config.load = guarded


def _guarded(protocol: Any) -> Any:
    """uvicorn's protocol, deaf to other accounts' connections."""
    told: set[int | None] = set()  # one line for each account, however often it tries

    class OwnAccount(protocol):  # type: ignore[misc]
        refused = False

        def connection_made(self, transport: Any) -> None:
            there = transport.get_extra_info("peername")
            here = transport.get_extra_info("sockname")
            account = account_of(there, here) if len(there) == 2 else None  # IPv6 is not ours
            self.refused = account != os.getuid()
            if not self.refused:
                super().connection_made(transport)
                return
            transport.abort()
            if account not in told:
                told.add(account)
                print(f"hung up on account {account}", file=sys.stderr, flush=True)

        def data_received(self, data: bytes) -> None:
            if not self.refused:
                super().data_received(data)

        def eof_received(self) -> None:
            if not self.refused:
                super().eof_received()

        def connection_lost(self, exc: Exception | None) -> None:
            if not self.refused:
                super().connection_lost(exc)

    return OwnAccount


def _row(address: Address) -> str:
    """An address as the table writes it: in the machine's byte order."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


def main() -> None:
    """Run the named command of Flower's in this process, guarded; its files are the account's own
    (a SuperLink's database holds nodes' answers, and Flower makes it as the umask says)."""
    import uvicorn

    os.umask(0o077)

    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        raise SystemExit(f"{name!r} is none of {', '.join(COMMANDS)}")
    if not can_tell():
        raise SystemExit(f"other accounts cannot be told apart here: no {TABLE} that names them")
    guard(uvicorn.Config)
    entry = next(iter(importlib.metadata.entry_points(group="console_scripts", name=name)))
    sys.argv = sys.argv[1:]
    start = entry.load()  # with Flower's log
    plain_log()
    sys.exit(start())


if __name__ == "__main__":
    main()
