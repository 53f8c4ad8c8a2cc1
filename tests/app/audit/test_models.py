"""The audit of updates and evaluations with the nodes' noise: honest ones pass, broken ones do not.

Faults are put in by replacing a function of the devices: no configuration and no message can.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.audit import Audit, audit
from privsyn_flower.app.audit.cases import small_base, update_case
from privsyn_flower.client_apps import evaluation as evaluation_app
from privsyn_flower.client_apps import updates as updates_app
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.accounting import gaussian_epsilon
from privsyn_flower.queries import updates
from privsyn_flower.text.fingerprints import folder_fingerprint
from tests.rigs.audit_audit import (
    ONE_RELEASE,
    calm,  # noqa: F401
    command,
    configured,
    noise_times,
    sums_with,
)

pytestmark = pytest.mark.slow

TRIALS = 6000
SETTINGS: dict[str, Any] = {
    **ONE_RELEASE, "method": "dp-fedavg", "data.users": 100, "aggregation": "plain",
}  # fmt: skip
CLAIMED = gaussian_epsilon(1.0, RunConfig().delta)


def measured(kind: str = "", trials: int = TRIALS, **changed: Any) -> Audit:
    return audit(configured(SETTINGS, **changed), trials, kind)


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("update", {"aggregation": "secure", "colluding_weight": 0.1}),
        ("update", {"training__adaptive_clipping": True, "training__optimizer": "adamw"}),
        ("evaluation", {}),
        ("evaluation", {"method": "popri", "popri__select": "federated"}),
    ],
)
def test_an_honest_release_passes_and_the_bound_is_tight(
    kind: str, changed: dict[str, Any]
) -> None:
    found = measured(kind, **changed)
    assert (found.kind, found.rounds, found.correlation_p_value) == (kind, 1, None)
    assert not found.contradiction, found
    assert found.lower_bound > 0.5 * CLAIMED
    assert found.noise_variance_ratio == pytest.approx(1.0, abs=0.04)


def test_noise_ten_percent_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    noise_times(monkeypatch, 0.9)
    for kind in ("update", "evaluation"):
        found = measured(kind)
        assert found.contradiction
        assert found.noise_variance_ratio == pytest.approx(0.81, abs=0.04)


def test_a_clip_of_each_layer_by_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_layer(real: Any, deltas: Any, options: dict[str, Any]) -> Any:
        def layers() -> Any:
            for delta in deltas:
                middle = len(delta) // 2
                for part in (slice(None, middle), slice(middle, None)):
                    alone = np.zeros_like(delta)
                    alone[part] = delta[part]
                    yield alone

        return real(layers(), **{**options, "sampled": None})

    sums_with(monkeypatch, updates_app, "shard_updates", by_layer)
    found = measured(trials=20_000)
    assert found.contradiction and found.lower_bound > found.claimed_epsilon


def test_a_user_counted_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(real: Any, deltas: Any, options: dict[str, Any]) -> Any:
        return real((d for d in deltas for _ in range(2)), **{**options, "sampled": None})

    sums_with(monkeypatch, updates_app, "shard_updates", twice)
    metrics = evaluation_app.shard_metrics
    monkeypatch.setattr(evaluation_app, "shard_metrics", lambda *a, **o: 2 * metrics(*a, **o))
    for kind in ("update", "evaluation"):
        found = measured(kind)
        assert found.contradiction and found.lower_bound > found.claimed_epsilon


def test_every_users_change_is_longer_than_the_clip_norm(tmp_path: Path) -> None:
    case = update_case(RunConfig.from_flat(SETTINGS), 100, tmp_path)
    clip_norm = float(case.query.options["clip-norm"])
    norms, real = list[float](), updates.user_update

    def noted(delta: Any, **options: Any) -> Any:
        norms.append(float(np.linalg.norm(delta)))
        return real(delta, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "user_update", noted)
        measured()
    assert len(norms) > 6 and min(norms) > 10 * clip_norm


def test_the_small_base_is_the_same_every_time(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    first, second = (folder_fingerprint(small_base(folder)) for folder in folders)
    assert first == second


def test_the_command_takes_the_kind_and_names_a_wrong_one() -> None:
    ask = partial(command, SETTINGS)
    result = ask("--trials", "400", "--kind", "evaluation")
    assert result.exit_code == 0, result.output
    assert "evaluation, one release" in result.stdout
    result = ask("--trials", "400", "--json")
    assert json.loads(result.stdout.splitlines()[-1])["kind"] == "update"
    result = ask("--kind", "votes")
    assert result.exit_code == 2
    assert "'votes'" in result.output and "'update'" in result.output
