"""The canned server, and models that ask it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.text.serving import http_client
from privsyn_flower.text.serving.http_generator import OpenAIGenerator
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # a small random model

SCRIPT = Path(__file__).with_name("canned.py")


class Canned:
    """A running server; `canned.py` says what a plan is."""

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        path = folder / "plan.json"
        path.write_text(json.dumps(plan))
        self.process = subprocess.Popen(
            [sys.executable, "-I", SCRIPT, path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.root = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        self.url = self.root + "/v1"

    def generator(self, **options: Any) -> OpenAIGenerator:
        """A client in chat; its retries are those of the configuration's default."""
        kept = {"chat": True, "stop": (), "timeout": 60.0, "api_key_env": "", "progress": False}
        return OpenAIGenerator(self.url, "canned", **kept | options)

    def stats(self) -> dict[str, Any]:
        """asked: bodies of the requests in order; most: answers at once; share: of slots busy."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.root + "/stats", timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def prompts(self) -> list[str]:
        """What was asked, in the order in which it came."""
        return [body["messages"][-1]["content"] for body in self.stats()["asked"]]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def canned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Canned]]:
    """canned(rules=..., faults=..., slots=..., seconds=..., token_seconds=...) -> a server."""
    running: list[Canned] = []

    def start(**plan: Any) -> Canned:
        running.append(Canned(tmp_path_factory.mktemp("canned"), plan))
        return running[-1]

    yield start
    for server in running:
        server.kill()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.002)
