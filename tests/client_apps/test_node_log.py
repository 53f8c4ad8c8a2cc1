"""What an owner reads of a node's messages: node.log, and counts that tell nobody who took part."""

from __future__ import annotations

import json
import logging
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

from privsyn_flower.client_apps.node import node_log
from privsyn_flower.client_apps.node.device import open_node
from privsyn_flower.client_apps.node.node_log import (
    COUNTS_FILE,
    LOG_FILE,
    node_logger,
    note_refusal,
    read_counts,
)
from privsyn_flower.client_apps.votes import votes
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import WireError
from privsyn_flower.text.embedders import embedder_fingerprint
from tests.conftest import node_context

WORDS = "nobody else's words"
NOISE = Noise(2.0, 4096.0, 32, 2.0)


@pytest.fixture(autouse=True)
def a_log_of_its_own(loopback: Any) -> Any:
    yield
    logger = logging.getLogger("privsyn_flower.node")
    for handler in logger.handlers:
        handler.close()
    logger.handlers = []


def device(folder: Path, **more: Any) -> Any:
    rows = [{"user_id": f"u{number}", "text": f"{WORDS} {number}"} for number in range(2)]
    (folder / "users.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "policy.toml").write_text('aggregation = ["plain"]\nmin-surviving-weight = 2.0\n')
    own = {"data": str(folder / "users.jsonl"), "weight": 2, "cache": str(folder / "node")}
    own |= {"policy": str(folder / "policy.toml"), "embedder": "ngram-8", **more}
    return node_context(own)


def ask(context: Any, rnd: int, model: str = "") -> str:
    rows = np.eye(4, 8, dtype=np.float32)
    query = Query.votes(rows, bound=1.0, model=model or embedder_fingerprint("ngram-8"))
    message = wire.ask(query, Ticket("r\x1b[2J", "votes", rnd, 1), NOISE, 1, 2, 60.0)
    context.state = RecordDict()
    return str(votes(message, context).content.config_records["answer"]["code"])


def test_an_answer_and_a_refusal_are_a_line_and_a_count_each(tmp_path: Path) -> None:
    context = device(tmp_path)
    assert [ask(context, 1), ask(context, 1), ask(context, 2, "0" * 32)] == [
        "ok", "policy", "embedder-mismatch",
    ]  # fmt: skip
    counts = read_counts(tmp_path / "node")
    assert (counts["answers"], counts["refusals"]) == (1, {"policy": 1, "embedder-mismatch": 1})
    assert counts["gaussian"] == pytest.approx(1 / 4)
    assert counts["last_cost"] == [counts["gaussian"], counts["distance"]]
    lines = (tmp_path / "node" / LOG_FILE).read_text().splitlines()
    assert [re.sub(r"^[\d-]{10} [\d:,]{12} ", "", line)[:30] for line in lines] == [
        "INFO answered: votes of run 'r",
        "WARNING refused: policy: 'vote",
        "WARNING refused: embedder-mism",
    ]
    assert "\x1b" not in "".join(lines) and WORDS not in "".join(lines)
    for name in (LOG_FILE, COUNTS_FILE):
        assert stat.S_IMODE((tmp_path / "node" / name).stat().st_mode) == 0o600


def test_counts_are_the_same_whoever_took_part(tmp_path: Path) -> None:
    """With both users, and with one whose text cannot be read."""
    found = []
    for name, broken in (("whole", False), ("broken", True)):
        (tmp_path / name).mkdir()
        context = device(tmp_path / name)
        if broken:
            (tmp_path / name / "users.jsonl").write_text("no JSON at all\n")
        assert ask(context, 1) == "ok"
        found.append(read_counts(tmp_path / name / "node") | {"last_answer": 0})
    assert found[0] == found[1]


def test_lines_of_json_and_a_wrong_format(tmp_path: Path) -> None:
    context = device(tmp_path, **{"log-format": "json"})
    assert [ask(context, 1), ask(context, 1)] == ["ok", "policy"]
    rows = [json.loads(line) for line in (tmp_path / "node" / LOG_FILE).read_text().splitlines()]
    assert [row["level"] for row in rows] == ["INFO", "WARNING"]
    assert all(re.fullmatch(r"20[\d-]+T[\d:.]+\+00:00", row["time"]) for row in rows)
    open_node(context).failed("users", ValueError("cause"), 1, "text")
    last = json.loads((tmp_path / "node" / LOG_FILE).read_text().splitlines()[-1])
    assert last["message"] == "text" and "ValueError: cause" in last["error"]
    with pytest.raises(WireError, match="log-format = 'xml' is none of"):
        open_node(device(tmp_path, **{"log-format": "xml"}))


def test_the_log_turns_over_and_stays_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_log, "MOST_BYTES", 300)
    for number in range(20):
        node_logger(tmp_path).info("line %d", number)
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(files) == {LOG_FILE, f"{LOG_FILE}.1"}
    assert "line 19" in files[LOG_FILE] and all(len(text) <= 300 for text in files.values())
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_server_cannot_fill_the_log(tmp_path: Path) -> None:
    note_refusal(tmp_path, "policy", "x" * 100_000 + "\n\x1b")
    assert (tmp_path / LOG_FILE).stat().st_size < 1000


def test_counts_that_cannot_be_read_begin_anew(tmp_path: Path) -> None:
    (tmp_path / COUNTS_FILE).write_text('{"answers": 5')
    note_refusal(tmp_path, "policy", "why")
    assert read_counts(tmp_path)["refusals"] == {"policy": 1}
    (tmp_path / COUNTS_FILE).write_text('{"answers": 5}')
    assert read_counts(tmp_path)["answers"] == 0


def test_a_simulated_node_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVSYN_SIMULATION", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    context = node_context({"partition-id": 0, "num-partitions": 1})
    assert ask(context, 1) != "ok"
    assert list(tmp_path.rglob(COUNTS_FILE)) == list(tmp_path.rglob(LOG_FILE)) == []
