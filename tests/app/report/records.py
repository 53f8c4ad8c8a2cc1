"""The registry's schema, as `registry_schema.yaml` states it, for tests that have a run folder."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

from privsyn_flower.app.report.registry import FILE

SCHEMA = Path(__file__).parent / "registry_schema.yaml"


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
