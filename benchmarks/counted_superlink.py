"""A SuperLink that counts: requests by path, bytes of HTTP in and out, without TLS's own.

    python counted_superlink.py FILE flower-superlink ...

Everything else is what `privsyn federation` starts (`app.local.loopback_guard`); FILE
gets the counts once a second, as JSON. Used by many_nodes.py.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvicorn

from privsyn_flower.app.local import loopback_guard

EVERY = 1.0  # seconds between two writes
counts: Counter[str] = Counter()


class Sent:
    """A connection's transport that counts what is written to it."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        counts["bytes out"] += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def counted(protocol: Any) -> Any:
    """uvicorn's protocol, with its bytes counted."""

    class Counted(protocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            counts["connections"] += 1
            super().connection_made(Sent(transport))

        def data_received(self, data: bytes) -> None:
            counts["bytes in"] += len(data)
            super().data_received(data)

    return Counted


def install(config: Any) -> None:
    """Make every server that this uvicorn.Config class configures count."""
    load = config.load

    def loaded(self: Any) -> None:
        load(self)
        self.http_protocol_class = counted(self.http_protocol_class)
        app = self.loaded_app

        async def asked(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                counts[scope["path"]] += 1
            await app(scope, receive, send)

        self.loaded_app = asked

    config.load = loaded


def write(path: Path) -> None:
    """The counts, for as long as the process lives."""
    while True:
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(dict(counts)), encoding="utf-8")
        beside.replace(path)
        time.sleep(EVERY)


if __name__ == "__main__":
    threading.Thread(target=write, args=(Path(sys.argv.pop(1)),), daemon=True).start()
    install(uvicorn.Config)
    loopback_guard.main()
