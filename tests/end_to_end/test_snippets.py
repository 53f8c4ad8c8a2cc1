"""docs/secure-sum.md's example, and docs/extending.md's strategies and handlers, under one real
`flwr run`, as printed, no network.

(examples/ are test_examples's and test_dropin's; blocks without an app run in tests/test_docs.py.)
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.end_to_end.conftest import flwr

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]

SERVER = """
import dataclasses
from pathlib import Path

from flwr.serverapp import ServerApp

from methods import ctcl, popri
from secure_server import app as secure_sum
from privsyn_flower import load_embedder
from texts import PUBLIC
from topics import Topics

app = ServerApp()


class Favourites(Topics):
    def ask(self, rnd):
        return dataclasses.replace(super().ask(rnd), kind="favourites")


@app.main()
def main(grid, context):
    secure_sum(grid, context)
    topics = ["roses and soil, seeds, compost", "meeting, deadline, budget, report"]
    asked = {"folder": Path.home() / "fav", "users": 40, "nodes": 4, "epsilon": 8.0, "delta": 1e-5}
    strategy = Favourites(topics, embedder=load_embedder("ngram-256"))
    strategy.start(grid, **asked)
    print("favourites:", strategy.seeds)
    for method in (popri, ctcl):
        asked["folder"] = Path.home() / method.__name__
        result = method(PUBLIC).start(grid, **asked, samples=24)
        print(method.__name__, len(result.texts), "texts")
"""
CLIENT = """
import favourites
from secure_client import ages

app = favourites.app
app.query("ages")(ages)
"""
PROJECT = """
[project]
name = "snippets"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
method = "ctcl"
models.embedder = "ngram-256"

[tool.flwr.app.config.data]
source = "files"
path = "{users}"
users = 40
held-out-users = 0
development-users = 0
"""


def block(page: str, word: str) -> str:
    """The only block of a page that holds `word`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = [b for b in re.findall(r"^```\w+\n(.*?)^```$", text, re.M | re.S) if word in b]
    return str(found)


def test_what_the_pages_show_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    app = tmp_path / "app"
    app.mkdir()
    shutil.copy(ROOT / "examples" / "new-method" / "topics.py", app)
    shutil.copy(ROOT / "examples" / "on-devices" / "texts.py", app)
    for name, text in {
        "methods.py": block("docs/extending.md", "def popri("),
        "favourites.py": block("docs/extending.md", "FAVOURITES = "),
        "client_app.py": CLIENT,
        "server_app.py": SERVER,
        "secure_client.py": block("docs/secure-sum.md", '@app.query("ages")'),
        "secure_server.py": block("docs/secure-sum.md", "secure_sum(grid, nodes"),
        "pyproject.toml": PROJECT.format(users=tmp_path / "users.jsonl"),
    }.items():
        (app / name).write_text(text, encoding="utf-8")
    command = f"python {app / 'texts.py'} && flwr run {app} --stream "
    command += '--federation-config "num-supernodes=4 client-resources-num-cpus=1"'
    result = flwr(command, environment, tmp_path)
    log = result.stdout + result.stderr
    assert result.returncode == 0 and "Exit Code" not in log, log
    assert "favourites: ['roses and soil, seeds, compost']" in log
    assert "popri 24 texts" in log and "ctcl 24 texts" in log
    total = re.search(r"the sum is \[(\d+), (\d+), (\d+)\]", log)
    assert total, log
    twice, none, once = map(int, total.groups())
    assert (none, twice) == (0, 2 * once)  # of the nodes that were there when the server looked
    assert 3 <= once <= 4
    kept = tmp_path / ".local/share/privsyn-flower/node/secagg"
    assert len(list(kept.glob("*/identity.key"))) == once
