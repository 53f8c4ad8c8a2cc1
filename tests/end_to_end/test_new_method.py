"""The app of docs/extending.md, "A new method", under a real `flwr run`, as the page shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.end_to_end import test_secure_sum
from tests.end_to_end.conftest import flwr

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## A new method\n")[2].partition("\n## ")[0]
USERS = 200  # as the page's configuration has them
POPULAR = 8  # place of the topic that most of them write about

environment = test_secure_sum.environment  # a Flower of its own, ended with the test


def files() -> dict[str, str]:
    """Name -> code of the files that the section shows, each named last before its block."""
    parts, found = SECTION.split("```"), {}
    for prose, block in zip(parts[::2], parts[1::2], strict=False):
        language, _, code = block.partition("\n")
        if language in ("python", "toml"):
            found[re.findall(r"`(\w+\.(?:py|toml))`", prose)[-1]] = code
    return found


def topics() -> list[str]:
    """What the page's server asks about."""
    (listed,) = re.findall(r"^TOPICS = (\[.*?^\])", files()["server_app.py"], re.M | re.S)
    names: list[str] = json.loads(listed.replace(",\n]", "\n]"))
    return names


def rows() -> Iterator[dict[str, str]]:
    """Three texts of each user, about one topic: of every second user the popular one."""
    rng = np.random.default_rng(0)
    words = [re.findall(r"\w{4,}", topic) for topic in topics()]
    for user in range(USERS):
        own = words[POPULAR if user % 2 else user // 2 % len(words)]
        for _ in range(3):
            yield {"user_id": f"u{user}", "text": " ".join(rng.choice(own, size=8))}


def test_the_method_is_three_files_of_120_lines_at_most() -> None:
    code = {name: text for name, text in files().items() if name.endswith(".py")}
    assert sorted(code) == ["client_app.py", "server_app.py", "topics.py"]
    assert sum(len(text.splitlines()) for text in code.values()) <= 120
    assert SECTION.count("```python") == 3 and len(topics()) == 10


@pytest.mark.slow
@pytest.mark.e2e
def test_the_method_of_the_page_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    app = tmp_path / "app"
    app.mkdir()
    for name, text in files().items():
        (app / name).write_text(text, encoding="utf-8")
    (tmp_path / "users.jsonl").write_text("\n".join(map(json.dumps, rows())), encoding="utf-8")
    (command,) = re.findall(r"^flwr run .*$", SECTION, re.M)
    result = flwr(command, environment, app)
    log = result.stdout + result.stderr
    assert result.returncode == 0 and "Epsilon = 4 at delta = 1e-05 for each user" in log, log
    (folder,) = (tmp_path / "topics-runs").iterdir()

    found: dict[str, Any] = json.loads((folder / "topics.json").read_text())
    shares, noise = found["shares"], found["noise_std"]
    assert list(shares) == topics() and 0 < noise < 0.05
    # Half of the users, and a tenth of the others; a tenth of the others for every other topic.
    for place, share in enumerate(shares.values()):
        assert share == pytest.approx(0.55 if place == POPULAR else 0.05, abs=6 * noise)
    assert max(shares, key=shares.__getitem__) == topics()[POPULAR]
    assert f"\n{topics()[POPULAR]}\n" in log

    charges = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()[1:]]
    (row,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [charge["kind"] for charge in charges] == ["reserve", "sent", "commit"]
    assert {charge["id"] for charge in charges} == {row["charge"]} and row["round"] == 1
