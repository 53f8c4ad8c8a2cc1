"""The apps on README and docs under real `flwr run`s, as printed, in an empty home, no network.

(The new method of docs/extending.md is `test_new_method`'s, the drop-in example `test_dropin`'s,
the secure sum `test_secure_sum`'s; blocks without an app run in `tests/test_docs.py`.)
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.end_to_end import test_secure_sum
from tests.end_to_end.conftest import flwr

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
environment = test_secure_sum.environment  # a Flower of its own, ended with the test

FAVOURITES = """
import dataclasses
from pathlib import Path

from privsyn_flower.text import load_embedder
from topics import Topics


class Favourites(Topics):
    def ask(self, rnd):
        return dataclasses.replace(super().ask(rnd), kind="favourites")


def main(grid, context):
    topics = ["roses and soil, seeds, compost", "meeting, deadline, budget, report"]
    strategy, folder = Favourites(topics, embedder=load_embedder("ngram-256")), Path.home() / "fav"
    strategy.start(grid, folder=folder, users=200, nodes=8, epsilon=8.0, delta=1e-5)
    print("favourites:", strategy.seeds)
"""
ALL = """
from flwr.serverapp import ServerApp

import ask_favourites, ctcl, popri

app = ServerApp()


@app.main()
def main(grid, context):
    for page in (ask_favourites, popri, ctcl):
        page.main(grid, context)
"""


def block(page: str, word: str) -> str:
    """The only block of a page that holds `word`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = [b for b in re.findall(r"^```\w+\n(.*?)^```$", text, re.M | re.S) if word in b]
    return str(found)


def app(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        place = folder / ("pyproject.toml" if name == "pyproject" else f"{name}.py")
        place.write_text(text, encoding="utf-8")
    return folder


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    """What it printed."""
    result = flwr(command, environment, folder)
    log = result.stdout + result.stderr
    assert result.returncode == 0 and "Exit Code" not in log, log
    return log


def test_the_apps_on_the_pages_run(tmp_path: Path, environment: dict[str, str]) -> None:
    project, commands = (
        block("README.md", 'first-privsyn"\nversion'),
        block("README.md", "texts.py\n"),
    )
    first = app(
        tmp_path / "first",
        texts=block("README.md", "random.Random"),
        server_app=block("README.md", "PrEText("),
        pyproject=project,
    )
    python = Path(sys.executable).parent
    log = run(f"PATH={python}:$PATH\n{commands}", first, environment)
    home = tmp_path / "first-privsyn"
    assert "the simulated users' texts: ~/first-privsyn/users.jsonl" in log
    assert "verdict: the votes can be told from noise" in log
    assert "Epsilon = 7.58 at delta = 3e-06 for each user" in log
    (folder,) = (path for path in home.iterdir() if path.is_dir())
    seeds = json.loads(sorted((folder / "checkpoints").glob("round-*"))[-1].read_text())
    garden = re.findall(r"\w+", block("README.md", "random.Random").partition('garden = "')[2])[:12]
    words = " ".join(seeds["state"]["seeds"]).split()
    assert sum(word in garden for word in words) > 0.9 * len(words)  # what the users write about

    client = "privsyn_flower.client_apps.main:app"
    assert client in project
    other = app(
        tmp_path / "other",
        pyproject=project.replace(client, "client_app:app").replace(
            "[tool.flwr.app.config]\n", '[tool.flwr.app.config]\nmethod = "ctcl"\n'
        ),
        client_app=block("docs/extending.md", "FAVOURITES = "),
        favourites=block("docs/extending.md", "def favourites("),
        topics=block("docs/extending.md", "class Topics("),
        ask_favourites=FAVOURITES,
        popri=block("docs/extending.md", "POPri("),
        ctcl=block("docs/dropin.md", "CTCL("),
        server_app=ALL,
    )
    log = run(commands.splitlines()[-1], other, environment)
    assert "favourites: ['roses and soil, seeds, compost']" in log
    (popri,) = home.glob("popri-*")
    assert len((popri / "synthetic.txt").read_text().splitlines()) == 100
    (ctcl,) = home.glob("ctcl-*")
    assert f"texts in {ctcl}/synthetic.jsonl" in log
