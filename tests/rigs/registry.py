"""The runs whose guarantee is told, and their records in the registry's schema, as
`registry_schema.yaml` states it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

from privsyn_flower.app.report.registry import FILE
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.privacy_plan import baseline, statement
from privsyn_flower.strategies.engine.record import claim_record

SCHEMA = Path(__file__).with_name("registry_schema.yaml")
SAMPLING = {"sampler": "poisson", "sampling-rate": 0.5, "rounds": 2}
AGGREGATOR = {"method": "dp-ftrl", "training.noise": "aggregator"}
# What a run is -> its model, its variant, and which parameters are claimed.
RUNS: dict[str, tuple[dict[str, Any], str, str, set[str]]] = {
    "pretext": ({}, "Federated", "Approximate DP", {"epsilon", "delta"}),
    "pe": ({"method": "pe"}, "Federated", "Approximate DP", {"epsilon", "delta"}),
    "popri": ({"method": "popri"}, "Federated", "Approximate DP", {"epsilon", "delta"}),
    "dp-rft": (
        {"method": "dp-rft", "popri.score": "nearest"}, "Federated", "Approximate DP",
        {"epsilon", "delta"},
    ),
    "ctcl": (
        {"method": "ctcl", "training.noise": "nodes"}, "Federated", "Approximate DP",
        {"epsilon", "delta"},
    ),
    "resource-adaptive": (
        {"method": "resource-adaptive"}, "Federated", "Approximate DP", {"epsilon", "delta"},
    ),
    "dp-fedavg": (
        {"method": "dp-fedavg", "training.noise": "nodes", "training.adaptive-clipping": True},
        "Federated", "Approximate DP", {"epsilon", "delta"},
    ),
    "dp-ftrl": (AGGREGATOR, "Central", "Approximate DP", {"epsilon", "delta", "rho"}),
    "evaluation": (
        {"method": "evaluation", "measure.models": "a=downstream"}, "Federated", "Approximate DP",
        {"epsilon", "delta"},
    ),
    "plain": ({"aggregation": "plain"}, "Central", "Approximate DP", {"epsilon", "delta"}),
    "sampling": (SAMPLING, "Federated", "Approximate DP", {"epsilon", "delta"}),
    "seeded": ({"simulation-seeded-noise": True}, "Federated", "", set()),
    "chosen": (
        {"method": "popri", "popri.checkpoint": "private", "benchmark": True}, "Federated", "",
        set(),
    ),
    "split": (
        {"data.near-duplicates": "remove", "benchmark": True}, "Federated", "", set(),
    ),
    "split-public": (
        {"method": "public-only", "data.near-duplicates": "remove", "benchmark": True}, "", "",
        set(),
    ),
    "ledger": (
        {"population-name": "phones", "ledger-epsilon": 20.0}, "Federated", "Approximate DP",
        {"epsilon", "delta"},
    ),
    "public-only": ({"method": "public-only"}, "", "Pure DP", {"epsilon"}),
    "minority-only": ({"method": "minority-only"}, "", "Pure DP", {"epsilon"}),
    "expand-only": ({"method": "expand-only"}, "", "Pure DP", {"epsilon"}),
    "expand-private": ({"method": "expand-private", "benchmark": True}, "", "", set()),
    "dp-prompt": ({"method": "dp-prompt", "benchmark": True}, "Local", "Pure DP", {"epsilon"}),
    "dp-prompt-seeded": (
        {"method": "dp-prompt", "benchmark": True, "simulation-seeded-noise": True}, "Local", "",
        set(),
    ),
}  # fmt: skip


def known(values: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What a summary knows before anything is asked, through JSON."""
    config = RunConfig.from_flat(values)
    said = baseline(config) or statement(config)
    own = {"version": "0.0.9", "method": config.method, "users": 1000}
    return dict(json.loads(json.dumps({**own, **claim_record(said), **more})))


@functools.lru_cache(maxsize=1)
def validator() -> Draft7Validator:
    schema = yaml.safe_load(SCHEMA.read_text("utf-8"))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema, format_checker=Draft7Validator.FORMAT_CHECKER)


def faults(record: Any) -> list[str]:
    """What the schema finds wrong, with its place."""
    return [f"{error.json_path}: {error.message}" for error in validator().iter_errors(record)]


def deployment_of(folder: Path) -> dict[str, Any]:
    """The record of a run folder, which the schema accepts."""
    record = yaml.safe_load((folder / FILE).read_text("utf-8"))
    assert not faults(record)
    found: dict[str, Any] = record["deployment"]
    return found
