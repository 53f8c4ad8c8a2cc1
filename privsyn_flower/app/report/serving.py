"""One page on loopback, for whoever knows its address: a server as small as that asks for.

A page of a run may show a benchmark's figures, which are private, so it is not for other accounts
of the machine, nor for web sites that the same browser has open. The address holds a token that
nobody guesses. A name that a stranger's DNS points to this machine (rebinding) is refused by the
Host header, and no header lets a page of elsewhere read an answer. Nothing else is served: there
are no files, and nothing is changed by a request.

Slow, large and many requests are bounded, each by time in all, not between two bytes.
"""

from __future__ import annotations

import hmac
import io
import logging
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

logger = logging.getLogger("privsyn_flower")

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32
MOST_BYTES = 16 << 10  # of a request, its headers included
SECONDS = 5.0  # for a request to arrive, and again for an answer to leave
AT_ONCE = 8  # requests; more are hung up on
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest is in the page's own
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Render = Callable[[], str]


class Unavailable(RuntimeError):
    """The page cannot be made now; the text says why, and is shown."""


class PageServer(ThreadingHTTPServer):
    """Serves `render()` at `address`; begin with `serve_forever`, in a thread of its own.

    render: the page as it is now; raises Unavailable where there is none. It is called by several
    threads. port: 0 for a free one. path: of what is no secret, else it has a token. kind: of what
    is served. Raises OSError where the port is taken.
    """

    daemon_threads = True
    request_queue_size = 2 * AT_ONCE

    def __init__(
        self, render: Render, port: int = 0, *, path: str | None = None, kind: str = "text/html"
    ) -> None:
        self.render, self.kind = render, kind
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.path = f"/{self.token}/" if path is None else path
        self.last_request = time.monotonic()  # when somebody last looked
        self._last_failure = ""
        self._free = threading.BoundedSemaphore(AT_ONCE)
        super().__init__((LOOPBACK, port), _Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of the machine's name that the base class does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, int(self.server_address[1])

    @property
    def address(self) -> str:
        """The page's, with its token if it has one: whoever has it may look."""
        return f"http://{LOOPBACK}:{self.server_port}{self.path}"

    @property
    def hosts(self) -> set[str]:
        """What a request may call this machine."""
        return {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, while there is one free."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread to be had, and so none that gives the place free
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one, and give its place free."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def log_failure(self, why: str) -> None:
        """Log why there is no page: once, however often it is asked for."""
        if why != self._last_failure:
            self._last_failure = why
            logger.warning(why)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who hung up, or was too slow, is no event; other failures are shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Bounded(io.RawIOBase):
    """What a client sends: at most MOST_BYTES, within SECONDS in all."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.left = connection, MOST_BYTES
        self.deadline = time.monotonic() + SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises TimeoutError when time is up, and for more than anybody needs to ask."""
        remaining = self.deadline - time.monotonic()
        if remaining <= 0 or self.left <= 0:
            raise TimeoutError("the request took too long, or is too long")
        self.connection.settimeout(remaining)
        count = self.connection.recv_into(memoryview(buffer)[: self.left])
        self.left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    """GET of the one page. One request for each connection (HTTP/1.0)."""

    server: PageServer
    server_version, sys_version = "privsyn", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Bounded(self.connection), 2048)

    def do_GET(self) -> None:
        """The page, to whoever knows its address and calls the machine by its own name."""
        if self.headers.get_all("Host") not in [[host] for host in self.server.hosts]:
            self._answer(403, "this is no name of the page's machine\n")
            return
        given, wanted = self.path.encode("utf-8", "replace"), self.server.path.encode()
        if not hmac.compare_digest(given, wanted):
            self._answer(404, "there is no such page: the address is the one that was printed\n")
            return
        self.server.last_request = time.monotonic()
        try:
            page = self.server.render()
        except Unavailable as error:
            self._answer(503, f"{error}\n")
            return
        except Exception as error:
            why = f"the page cannot be made: {type(error).__name__}: {error}"
            self.server.log_failure(why)
            self._answer(500, f"{why}\n")
            return
        self._answer(200, page, self.server.kind)

    def _answer(self, code: int, text: str, kind: str = "text/plain", **more: str) -> None:
        body = text.encode("utf-8", "replace")
        self.connection.settimeout(SECONDS)  # of all that is sent together
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in {**HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Another method than GET, or no request at all. Nothing of it comes back."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._answer(405, "the page can be read, and nothing else\n", Allow="GET")
        else:
            self._answer(code, "this is no request for the page\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Addresses hold the token: none is written anywhere."""
