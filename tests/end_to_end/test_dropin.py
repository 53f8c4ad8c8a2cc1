"""The example of docs/dropin.md under a real `flwr run`, before and after the change it shows."""

from __future__ import annotations

import difflib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import test_secure_sum

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "tabular"
CHANGED = ("tabular/client_app.py", "tabular/server_app.py", "pyproject.toml")
CLINICS, ROUNDS = 20, 5
RECORDER = """
import json
from pathlib import Path

from flwr.serverapp import ServerApp
from tabular.server_app import app as inner

app = ServerApp()


class Recorder:
    def __init__(self, grid, file):
        self.grid, self.file = grid, file

    def __getattr__(self, name):
        return getattr(self.grid, name)

    def noted(self, replies):
        for reply in replies:
            kinds = {n: [type(r).__name__, sorted(r)] for n, r in reply.content.items()}
            self.file.write(json.dumps(kinds) + "\\n")
        return replies

    def pull_messages(self, ids):
        return self.noted(list(self.grid.pull_messages(ids)))

    def send_and_receive(self, messages, **more):
        return self.noted(list(self.grid.send_and_receive(messages, **more)))


@app.main()
def main(grid, context):
    with (Path.home() / "VERSION.jsonl").open("w") as file:
        inner(Recorder(grid, file), context)
"""

environment = test_secure_sum.environment  # a Flower of its own, ended with the test


def run(version: str, folder: Path, environment: dict[str, str]) -> tuple[str, list[Any]]:
    """The log of a version of the example, and the records of every reply its server got."""
    app = folder / version
    shutil.copytree(EXAMPLE / version, app)
    (app / "tabular" / "recorder.py").write_text(RECORDER.replace("VERSION", version))
    project = app / "pyproject.toml"
    text = project.read_text().replace("tabular.server_app:app", "tabular.recorder:app")
    project.write_text(text)
    command = ["flwr", "run", str(app), "--stream"]
    command += ["--federation-config", f"num-supernodes={CLINICS} client-resources-num-cpus=1"]
    environment = {**environment, "RAY_worker_niceness": "0"}
    result = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=240
    )
    log = result.stdout + result.stderr
    assert result.returncode == 0, log
    lines = (folder / f"{version}.jsonl").read_text().splitlines()
    return log, [json.loads(line) for line in lines]


def accuracy(log: str) -> float:
    found = re.search(r"accuracy on public patients: ([\d.]+)", log)
    assert found, log
    return float(found[1])


@pytest.mark.slow
@pytest.mark.e2e
def test_the_example_runs_before_and_after(tmp_path: Path, environment: dict[str, str]) -> None:
    log, replies = run("before", tmp_path, environment)
    assert accuracy(log) > 0.85
    assert len(replies) == CLINICS * ROUNDS
    assert all("num-examples" in reply["metrics"][1] for reply in replies)

    log, replies = run("after", tmp_path, environment)
    assert accuracy(log) > 0.8  # the larger class has 0.63, the model of the start 0.37
    assert "Epsilon = 4 at delta = 1e-05 for each user" in log
    assert len(replies) >= CLINICS * (1 + 5 * ROUNDS)  # the greeting; five stages a round
    kinds = {(name, *map(str, record)) for reply in replies for name, record in reply.items()}
    assert {name for name, *_ in kinds} == {"answer", "secagg"}
    assert {kind for _, kind, _ in kinds} == {"ConfigRecord"}
    assert "num-examples" not in str(kinds) and "loss" not in str(kinds)
    assert "train function failed" not in "".join(
        path.read_text() for path in tmp_path.rglob("node.log")
    )


def test_the_page_shows_the_whole_difference() -> None:
    page = (ROOT / "docs" / "dropin.md").read_text(encoding="utf-8")
    shown = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    assert len(shown) == len(CHANGED)
    for name, block in zip(CHANGED, shown, strict=True):
        old, new = ((EXAMPLE / v / name).read_text().splitlines(True) for v in ("before", "after"))
        lines = difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", n=2)
        assert "".join(lines) == block
    before, after = (
        {p.relative_to(EXAMPLE / v).as_posix(): p.read_bytes() for p in (EXAMPLE / v).rglob("*.*")}
        for v in ("before", "after")
    )
    names = {name for name in before if "__pycache__" not in name}
    assert names == {name for name in after if "__pycache__" not in name}
    assert {name for name in names if before[name] != after[name]} == set(CHANGED)
