"""Resource-adaptive synthesis in one process: who is asked what, its charges, a resumed run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.audit import audit
from privsyn_flower.app.cli.plan import described
from privsyn_flower.app.preflight.plan import plan_of
from privsyn_flower.app.preflight.speeds import this_machine
from privsyn_flower.config import RunConfig
from privsyn_flower.runs import read_jsonl
from privsyn_flower.server_apps.methods import resource_adaptive
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from privsyn_flower.strategies.engine import cohort
from privsyn_flower.strategies.engine.cohort import TooFewNodes
from tests.server_apps.in_process import (
    CTCL,
    Killed,
    charges,
    grid_for,
    killing,
    kind,
    run,
    run_on,
    simulated,
)

pytestmark = pytest.mark.slow

NODES = 6


@pytest.fixture
def config(small: Callable[..., RunConfig]) -> RunConfig:
    values = {"method": "resource-adaptive", "rounds": 1, "nodes": NODES, "ctcl.topic-count": 4}
    return small(**{**CTCL, **values, "expand.samples": 20, "resource-adaptive.pool": 2})


def asked(grid: Any) -> dict[str, Counter[int]]:
    """Questions by kind -> how often each node got them."""
    found: dict[str, Counter[int]] = {}
    for message in grid.sent:
        own = found.setdefault(kind(message), Counter())
        own[message.metadata.dst_node_id] += 1
    return found


def test_each_group_is_asked_its_own_questions_and_the_votes_choose(
    config: RunConfig, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the vote was released, and resumed: nobody is asked again."""
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        killing(patch, resource_adaptive, "top_by_votes")
        grid = grid_for(loopback, simulated(config))
        with pytest.raises(Killed):
            run_on(grid, config, path)
    sent = asked(grid)
    strong, weak = {1, 2, 3}, {4, 5, 6}
    assert set(sent["train"]) == strong
    assert sent["query.votes"] == Counter(dict.fromkeys(range(1, NODES + 1), 1))

    summary, grid = run(config, loopback, path)
    assert set(asked(grid)) <= {"query.hello"}
    made, found = privacy_plan(config), charges(path)
    groups = [row["group"].rpartition("/")[2] for row in found]
    assert groups == ["strong", "strong", "weak"] and len(weak) == 3
    assert len({row["group"].partition("/")[0] for row in found}) == 1
    assert summary["epsilon"] == pytest.approx(made.epsilon) and summary["epsilon"] <= 500.0
    assert [name for name, *_ in summary["claim"]["groups"]] == ["strong", "weak"]
    assert "users of weak nodes 'votes'" in summary["privacy"]

    pool = read_jsonl(path / "synthetic-pool.jsonl")
    texts = [row["text"] for row in read_jsonl(path / "synthetic.jsonl")]
    assert 0 < len(texts) == len(set(texts)) == summary["synthetic_samples"] <= 20
    assert set(texts) <= {row["text"] for row in pool} and len(pool) > len(texts)
    votes = json.loads((path / "evaluations" / "votes" / "metrics.jsonl").read_text())
    assert (votes["nodes_asked"], votes["surviving_weight"]) == (3, 9)


def test_nobody_pays_where_no_weak_node_is_there(
    config: RunConfig, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.1)
    grid = grid_for(loopback, simulated(config)[:3])
    with pytest.raises(TooFewNodes, match=r"weight 0 .*of weak nodes; node-config resources"):
        run_on(grid, config, tmp_path / "run")
    assert set(asked(grid)) == {"query.hello"} and not charges(tmp_path / "run")


def test_plan_shows_both_groups_and_the_vote_is_audited(config: RunConfig, tmp_path: Path) -> None:
    plan = plan_of(config, tmp_path, this_machine(tmp_path, "cpu"))
    lines = [
        line for line in described(plan).splitlines() if "nodes" in line and "multiplier" in line
    ]
    assert len(lines) == 3
    assert "votes: 1 round," in lines[2] and "on 3 weak nodes with 9 users" in lines[2]
    phases = plan.as_dict()["privacy"]["phases"]
    assert [phase["group"] for phase in phases] == ["strong", "strong", "weak"]
    found = audit(config.model_copy(update={"epsilon": 5.0}), trials=200, kind="votes")
    assert found.noise_multiplier == pytest.approx(
        privacy_plan(config.model_copy(update={"epsilon": 5.0}))["votes"].multiplier
    )
    assert not found.contradiction
