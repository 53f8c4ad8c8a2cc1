"""Every folder of examples/ under a real `flwr run`, as its README says, without a network.

examples/private-drop-in runs in test_dropin.py, with a look at what leaves the nodes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app as command_line
from privsyn_flower.runs import RunFolder
from tests.end_to_end.conftest import flwr, left_running
from tests.rigs.docs import FENCE, text_of

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
APPS = sorted(path.parent for path in EXAMPLES.rglob("pyproject.toml"))
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if (path / "README.md").exists())
EPSILON = re.compile(r"Epsilon = ([\d.]+) at delta = (\S+) for each user")


def commands(name: str) -> list[str]:
    """The shell lines of an example's README."""
    readme = text_of(EXAMPLES / name / "README.md")
    code = "".join(code for kind, code in FENCE.findall(readme) if kind == "sh")
    return code.replace("\\\n", " ").splitlines()


def printed(name: str, environment: Mapping[str, str], folder: Path, more: str = "") -> str:
    """What the first `flwr run` of an example's README prints, with more arguments if need be."""
    command = next(line for line in commands(name) if line.startswith("flwr run ."))
    place = f"flwr run {EXAMPLES / name}"
    result = flwr(command.replace("flwr run .", place, 1) + more, environment, folder)
    log = result.stdout + result.stderr
    assert result.returncode == 0 and "Exit Code" not in log, log
    return log


def run_folder(home: Path) -> Path:
    (folder,) = (path for path in (home / "privsyn-runs").iterdir() if path.is_dir())
    return folder


@pytest.mark.parametrize("app", APPS, ids=lambda path: path.relative_to(EXAMPLES).as_posix())
def test_an_example_is_an_app_as_flowers_hub_takes_it(app: Path) -> None:
    project = tomllib.loads(text_of(app / "pyproject.toml"))
    own, flower = project["project"], project["tool"]["flwr"]["app"]
    assert own["license"] == {"file": "LICENSE.md"} and (app / "LICENSE.md").is_file()
    assert 0 < len(own["description"]) <= 200 and own["version"] == "1.0.0"
    assert {"serverapp", "clientapp"} == set(flower["components"])
    assert flower["fab-format-version"] == 1 and flower["publisher"] == "privsyn"
    pinned = text_of(ROOT / "constraints.txt")
    assert f"\nflwr=={flower['flwr-version-target']}\n" in pinned
    assert any(row.startswith("flwr[simulation]>=") for row in own["dependencies"])


@pytest.mark.parametrize("app", [ROOT / "app", *APPS], ids=lambda path: path.relative_to(ROOT))
def test_flower_finds_nothing_to_install_for_an_app(app: Path, tmp_path: Path) -> None:
    """What Flower calls before a run, where no package can be fetched."""
    shutil.copy(app / "pyproject.toml", tmp_path)
    command = [sys.executable, "-m", "uv", "lock", "--offline", "--no-cache", "--project", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    packages = tomllib.loads(text_of(tmp_path / "uv.lock"))["package"]
    assert [package["source"] for package in packages] == [{"virtual": "."}]


def test_there_are_six_and_their_readmes_are_short() -> None:
    expected = "llm-on-a-gpu new-method on-devices own-callback private-drop-in quickstart-pretext"
    assert expected.split() == NAMES
    for name in NAMES:
        lines = text_of(EXAMPLES / name / "README.md").splitlines()
        assert len(lines) <= 30 and max(map(len, lines)) <= 120, name
        for target in re.findall(r"\]\(([^)#\s]+)", "\n".join(lines)):
            assert (EXAMPLES / name / target).exists(), f"{name}: {target}"


def gardens(home: Path, texts: str) -> float:
    """The share of garden words among those of the texts that the votes picked."""
    last = sorted((run_folder(home) / "checkpoints").glob("round-*"))[-1]
    words = " ".join(json.loads(text_of(last))["state"]["seeds"]).split()
    garden = re.findall(r"\w+", texts.partition("GARDEN = ")[2])[:12]
    return sum(word in garden for word in words) / len(words)


@pytest.mark.slow
@pytest.mark.e2e
def test_quickstart_pretext(tmp_path: Path, environment: dict[str, str]) -> None:
    texts = EXAMPLES / "quickstart-pretext" / "texts.py"
    subprocess.run([sys.executable, str(texts)], env=environment, check=True)
    log = printed("quickstart-pretext", environment, tmp_path)
    assert set(EPSILON.findall(log)) == {("4", "1e-06")}
    assert "the simulated users' texts: ~/privsyn-quickstart.jsonl" in log
    assert "verdict: the votes can be told from noise" in log
    assert gardens(tmp_path, text_of(texts)) > 0.9  # a quarter is of the public text


def test_the_readme_shows_the_quickstarts_server() -> None:
    readme = text_of(ROOT / "README.md")
    shown = [code for kind, code in FENCE.findall(readme) if kind == "python"]
    server = text_of(EXAMPLES / "quickstart-pretext" / "server_app.py")
    assert shown == [server]
    assert len([line for line in server.splitlines() if line.strip()]) <= 16
    lines = "".join(code for kind, code in FENCE.findall(readme) if kind == "sh").splitlines()
    (own,) = (line for line in commands("quickstart-pretext") if line.startswith("flwr run"))
    assert own in lines and "python texts.py" in "\n".join(lines)


def test_the_method_of_ones_own_is_three_small_files() -> None:
    code = {path.name: text_of(path) for path in (EXAMPLES / "new-method").glob("*.py")}
    assert sorted(code) == ["client_app.py", "server_app.py", "topics.py"]
    assert sum(len(text.splitlines()) for text in code.values()) <= 120


def topics() -> list[str]:
    """What examples/new-method asks about."""
    source = text_of(EXAMPLES / "new-method" / "server_app.py")
    (listed,) = re.findall(r"^TOPICS = (\[.*?^\])", source, re.M | re.S)
    names: list[str] = json.loads(listed.replace(",\n]", "\n]"))
    return names


def rows(users: int, popular: int) -> Iterator[dict[str, str]]:
    """Three texts of each user, about one topic: of every second user the popular one."""
    rng = np.random.default_rng(0)
    words = [re.findall(r"\w{4,}", topic) for topic in topics()]
    for user in range(users):
        own = words[popular if user % 2 else user // 2 % len(words)]
        for _ in range(3):
            yield {"user_id": f"u{user}", "text": " ".join(rng.choice(own, size=8))}


@pytest.mark.slow
@pytest.mark.e2e
def test_new_method(tmp_path: Path, environment: dict[str, str]) -> None:
    """On made-up users, of whom it is known how many write about each topic."""
    popular, file = 8, tmp_path / "users.jsonl"
    file.write_text("\n".join(map(json.dumps, rows(200, popular))), encoding="utf-8")
    more = f""" --run-config 'data.source="files" data.path="{file}"'"""
    log = printed("new-method", environment, tmp_path, more)
    assert set(EPSILON.findall(log)) == {("4", "1e-05")}
    folder = run_folder(tmp_path)
    found: dict[str, Any] = json.loads(text_of(folder / "topics.json"))
    shares, noise = found["shares"], found["noise_std"]
    assert list(shares) == topics() and 0 < noise < 0.05
    # Half of the users, and a tenth of the others; a tenth of the others for every other topic.
    for place, share in enumerate(shares.values()):
        assert share == pytest.approx(0.55 if place == popular else 0.05, abs=6 * noise)
    assert max(shares, key=shares.__getitem__) == topics()[popular]
    assert f"\n{topics()[popular]}\n" in log
    charges = [json.loads(line) for line in text_of(folder / "ledger.jsonl").splitlines()[1:]]
    (row,) = [json.loads(line) for line in text_of(folder / "metrics.jsonl").splitlines()]
    # On a busy machine a first attempt may end before anything is sent, and costs nothing.
    void = {charge["id"] for charge in charges if charge["kind"] == "void"}
    paid = [(charge["kind"], charge["id"]) for charge in charges if charge["id"] not in void]
    assert paid == [(kind, row["charge"]) for kind in ("reserve", "sent", "commit")]
    assert row["round"] == 1


@pytest.mark.slow
@pytest.mark.e2e
def test_own_callback(tmp_path: Path, environment: dict[str, str]) -> None:
    log = printed("own-callback", environment, tmp_path)
    (file,) = (tmp_path / "privsyn-runs").glob("*.txt")
    lines, folder = text_of(file).splitlines(), RunFolder(run_folder(tmp_path))
    assert len(lines) == 3
    for rnd, (line, row) in enumerate(zip(lines, folder.metrics(), strict=True), start=1):
        noisy = folder.load_release(rnd)
        assert noisy is not None
        ratio = np.linalg.norm(noisy) / (row["noise_std"] * np.sqrt(noisy.size))
        assert line == f"round {rnd}: {ratio:.1f}"
    assert lines[2] in log and "callback SignalToNoise" not in log  # no error of it


@pytest.mark.slow
@pytest.mark.e2e
def test_on_devices(tmp_path: Path, environment: dict[str, str]) -> None:
    """The SuperLink and the SuperNodes end with the script."""
    app = tmp_path / "on-devices"
    shutil.copytree(EXAMPLES / "on-devices", app)
    own = {key: value for key, value in environment.items() if not key.startswith("FLWR_LOCAL")}
    result = subprocess.run(
        [str(app / "run.sh")], cwd=tmp_path, env=own, capture_output=True, text=True
    )
    log = result.stdout + result.stderr
    assert result.returncode == 0, log
    assert set(EPSILON.findall(log)) == {("4", "1e-06")} and "Simulated" not in log
    assert gardens(tmp_path, text_of(app / "texts.py")) > 0.5  # a quarter is of the public text
    devices = tmp_path / "privsyn-devices"
    assert left_running(str(devices)) == []
    for node in (devices / f"node-{number}" for number in range(4)):
        own = text_of(node / "cache" / "node.log")
        assert "answered: votes of run" in own and "compost" not in own
        flowers = text_of(node / "supernode.log")
        assert re.search(r"^INFO 20[\d-]+ [\d:,]+: +Starting Flower SuperNode$", flowers, re.M)
    command = ["metrics", "--node-config", str(devices / "node-0" / "node.toml")]
    shown = CliRunner().invoke(command_line, command).output
    assert re.search(r"^privsyn_node_answers_total [1-9]$", shown, re.M)
    assert "privsyn_node_epsilon_bound" in shown and "+Inf\n" not in shown


def test_llm_on_a_gpu_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run, as its README begins: no GPU and no model is needed for it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    file = EXAMPLES / "llm-on-a-gpu" / "run.toml"
    project = tomllib.loads(text_of(file.parent / "pyproject.toml"))
    assert project["tool"]["flwr"]["app"]["config"] == tomllib.loads(text_of(file))
    assert commands("llm-on-a-gpu")[0] == "privsyn plan run.toml"
    found = CliRunner().invoke(command_line, ["plan", str(file)])
    assert found.exit_code == 0, found.output
    assert "privacy: epsilon 7.58 of 7.58 at delta 1e-06" in found.output
    assert "writing lookahead" in found.output
