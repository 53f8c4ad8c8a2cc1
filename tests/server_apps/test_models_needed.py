"""A run makes the tiny models that it loads, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.text.tiny import models
from tests.server_apps.in_process import POPRI, PRETEXT, one_thread, run, shared, small_config

__all__ = ["one_thread", "shared"]  # pytest finds fixtures by name

TINY = {f"models.{kind}": "tiny" for kind in ("infiller", "generator", "downstream")}
SEEDS = {"method": "pretext", "expand.samples": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "needed"),
    [
        (SEEDS, set()),
        ({**SEEDS, "pretext.variation": "mask-fill"}, {"infiller"}),
        ({**SEEDS, "expand.samples": 4}, {"generator"}),
        ({**SEEDS, "benchmark": True, "evaluation.controls": ""}, {"downstream"}),
        ({"method": "popri", "expand.samples": 4}, {"generator"}),
    ],
    ids=["seeds", "mask-fill", "expansion", "benchmark", "popri"],
)
def test_a_run_makes_what_it_loads(
    values: dict[str, Any],
    needed: set[str],
    shared: Path,
    loopback: Any,
    tmp_path: Path,
    causal_folder: Path,
    masked_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = set[str]()

    def ensure(kind: str, *_: Any) -> Path:
        made.add(kind)
        return masked_folder if kind == "infiller" else causal_folder

    monkeypatch.setattr(models, "ensure_model", ensure)
    config = small_config(shared, causal_folder, **{**POPRI, **PRETEXT, **TINY, **values})
    summary, _ = run(config, loopback, tmp_path / "run")
    assert made == needed and summary["verdict"]["sentences"]
    # What is checked before the run is what it loads; the benchmark's model is told apart.
    loads = recipe_of(config).loads(config) - {"embedder"}
    assert loads == needed - ({"downstream"} if config.benchmark else set())
