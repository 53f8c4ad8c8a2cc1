"""Middleware for vLLM's server: every path asks for the key, vLLM's development calls included.

vLLM itself guards `/v1` only, so sleep, wake-up and remote calls to the engine would be open to
all users of the machine. This file is imported by vLLM's interpreter, which has none of our
packages: it stands in a folder of its own, imports the standard library alone and is named after
the project, so that it hides no module of vLLM's.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Call = Callable[..., Awaitable[Any]]

OPEN = {"/health"}  # whether the server is up: it is asked before anything else


class RequireKey:
    """An ASGI application that answers 401 to requests without `Authorization: Bearer KEY`.

    The key is the environment's VLLM_API_KEY. Raises KeyError where it is not set.
    """

    def __init__(self, app: Call) -> None:
        self.app = app
        self.expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Scope, receive: Call, send: Call) -> None:
        if scope["type"] == "lifespan" or scope.get("path") in OPEN or self._knows_key(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    def _knows_key(self, scope: Scope) -> bool:
        given = dict(scope.get("headers") or []).get(b"authorization", b"")
        return hmac.compare_digest(given, self.expected)
