"""A page on loopback: for whoever has the address, and nobody else, whatever is sent."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from privsyn_flower.app.report import serving
from privsyn_flower.app.report.serving import PageServer, Unavailable

PAGE = "<!doctype html><p>Größe</p>"


@pytest.fixture
def server() -> Iterator[PageServer]:
    found = PageServer(lambda: PAGE)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


def ask(server: PageServer, request: bytes) -> bytes:
    """All that comes back."""
    with socket.create_connection(server.server_address[:2], timeout=10) as connection:
        connection.sendall(request)
        parts = []
        with suppress(ConnectionResetError):
            while part := connection.recv(65536):
                parts.append(part)
        return b"".join(parts)


def get(server: PageServer, path: str = "", host: str = "", method: str = "GET") -> bytes:
    path = path or f"/{server.token}/"
    host = host or f"127.0.0.1:{server.server_port}"
    return ask(server, f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_the_address_shows_the_page_and_lets_no_other_page_have_it(server: PageServer) -> None:
    with urllib.request.urlopen(server.address) as answer:
        assert answer.read().decode() == PAGE
        headers = dict(answer.headers)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert not any(name.lower().startswith("access-control") for name in headers)
    assert "Python" not in headers["Server"]


def test_it_listens_on_loopback_alone_and_each_server_has_its_own_token(
    server: PageServer,
) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    other = PageServer(lambda: PAGE)
    other.server_close()
    assert other.token != server.token and len(server.token) >= 43


@pytest.mark.parametrize(
    "path",
    ["/", "/{0}", "/{0}/x", "/{0}/../", "/{1}/", "/../../etc/passwd", "/{0}/?a", "/é/"],
)
def test_every_other_path_is_no_page(server: PageServer, path: str) -> None:
    wrong = server.token[:-1] + ("a" if server.token[-1] != "a" else "b")
    answer = get(server, path.format(server.token, wrong))
    assert status(answer) == 404 and PAGE.encode() not in answer
    assert server.token.encode() not in answer


def test_a_name_of_elsewhere_is_refused_also_with_the_token(server: PageServer) -> None:
    port, path = server.server_port, f"GET /{server.token}/ HTTP/1.1\r\n"
    assert status(get(server, host=f"localhost:{port}")) == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil:{port}"):
        assert status(get(server, host=host)) == 403
    assert status(ask(server, f"{path}\r\n".encode())) == 403
    own = f"Host: 127.0.0.1:{port}\r\n"
    assert status(ask(server, f"{path}{own}Host: evil.example\r\n\r\n".encode())) == 403


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "X"])
def test_the_page_can_be_read_and_nothing_else(server: PageServer, method: str) -> None:
    answer = get(server, method=method)
    assert status(answer) == 405 and b"\r\nAllow: GET\r\n" in answer
    assert PAGE.encode() not in answer


def test_what_is_no_request_gets_no_page(server: PageServer) -> None:
    for request in (b"\x00\xff\r\n\r\n", b"<script>alert(1)</script> / HTTP/9.9\r\n\r\n", b"\r\n"):
        answer = ask(server, request)
        assert PAGE.encode() not in answer and b"<script>" not in answer
    head = f"GET /{server.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n".encode()
    long = head + b"X: " + b"a" * 20000 + b"\r\n\r\n"
    assert b"200" not in ask(server, long)[:20]
    many = head + b"".join(b"X-%d: a\r\n" % n for n in range(2000)) + b"\r\n"
    assert b"200" not in ask(server, many)[:20]
    assert status(get(server)) == 200


def test_a_page_that_cannot_be_made_says_why(server: PageServer) -> None:
    def fails() -> str:
        raise Unavailable("the folder is gone")

    server.render = fails
    answer = get(server)
    assert status(answer) == 503 and answer.endswith(b"the folder is gone\n")


def test_an_error_of_the_page_is_an_answer_and_one_line(
    server: PageServer, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    def fails() -> str:
        raise KeyError("epsilon")

    server.render = fails
    for _ in range(3):
        answer = get(server)
        assert status(answer) == 500
        assert answer.endswith(b"the page cannot be made: KeyError: 'epsilon'\n")
    assert [one.getMessage() for one in caplog.records] == [
        "the page cannot be made: KeyError: 'epsilon'"
    ]
    assert "Traceback" not in capfd.readouterr().err


def test_slow_clients_are_hung_up_on_and_keep_nobody_out_for_long(
    server: PageServer, monkeypatch: Any
) -> None:
    monkeypatch.setattr(serving, "SECONDS", 0.6)
    slow = [socket.create_connection(server.server_address[:2]) for _ in range(20)]
    begin = time.monotonic()
    for _ in range(4):  # a byte now and then buys no time
        for one in slow:
            with suppress(OSError):
                one.sendall(b"G")
        time.sleep(0.1)
    while True:
        with suppress(OSError):
            if get(server).startswith(b"HTTP/1.0 200"):
                break
        assert time.monotonic() - begin < 600
        time.sleep(0.05)
    for one in slow:
        one.settimeout(600)
        with suppress(ConnectionResetError):
            assert one.recv(1000) == b""
        one.close()


def test_a_client_that_does_not_read_holds_no_thread_for_long(
    server: PageServer, monkeypatch: Any
) -> None:
    monkeypatch.setattr(serving, "SECONDS", 1.0)
    server.render = lambda: "x" * (32 << 20)
    before = threading.active_count()
    with socket.create_connection(server.server_address[:2]) as connection:
        host = f"127.0.0.1:{server.server_port}"
        connection.sendall(f"GET /{server.token}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        deadline = time.monotonic() + 600
        while threading.active_count() == before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() == before + 1
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() == before


def test_nothing_of_a_request_is_written_anywhere(server: PageServer, capfd: Any) -> None:
    get(server)
    get(server, "/nothing/")
    ask(server, b"nonsense\r\n\r\n")
    assert capfd.readouterr() == ("", "")


def test_a_machine_without_threads_takes_no_place_for_good(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        for _ in range(serving.AT_ONCE + 1):
            with pytest.raises(RuntimeError):
                server.process_request(socket.socket(), ("127.0.0.1", 1))
    with urllib.request.urlopen(server.address, timeout=5) as answer:
        assert answer.read().decode() == PAGE
