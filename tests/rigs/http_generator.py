"""What several tests share about http generator."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Body = dict[str, Any]


Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


def choices(*texts: str) -> Body:
    return {"choices": [{"index": i, "text": text} for i, text in enumerate(texts)]}


def echo(body: Body) -> Answer:
    """n texts that say what was asked."""
    return 200, choices(*(f"{body['model']}|{body['prompt']}|{i}" for i in range(body["n"])))


class Fake:
    """A server that answers as its `answers` say and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[Body], Answer]] = {
            "/v1/completions": echo,
            "/v1/models": lambda body: (200, {"data": [{"id": "m"}]}),
        }
        self.asked: list[tuple[str, Body]] = []
        self.keys: list[str | None] = []
        self.codings: set[str | None] = set()
        self.most_at_once = self._now = 0
        lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size) or b"{}")
                with lock:
                    fake.asked.append((self.path, body))
                    fake.keys.append(self.headers.get("Authorization"))
                    fake.codings.add(self.headers.get("Accept-Encoding"))
                    fake._now += 1
                    fake.most_at_once = max(fake.most_at_once, fake._now)
                missing: Callable[[Body], Answer] = lambda _: (404, {"detail": "Not Found"})  # noqa: E731
                try:
                    status, answer, *headers = fake.answers.get(self.path, missing)(body)
                finally:
                    with lock:
                        fake._now -= 1
                if isinstance(answer, Iterator):  # pieces of an answer without an end
                    self.send_response(status)
                    self.end_headers()
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        for piece in answer:
                            self.wfile.write(piece)
                    return
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in (headers[0] if headers else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(data)  # a client that lost patience is gone

            do_GET = do_POST  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def bodies(self, path: str = "/v1/completions") -> list[Body]:
        return [body for asked, body in self.asked if asked == path]


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake()
    yield server
    server.server.shutdown()
    server.server.server_close()
