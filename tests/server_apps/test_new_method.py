"""A method added to a copy of the package by three files: it is configured, planned and run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import privsyn_flower
from tests.server_apps.in_process import with_texts

PACKAGE = Path(privsyn_flower.__file__).parent
FILES = {
    "strategies/toy/strategy.py": '''
"""Users vote once on public texts; those with most votes are the result."""

from privsyn_flower.protocol import Query
from privsyn_flower.strategies.engine.rounds import Method


class Toy(Method):
    rounds = 1
    votes = ()

    def __init__(self, texts, embedder):
        self.texts, self.embedder = texts, embedder

    def ask(self, rnd):
        rows = self.embedder.embed(self.texts)
        return Query.votes(rows, bound=1.0, model=self.embedder.fingerprint, samples_cap=8)

    def learn(self, rnd, released, noise_std):
        self.votes = released.tolist()
        return {"released_votes": sum(self.votes)}

    def state(self):
        return {"votes": self.votes}

    def restore(self, state):
        self.votes = state["votes"]
''',
    "strategies/toy/config.py": '''
"""`[toy]`: the keys of the toy."""

from typing import ClassVar

from pydantic import Field

from privsyn_flower.config.common import SYNTHETIC, MethodEntry, MethodTable


class ToyConfig(MethodTable):
    table: ClassVar[str] = "toy"

    size: int = Field(8, ge=2, description="texts that users vote on")


METHODS = (MethodEntry("toy", SYNTHETIC, ToyConfig),)
''',
    "server_apps/methods/toy.py": '''
"""The toy in a run."""

from privsyn_flower.runs import write_jsonl
from privsyn_flower.server_apps.methods.recipe import Recipe
from privsyn_flower.strategies.toy.config import ToyConfig
from privsyn_flower.strategies.toy.strategy import Toy


class ToyRecipe(Recipe):
    @classmethod
    def question(cls, config):
        return "votes", {"bound": 1.0}

    @classmethod
    def length(cls, config):
        return config[ToyConfig].size

    @classmethod
    def loads(cls, config):
        return {"embedder"}

    def strategy(self, folder):
        return Toy(self.models.public.pool[: self.config[ToyConfig].size], self.models.embedder())

    def result(self, strategy):
        best = sorted(zip(strategy.votes, strategy.texts, strict=True))[-3:]
        write_jsonl(self.folder.path / "synthetic.jsonl", ({"text": text} for _, text in best))
        return len(best)


RECIPE = ToyRecipe
''',
}
RUN = """
import sys
from pathlib import Path

from privsyn_flower.protocol import messaging
from tests import conftest
from tests.server_apps.in_process import grid_for, run_on, simulated, small_config

make = messaging.Message
messaging.Message = lambda content, *given, **named: (
    make(content, **named) if "reply_to" in named
    else conftest.loopback_message(content, *given, **named)
)
shared = Path(sys.argv[1])
keys = {"method": "toy", "toy.size": 12, "rounds": 1, "epsilon": 500.0}
config = small_config(shared, shared, **keys)
run_on(grid_for(conftest.LoopbackGrid, simulated(config)), config, shared / "run")
"""


@pytest.mark.slow
def test_a_method_is_three_files(tmp_path: Path) -> None:
    copy = tmp_path / "privsyn_flower"
    copy.mkdir()
    for entry in PACKAGE.iterdir():
        if entry.name in ("strategies", "server_apps"):
            shutil.copytree(entry, copy / entry.name)
        elif entry.name != "__pycache__":
            (copy / entry.name).symlink_to(entry)
    for name, text in FILES.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(text)
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "toy.toml").write_text('method = "toy"\n[toy]\nsize = 12\n')
    with_texts(tmp_path)

    def python(*arguments: str) -> str:
        paths = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
        called = [sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": paths}
        found = subprocess.run(
            called, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    planned = python("-m", "privsyn_flower.app.cli.main", "plan", "toy.toml")
    assert "ready to run" in planned
    python("run.py", str(tmp_path))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["method"], summary["rounds"], summary["synthetic_samples"]) == ("toy", 1, 3)
    # What is generated has its keys, too.
    generated = "from privsyn_flower.config import *; print(to_toml(RunConfig(), comments=True))"
    assert "[toy]\nsize = 8  # texts that users vote on" in python("-c", generated)
