"""The key that vLLM's server asks for on every path."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from typing import Any

import pytest

from privsyn_flower.text.serving.vllm_server import SERVED_FILES

KEY = "secret"


def answered(
    monkeypatch: pytest.MonkeyPatch, path: str, header: bytes | None, kind: str = "http"
) -> list[Any]:
    """What a request gets: ["app"] when it was let through, else the messages sent."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    spec = importlib.util.spec_from_file_location(
        "privsyn_require_key", SERVED_FILES / "privsyn_require_key.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append("app")

    async def send(message: Any) -> None:
        seen.append(message)

    headers = [(b"host", b"127.0.0.1")] + ([(b"authorization", header)] if header else [])
    scope = {"type": kind, "path": path, "headers": headers}
    asyncio.run(module.RequireKey(app)(scope, None, send))
    return seen


@pytest.mark.parametrize("path", ["/sleep", "/collective_rpc", "/v1/completions", "/health/x"])
@pytest.mark.parametrize("header", [None, b"Bearer wrong", b"secret", b"Bearer secret2"])
def test_without_the_key(monkeypatch: pytest.MonkeyPatch, path: str, header: bytes | None) -> None:
    seen = answered(monkeypatch, path, header)
    assert seen[0]["status"] == 401 and "app" not in seen


@pytest.mark.parametrize("path", ["/sleep", "/v1/completions"])
def test_with_the_key(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    assert answered(monkeypatch, path, b"Bearer secret") == ["app"]


def test_health_and_the_start_of_the_server_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(monkeypatch, "/health", None) == ["app"]
    assert answered(monkeypatch, "", None, kind="lifespan") == ["app"]


def test_a_websocket_without_the_key_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = answered(monkeypatch, "/v1/realtime", None, kind="websocket")
    assert message["type"] == "websocket.close"


def test_vllms_interpreter_sees_nothing_else_of_ours() -> None:
    names = {path.stem for path in SERVED_FILES.glob("*.py")}
    assert names == {"privsyn_require_key"}
    assert not names & set(sys.stdlib_module_names)
