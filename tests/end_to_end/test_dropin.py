"""examples/private-drop-in under a real `flwr run`, before and after the change it shows."""

from __future__ import annotations

import difflib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import flwr

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "private-drop-in"
CHANGED = ("tabular/client_app.py", "tabular/server_app.py", "pyproject.toml")
CLINICS = 20
ROUNDS = {"before": 2, "after": 5}  # without noise two are enough
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
            if not reply.has_content():  # Flower's own word of a node that was slow: asked again
                continue
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


def run(version: str, folder: Path, environment: dict[str, str]) -> tuple[str, list[Any]]:
    """The log of a version of the example, and the records of every reply its server got."""
    app = folder / version
    shutil.copytree(EXAMPLE / version, app)
    (app / "tabular" / "recorder.py").write_text(RECORDER.replace("VERSION", version))
    project = app / "pyproject.toml"
    text = project.read_text().replace("tabular.server_app:app", "tabular.recorder:app")
    project.write_text(text)
    command = ["flwr", "run", str(app), "--stream", "--run-config", f"rounds={ROUNDS[version]}"]
    command += ["--federation-config", f"num-supernodes={CLINICS} client-resources-num-cpus=1"]
    result = flwr(command, environment, folder)
    log = result.stdout + result.stderr
    assert result.returncode == 0, log
    lines = (folder / f"{version}.jsonl").read_text().splitlines()
    return log, [json.loads(line) for line in lines]


def accuracy(log: str) -> float:
    found = re.search(r"accuracy on public patients: ([\d.]+)", log)
    assert found, log
    return float(found[1])


def clinics_accuracy(log: str) -> dict[str, float] | None:
    """What the evaluation on the clinics printed: one number, with its interval when private."""
    found = re.search(r"on the clinics' patients: (None|\{.*\})", log)
    assert found, log
    figures: dict[str, float] | None = json.loads(
        found[1].replace("'", '"').replace("None", "null")
    )
    return figures


@pytest.mark.slow
@pytest.mark.e2e
def test_the_example_runs_before_and_after(tmp_path: Path, environment: dict[str, str]) -> None:
    log, replies = run("before", tmp_path, environment)
    assert accuracy(log) > 0.85
    assert (clinics_accuracy(log) or {})["accuracy"] > 0.85
    assert len(replies) == 2 * CLINICS * ROUNDS["before"]
    assert all("num-examples" in reply["metrics"][1] for reply in replies)

    log, replies = run("after", tmp_path, environment)
    assert accuracy(log) > 0.8  # the larger class has 0.63, the model of the start 0.37
    assert "Epsilon = 4 at delta = 1e-05 for each user" in log and "with all its data" in log
    assert "5 rounds and 1 spare and 1 evaluation of models on the nodes" in log
    # Two greetings; five stages of each sum. On a busy machine a node may be late for one of them.
    assert len(replies) > 0.9 * CLINICS * (2 + 5 * (ROUNDS["after"] + 1))
    kinds = {(name, *map(str, record)) for reply in replies for name, record in reply.items()}
    assert {name for name, *_ in kinds} == {"answer", "secagg"}
    assert {kind for _, kind, _ in kinds} == {"ConfigRecord"}
    assert not [word for word in ("num-examples", "loss", "accuracy") if word in str(kinds)]
    assert "function failed" not in "".join(path.read_text() for path in tmp_path.rglob("node.log"))
    # The sum of 20 users' weights has noise of 4.7: once in 90 times no mean can be read from it.
    figures = clinics_accuracy(log)
    if figures is None:
        assert "the sum of the users' weights is" in log
    else:
        assert 0 <= figures["accuracy-low"] <= figures["accuracy"] <= figures["accuracy-high"] <= 1


@pytest.mark.slow
@pytest.mark.e2e
def test_a_forgotten_decorator_is_the_last_line(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Below Flower's exit code, and each node was greeted, and failed, once."""
    app = tmp_path / "app"
    shutil.copytree(EXAMPLE / "after", app)
    client, project = app / "tabular" / "client_app.py", app / "pyproject.toml"
    source = client.read_text()
    client.write_text(
        source.replace("@private_training\n", "").replace("@private_evaluation\n", "")
    )
    text = re.sub(r"^clinics = .*$", "clinics = 4", project.read_text(), flags=re.MULTILINE)
    project.write_text(text)
    command = ["flwr", "run", str(app), "--stream"]
    command += ["--federation-config", "num-supernodes=4 client-resources-num-cpus=1"]
    result = flwr(command, environment, tmp_path)
    log = result.stdout + result.stderr
    lines = [line for line in result.stdout.splitlines() if line and "ClientAppActor" not in line]
    assert lines[-1] == (
        "privsyn: TooFewNodes: 4 of 4 nodes failed (Flower error code 2): their train function is "
        "not private. Put @private_training below @app.train() in the ClientApp; or the function "
        'has an action name, as in @app.train("fit"), or the ClientApp has mods that read '
        "messages, such as clipping: take those out (docs/dropin.md)"
    ), log
    assert "Exit Code: 700" in log and len(log.splitlines()) < 1000


def test_the_page_shows_the_difference() -> None:
    """Every line that it shows as new or gone, and no file differs that need not."""
    page = (ROOT / "docs" / "dropin.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    shown = [line for block in blocks for line in block.splitlines()]
    made: list[str] = []
    for name in CHANGED:
        old, new = ((EXAMPLE / v / name).read_text().splitlines() for v in ("before", "after"))
        made += difflib.unified_diff(old, new, lineterm="")
    changes = [line for line in shown if line[0] in "+-"]
    assert len(changes) > 10 and [line for line in changes if line not in made] == []
    before, after = (
        {p.relative_to(EXAMPLE / v).as_posix(): p.read_bytes() for p in (EXAMPLE / v).rglob("*.*")}
        for v in ("before", "after")
    )
    names = {name for name in before if "__pycache__" not in name}
    assert names == {name for name in after if "__pycache__" not in name}
    assert {name for name in names if before[name] != after[name]} == set(CHANGED)
