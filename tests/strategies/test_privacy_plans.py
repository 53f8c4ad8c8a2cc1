"""PrE-Text and POPri keep to what a resumed folder promised, or say what changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.strategies import SynthesisStrategy
from privsyn_flower.strategies.engine.aggregation import PlainSum, SecureAggregation
from tests.rigs.pretext import strategy as pretext
from tests.rigs.strategies_popri import federation, make

CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"epsilon": 10.0}, r"epsilon = 10\.0 was 20\.0, noise_multiplier = .* was"),
    ({"delta": 1e-6}, "delta = 1e-06 was 1e-05"),
    ({"users": 130}, "users = 130 was 120"),
    ({"spare_rounds": 2}, "noise_multiplier = .*, spare_rounds = 2 was 1"),
    ({"min_surviving_weight": 0.5}, r"min_surviving_weight = 0\.5 was 0\.85"),
    ({"colluding_weight": 0.1}, r"colluding_weight = 0\.1 was 0\.0"),
    ({"node_keys": "roster"}, "keys = 'roster' was 'first-use'"),
    ({"aggregation": SecureAggregation()}, "aggregation = 'secure' was 'plain'"),
    ({"population_name": "phones"}, "ledger_scope = 'population' was 'run', population_name"),
]


@pytest.mark.parametrize(
    "method", [lambda: pretext(2, threshold=0.0), lambda: make(2)], ids=["pretext", "popri"]
)
def test_a_resumed_folder_keeps_its_promise(
    method: Callable[[], SynthesisStrategy], tmp_path: Path, loopback: Any
) -> None:
    grid = federation(tmp_path, loopback)

    def start(**other: Any) -> Any:
        options: dict[str, Any] = {"folder": tmp_path / "run", "aggregation": PlainSum()}
        options |= {"users": 120, "nodes": 3, "epsilon": 20.0, "delta": 1e-5}
        return method().start(grid, **options | other)

    first = start()
    sent = len(grid.sent)
    for changed, words in CHANGES:
        with pytest.raises(ValueError, match=f"was begun with other values: .*{words}.*restore"):
            start(**changed)
    again = start()
    assert (again.statement, again.seeds) == (first.statement, first.seeds)
    assert len(grid.sent) == sent
