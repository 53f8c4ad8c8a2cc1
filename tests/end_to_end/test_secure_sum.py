"""The example of docs/secure-sum.md as an app of its own under a real `flwr run`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.end_to_end.conftest import flwr
from tests.rigs.secure_sum import (
    ROOT,
    environment,  # noqa: F401
)

pytestmark = [pytest.mark.slow, pytest.mark.e2e]
PROJECT = """
[project]
name = "secure-sum-example"
version = "1.0.0"
description = "the page's example"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "example"
fab-include = ["*.py"]

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
"""


def test_the_example_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    page = (ROOT / "docs" / "secure-sum.md").read_text(encoding="utf-8")
    client, server, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "client_app.py").write_text(client)
    (app / "server_app.py").write_text(server)
    command = ["flwr", "run", str(app), "--stream"]
    command += ["--federation-config", "num-supernodes=4 client-resources-num-cpus=1"]
    result = flwr(command, environment, tmp_path)
    log = result.stdout + result.stderr
    assert result.returncode == 0, log
    total = re.search(r"the sum is \[(\d+), (\d+), (\d+)\]", log)
    assert total, log
    twice, none, once = map(int, total.groups())
    assert (none, twice) == (0, 2 * once)  # of the nodes that were there when the server looked
    assert 3 <= once <= 4
    kept = tmp_path / ".cache/privsyn-flower-node/secagg"
    assert len(list(kept.glob("*/identity.key"))) == once
