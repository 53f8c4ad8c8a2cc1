"""`privacy.yaml`: valid for every method, and nothing in it that its run does not claim."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privsyn_flower.app.report.guarantee import SEEDED, SPLIT
from privsyn_flower.app.report.registry import (
    BLANK,
    HEAD,
    Product,
    record,
    to_yaml,
)
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.server_apps.privacy_plan import statement
from privsyn_flower.strategies.engine.record import claim_record, write_statement
from tests.rigs.registry import (
    AGGREGATOR,
    RUNS,
    SAMPLING,
    deployment_of,
    faults,
    known,
    validator,
)

DAY = date(2026, 11, 23)


def made(values: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The record of such a run, read from its YAML."""
    found: dict[str, Any] = yaml.safe_load(HEAD + to_yaml(record(known(values, **more), DAY)))
    assert not faults(found)
    return found["deployment"]


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)
    elif isinstance(value, str):
        yield value


def test_every_method_is_here() -> None:
    methods = get_args(RunConfig.model_fields["method"].annotation)
    assert set(methods) == {RunConfig.from_flat(values).method for values, *_ in RUNS.values()}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_a_valid_record_that_claims_what_it_claims(name: str) -> None:
    values, model, variant, parameters = RUNS[name]
    found, summary = made(values), known(values)
    assert found["deployment_model"].get("model_name", "") == model
    assert found["dp_variant"].get("variant_name", "") == variant
    loss = found["privacy_loss"]
    assert set(loss["privacy_parameters"]) == parameters
    for key, value in loss["privacy_parameters"].items():
        assert value == summary["rho_zcdp" if key == "rho" else key]
    # The whole statement goes along, and a warning stands before everything else.
    assert found["implementation"]["additional_information"] == summary["privacy"]
    begins = found["basic"]["description"].startswith(("NO PRIVACY", "Epsilon does not cover"))
    assert begins == (not variant)
    assert found["administrative"]["tier"] == (3 if variant else 1)
    assert all(text.strip() for text in texts(found))
    simulated = name not in ("public-only", "minority-only", "expand-only", "split-public")
    assert ("A SIMULATION" in found["basic"]["description"]) == simulated


def test_what_only_a_publisher_can_say_is_marked() -> None:
    basic = made({})["basic"]
    assert [key for key, value in basic.items() if BLANK in str(value)] == [
        "data_curators", "intended_use", "data_product_region",
    ]  # fmt: skip
    assert basic["publication_date"] == "2026-11-23"


def test_the_schema_refuses_what_it_should() -> None:
    good = record(known({}), DAY)
    assert not faults(good)
    changed: list[tuple[tuple[str, ...], Any]] = [
        (("basic", "data_product_type"), "Text"),
        (("basic", "publication_date"), "23.11.2026"),
        (("dp_variant", "variant_name"), "DP"),
        (("deployment_model", "model_name"), "Distributed"),
        (("privacy_loss", "number_of_privacy_units"), 1.5),
        (("privacy_loss", "privacy_parameters"), {"mu": 1.0}),
        (("administrative", "status"), "New"),
        (("basic", "surprise"), "x"),
    ]
    for (part, key), value in changed:
        bad = copy.deepcopy(good)
        bad["deployment"][part][key] = value
        assert len(faults(bad)) == 1, (part, key)
    for part in ("basic", "administrative"):
        bad = copy.deepcopy(good)
        del bad["deployment"][part]
        assert faults(bad)


def test_every_field_of_the_schema_that_a_run_can_know_is_filled() -> None:
    fields = validator().schema["properties"]["deployment"]["properties"]
    found = made({})
    left = {key for part in fields for key in fields[part]["properties"] if key not in found[part]}
    assert left == {"data_product_sector", "model_name_details", "data_source_type_details"}


def test_trust_in_words() -> None:
    secure, plain, ftrl = (
        made(values)["deployment_model"] for values in ({}, {"aggregation": "plain"}, AGGREGATOR)
    )
    assert "the server learns the sum of the answers and no single one" in secure["actors"]
    assert "adds its share of the noise" in secure["actors"]
    assert "claims nothing against the server" in plain["actors"]
    assert "TRUSTED" in ftrl["actors"] and "adds its share" not in ftrl["actors"]
    local = made(RUNS["dp-prompt"][0])["deployment_model"]
    assert "nobody else needs to be trusted" in local["trust_assumptions"]


def test_tuning_is_paid_or_not() -> None:
    def tuning(values: dict[str, Any]) -> str:
        return str(made(values)["implementation"]["preprocessing_and_hyperparameter_tuning"])

    assert "the run does not know" in tuning({}) and "not paid for" not in tuning({})
    chosen = tuning(RUNS["chosen"][0])
    assert "Checkpoints were chosen by private text: not paid for." in chosen
    assert "figures under `benchmark` would not be covered" in chosen
    paid = tuning({"method": "popri", "popri.select": "federated"})
    assert "1 evaluation of models on the nodes beside the rounds: paid for" in paid
    assert "follows noisy sums that are paid for" in tuning(RUNS["dp-fedavg"][0])
    assert "chosen by private text: not paid for" in tuning(RUNS["split"][0])


def test_figures_of_a_benchmark_are_unprotected() -> None:
    figures = "the figures under `benchmark`"
    for name in RUNS:
        values = RUNS[name][0]
        said = made(values)["dp_variant"]["unprotected_quantities"]
        asked_or_local = name not in ("expand-private",)  # there, nothing at all is protected
        if asked_or_local:
            assert (figures in said) == bool(values.get("benchmark")), name
    assert SPLIT in made(RUNS["split"][0])["basic"]["description"]
    assert SEEDED in made(RUNS["seeded"][0])["privacy_loss"]["privacy_parameters_details"]


def test_a_run_that_ended_early_and_a_shared_ledger() -> None:
    early = {"rounds": 3, "rounds_planned": 8, "ended_early": "no spares are left"}
    ledger = {"epsilon_ledger": 9.87654321, "epsilon_ledger_total": 20.0}
    said = made(RUNS["ledger"][0], **early, **ledger)["implementation"]["composition"]
    assert "8 rounds, 1 spare (3 rounds were released)" in said
    assert "ended early; epsilon is that of the whole plan" in said
    assert "the ledger stood at epsilon 9.8766 of 20." in said
    assert "The ledger spans the runs that declared this population" in said
    begun = made({})["implementation"]["composition"]
    assert "were released" not in begun and "ended early" not in begun
    assert "The ledger is this run's own" in begun


def test_sampling_has_no_rho_and_their_own_words() -> None:
    found = made(SAMPLING)
    assert "No rho and no mu are claimed" in found["privacy_loss"]["privacy_parameters_details"]
    assert "Who is enrolled" in found["privacy_loss"]["privacy_unit_details"]
    assert "a plan of releases" in found["implementation"]["composition"]
    assert "samples in secret who takes part" in found["deployment_model"]["actors"]
    assert "same work" in found["implementation"]["mechanisms"]


def test_arithmetic_is_that_of_whoever_adds_the_noise() -> None:
    nodes, ftrl, seeded = (
        made(values)["implementation"]["mechanisms"]
        for values in ({}, AGGREGATOR, RUNS["seeded"][0])
    )
    assert "drawn as integers, exactly" in nodes and "floating-point" not in nodes
    assert "floating-point arithmetic and rounded" in ftrl and "drawn as integers" not in ftrl
    assert "from the run's seed" in seeded and "operating system" not in seeded


def test_products() -> None:
    products = {name: made(RUNS[name][0])["basic"]["data_product_type"] for name in RUNS}
    assert set(products.values()) == set(get_args(Product))
    assert products["dp-ftrl"] == products["dp-fedavg"] == "Machine learning model"
    assert products["evaluation"] == "Summary statistics"
    assert products["public-only"] == "Dataset" and products["ctcl"] == "Synthetic data"


def test_a_strategy_in_somebody_elses_app(tmp_path: Path) -> None:
    """It notes no method and may be deployed; what it makes, its claim tells."""
    asked = replace(statement(RunConfig()), simulated=False, data="data")
    for own, product in (
        (asked, "Machine learning model"),
        (replace(asked, data="texts"), "Synthetic data"),
        (replace(asked, rounds=0, evaluations=1), "Summary statistics"),
    ):
        write_statement(tmp_path, own, {"users": 12, **claim_record(own)})
        found = deployment_of(tmp_path)
        assert found["basic"]["data_product_type"] == product
        assert "SIMULATION" not in found["basic"]["description"]
        assert "data_source_type" not in found["deployment_model"]
        assert found["privacy_loss"]["number_of_privacy_units"] == 12
        assert (tmp_path / "privacy.md").read_text("utf-8") == own.page()


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
@example("\x85")
@example("one\u2028two\n\u2029")
@example("\ufeff")
def test_any_text_comes_back_as_it_was(text: str) -> None:
    value = {"a": text, "b": [text], "c": f"- {text}\n- {text}\n", "d": 1e-6, "e": "2026-11-23"}
    assert yaml.safe_load(to_yaml(value)) == value


def test_a_statement_of_infinite_epsilon_claims_no_number() -> None:
    own = PrivacyStatement(
        epsilon=float("inf"), delta=1e-6, noise_multiplier=0.0, rounds=1, spare_rounds=0,
        min_surviving_weight=1.0,
    )  # fmt: skip
    found = record({"users": 3, **claim_record(own)}, DAY)
    assert not faults(found)
    loss = found["deployment"]["privacy_loss"]
    assert "epsilon" not in loss["privacy_parameters"]
    assert "infinity" in loss["privacy_parameters_details"]
