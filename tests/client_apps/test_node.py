"""What a node takes itself for: simulated on positive evidence only, in doubt a device."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privsyn_flower.client_apps.dropin.training import open_dropin
from privsyn_flower.client_apps.node.device import in_simulation, open_node
from privsyn_flower.protocol.wire import Refusal, WireError
from tests.conftest import node_context

SIMULATED = {"partition-id": 0, "num-partitions": 4}


def ray(monkeypatch: pytest.MonkeyPatch, actor: str | None, initialized: bool = True) -> None:
    """Ray as this process sees it: connected or not, and which actor it is, None of a driver."""
    here = SimpleNamespace(get_actor_id=lambda: actor)
    module = SimpleNamespace(is_initialized=lambda: initialized, get_runtime_context=lambda: here)
    monkeypatch.setitem(sys.modules, "ray", module)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def nobody_says_so(simulation: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRIVSYN_SIMULATION")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME")


def test_an_actor_with_flowers_two_keys_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_simulation(node_context(SIMULATED))
    ray(monkeypatch, actor="0123")
    assert in_simulation(node_context(SIMULATED))
    assert open_dropin(node_context(SIMULATED)).policy is None
    assert open_node(node_context(SIMULATED)).policy is None


@pytest.mark.parametrize(
    "config", [{}, {"partition-id": 0}, SIMULATED | {"weight": 1}, SIMULATED | {"data-path": "x"}]
)
def test_another_node_config_is_a_devices_also_in_an_actor(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    ray(monkeypatch, actor="0123")
    assert not in_simulation(node_context(config))
    assert open_dropin(node_context(config)).policy is not None


@pytest.mark.parametrize("initialized", [True, False])
def test_a_driver_of_ray_is_a_device(monkeypatch: pytest.MonkeyPatch, initialized: bool) -> None:
    """An app that calls ray.init(), or connects to a cluster, and runs tasks there."""
    ray(monkeypatch, actor=None, initialized=initialized)
    assert not in_simulation(node_context(SIMULATED))
    assert open_dropin(node_context(SIMULATED)).policy is not None
    # The run config, which is the server's, opens no file here.
    served = {"data.source": "files", "data.path": "/etc/passwd"}
    with pytest.raises(WireError, match="is not a file") as caught:
        open_node(node_context(SIMULATED, served))
    assert caught.value.code is Refusal.SETUP


def test_a_ray_that_cannot_say_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())  # type: ignore[arg-type]
    assert not in_simulation(node_context(SIMULATED))


def test_its_owner_may_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVSYN_SIMULATION", "1")
    assert in_simulation(node_context({}))
    assert open_dropin(node_context(SIMULATED | {"weight": 1})).policy is not None


@pytest.mark.parametrize(("partitions", "aggregation"), [(1, "plain"), (4, "plain"), (4, "secure")])
def test_the_only_node_of_a_trusted_server_is_central(
    monkeypatch: pytest.MonkeyPatch, partitions: int, aggregation: str
) -> None:
    ray(monkeypatch, actor="0123")
    served = {"nodes": partitions, "aggregation": aggregation, "data.users": 8}
    node = open_node(node_context({"partition-id": 0, "num-partitions": partitions}, served))
    assert node.central == (partitions == 1)
    assert not node.facts.deployed
