"""docs/deployment.md and its examples name every key and code that the node's side knows."""

from __future__ import annotations

import re
import shlex
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.client_apps.node.device import NODE_KEYS
from privsyn_flower.client_apps.node.policy import Policy, check_query, load_policy, load_roster
from privsyn_flower.config import load_config
from privsyn_flower.privacy import epsilon
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.secagg import Code
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from tests.test_kubernetes import named

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "docs" / "examples"
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return re.split(r"^#+ ", PAGE.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def rows(title: str) -> dict[str, list[str]]:
    """First column (a key in backquotes) -> the other columns of a section's table."""
    found = re.findall(r"^\| `([\w-]+)` \|(.*)\|$", section(title), re.MULTILINE)
    return {key: [cell.strip() for cell in rest.split("|")] for key, rest in found}


def test_every_policy_key_with_its_default() -> None:
    defaults: dict[str, Any] = Policy().model_dump(mode="json", by_alias=True)
    shown = {key: cells[0].strip("`") for key, cells in rows("Policy").items()}
    assert shown == {
        key: str(value).lower() if isinstance(value, bool) else str(value).replace("'", '"') or '""'
        for key, value in defaults.items()
    }


def test_every_node_config_key() -> None:
    assert set(rows("Data and node config")) == NODE_KEYS
    assert set(tomllib.loads((EXAMPLES / "node.toml").read_text())) == NODE_KEYS


def test_the_example_run_has_the_embedder_of_every_example_node() -> None:
    """Else each of them refuses its questions with embedder-mismatch."""
    config = load_config(ROOT / "configs" / "deployment-example.toml")
    for text in (
        (EXAMPLES / "node.toml").read_text(encoding="utf-8"),
        named("ConfigMap", "supernode")["data"]["node.toml"],
    ):
        assert tomllib.loads(text)["embedder"] == config.models.embedder == "minilm-int8"


def unit(name: str) -> ConfigParser:
    found = ConfigParser(interpolation=None, strict=False)  # Environment= comes several times
    found.optionxform = str  # type: ignore[method-assign,assignment]
    found.read_string((EXAMPLES / name).read_text(encoding="utf-8"))
    return found


def test_the_nights_end_does_not_start_the_node_again() -> None:
    """A stop by systemctl is no failure; RuntimeMaxSec= ends a unit with one, so Restart= acts."""
    node, night, morning = "privsyn-node.service", "privsyn-night.timer", "privsyn-morning.timer"
    assert unit(node)["Service"]["Restart"] == "on-failure"
    assert unit(night)["Timer"]["Unit"] == node and "Unit" not in unit(morning)["Timer"]
    stop = unit("privsyn-morning.service")["Service"]  # of the timer's name, so it is the one
    assert shlex.split(stop["ExecStart"]) == ["/usr/bin/systemctl", "stop", node]
    assert stop["Type"] == "oneshot" and not unit("privsyn-morning.service").has_section("Install")
    times = [unit(name)["Timer"]["OnCalendar"].split()[1] for name in (night, morning)]
    assert times == ["00:30:00", "06:30:00"]
    for timer in (night, morning):
        assert unit(timer)["Install"]["WantedBy"] == "timers.target"
        assert f"(examples/{timer})" in section("As a service")
    assert "RuntimeMaxSec" not in unit(node)["Service"] and "RuntimeMaxSec" not in PAGE


def test_every_refusal_code() -> None:
    named = set(re.findall(r"`([a-z-]+)`", section("When something is refused")))
    assert {code.value for code in (*Refusal, *Code)} <= named


def test_the_example_policy_has_every_key_and_its_roster() -> None:
    names = set(tomllib.loads((EXAMPLES / "policy.toml").read_text()))
    assert names == {name.replace("_", "-") for name in Policy.model_fields}
    policy = load_policy(EXAMPLES / "policy.toml")
    roster = load_roster(policy.roster_path)
    assert [entry.revoked for entry in roster.values()] == [False, False, True]


def test_a_node_with_the_example_policy_answers_the_example_run() -> None:
    config = load_config(ROOT / "configs" / "deployment-example.toml")
    policy = load_policy(EXAMPLES / "policy.toml")
    multiplier, users = privacy_plan(config).main.multiplier, config.data.users
    facts: dict[str, Any] = {
        "aggregation": config.aggregation,
        "kind": "votes",
        "noise_multiplier": multiplier,
        "min_weight": config.min_surviving_weight * users,
        "colluding": config.colluding_weight,
        "length": config.pretext.population,
        "neighbors": config.pretext.neighbors,
        "model": "any",
        "round": config.rounds,
    }
    check_query(policy, **facts)
    with pytest.raises(ValueError, match="min-colluding-share"):
        check_query(policy, **{**facts, "colluding": 0.0})
    releases = config.rounds + config.spare_rounds
    spent = epsilon(multiplier, releases, gaussian_delta(policy.lifetime_delta))
    assert spent < policy.lifetime_epsilon
    assert policy.require_roster is (config.node_keys == "roster")
