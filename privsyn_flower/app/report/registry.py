"""`privacy.yaml` of a run folder: its guarantee as a record of the OpenDP deployments registry.

The fields and their values are those of opendp/deployments-registry-data,
schemas/deployments-schema.yaml, in the version of commit 057e5d81cf60. A run fills in what it
knows, of all three tiers; what only whoever publishes the result can say is marked with BLANK. It
is a draft for such a record: the registry has not seen it.

Written where the statement is, when a run begins, and again when it has its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import yaml

from privsyn_flower.app.report.guarantee import (
    COMPOSITION,
    MECHANISMS,
    Guarantee,
    claim_of,
    guarantee_of,
)
from privsyn_flower.app.report.summaries import Summary
from privsyn_flower.common.files import write_atomic
from privsyn_flower.config.common import Product
from privsyn_flower.config.schema import METHODS
from privsyn_flower.privacy.sentence import FILE as STATEMENT

FILE = "privacy.yaml"
BLANK = "TO BE FILLED IN"
HEAD = f"""\
# A draft of a record for the registry of differential privacy deployments of OpenDP
# (opendp/deployments-registry-data), made by privsyn-flower of what this run knows of itself.
# The registry has not seen it. What begins with {BLANK} only whoever publishes the result
# can say. {STATEMENT} in this folder is the run's own statement.
"""
PRODUCT_NAMES: Mapping[Product, str] = {
    "Synthetic data": "Synthetic text",
    "Machine learning model": "A trained model",
    "Summary statistics": "Figures of given models",
    "Dataset": "Public text",
}


def write_record(folder: Path, summary: Summary) -> None:
    """The record alone, atomically, with today's date."""
    text = record(summary, datetime.now(UTC).date())
    write_atomic(folder / FILE, f"{HEAD}{to_yaml(text)}".encode())


def record(summary: Summary, day: date) -> dict[str, Any]:
    """The record of a run, of plain lists, dicts, strings and numbers.

    day: when it was made. Raises ReportError for a summary that notes no claim.
    """
    guarantee = guarantee_of(summary)
    method = str(summary.get("method") or "")
    slug = "-".join(["privsyn-flower", *([method] if method else []), day.isoformat()])
    return {
        "url_slug": slug,
        "deployment": {
            "basic": _basic(guarantee, summary, day),
            "dp_variant": {
                **({"variant_name": guarantee.variant} if guarantee.variant else {}),
                "data_domain": " ".join(guarantee.of("domain")),
                "unprotected_quantities": _listed(guarantee.of("unprotected")),
            },
            "privacy_loss": _loss(guarantee, summary),
            "deployment_model": _model(guarantee),
            "implementation": _implementation(guarantee, summary),
            "administrative": {
                "status": "Draft",
                "registry_authors": [f"privsyn-flower {summary.get('version', '')}".strip()],
                "tier": 3 if guarantee.variant else 1,
            },
        },
    }


def _basic(guarantee: Guarantee, summary: Summary, day: date) -> dict[str, Any]:
    product = _product(summary)
    method = summary.get("method")
    how = f", by the method {method!r} of privsyn-flower" if method else ", by privsyn-flower"
    simulated = ["A SIMULATION, not a deployment."] if guarantee.simulated else []
    asked = claim_of(summary) is not None
    sums = ["It is made of noisy sums of what users' devices answered."] if asked else []
    description = [*guarantee.of("warnings"), *simulated, f"{PRODUCT_NAMES[product]}{how}.", *sums]
    return {
        "name": f"{PRODUCT_NAMES[product]}: {method}" if method else PRODUCT_NAMES[product],
        "data_curators": [
            {
                "data_curator_name": f"{BLANK}: who publishes it; the type is a placeholder",
                "data_curator_type": "Industry",
            }
        ],
        "description": " ".join(description),
        "intended_use": f"{BLANK}: what it is for.",
        "data_product_type": product,
        "data_product_region": f"{BLANK}: where the users are.",
        "publication_date": day.isoformat(),
    }


def _product(summary: Summary) -> Product:
    """What a run makes. A strategy in somebody else's app notes no method, but its claim tells."""
    if method := summary.get("method"):
        return METHODS[str(method)].product if method in METHODS else "Synthetic data"
    claim = claim_of(summary)
    if claim is not None and not claim.rounds:
        return "Summary statistics"
    trains = claim is not None and claim.data == "data"
    return "Machine learning model" if trains else "Synthetic data"


def _loss(guarantee: Guarantee, summary: Summary) -> dict[str, Any]:
    protects = bool(guarantee.model)
    users = summary.get("users")
    named = {"epsilon": guarantee.epsilon, "delta": guarantee.delta, "rho": guarantee.rho}
    details = guarantee.of("warnings", "formal", "measures", "delta_of_users")
    return {
        **({"privacy_unit": "User-level"} if protects else {}),
        "privacy_unit_details": " ".join(guarantee.of("unit", "adjacency")),
        **({"number_of_privacy_units": int(users)} if protects and users else {}),
        "privacy_parameters": {
            name: float(value) for name, value in named.items() if value is not None
        },
        "privacy_parameters_details": _listed(details),
    }


def _model(guarantee: Guarantee) -> dict[str, Any]:
    source = {"data_source_type": "Static"}
    if not guarantee.simulated:
        source = {
            "data_source_type_details": "Whether the data changes while the run lasts, the run "
            "does not know."
        }
    return {
        **({"model_name": guarantee.model} if guarantee.model else {}),
        "trust_assumptions": " ".join(guarantee.of("setting")),
        "actors": _listed(guarantee.of("actors")),
        "release_type": "One release",
        "release_type_details": (
            "One run's result, with all releases on the way to it. Whether the same users are "
            "asked again, this run does not know."
        ),
        **source,
        "access_type": "Non-interactive",
        "access_type_details": " ".join(guarantee.of("queries")),
    }


def _implementation(guarantee: Guarantee, summary: Summary) -> dict[str, Any]:
    return {
        "preprocessing_and_hyperparameter_tuning": _listed(guarantee.of("tuning")),
        "mechanisms": _listed(
            guarantee.of(*MECHANISMS.split(), *"arithmetic channels security collection".split())
            + guarantee.of("verifiable", "audit")
        ),
        "composition": _listed(guarantee.of(*COMPOSITION.split())),
        "post_processing": " ".join(guarantee.of("post_processing")),
        "justification": (
            "Epsilon, delta, bounds and rounds are those of the configuration, whose reasons the "
            "run does not know. Why the mechanism gives what is stated is in the documentation of "
            "privsyn-flower (privacy, integer noise, correlated noise, threat model), with the "
            "tests that show it."
        ),
        "utility": " ".join(guarantee.of("utility")),
        "additional_information": str(summary["privacy"]),
    }


def _listed(sentences: list[str]) -> str:
    """As a Markdown list, which the registry shows; one sentence is itself."""
    if len(sentences) == 1:
        return sentences[0]
    return "".join(f"- {sentence}\n" for sentence in sentences)


# YAML ------------------------------------------------------------------------------------


BREAKS = "\x85\u2028\u2029\ufeff"  # YAML reads them as line breaks unless they are escaped


# libyaml's writer, where PyYAML was built with it: the same text, fifteen times as fast.
class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Plain YAML that a person reads: lists as blocks, in the order of the fields."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    if any(one in value for one in BREAKS):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(value: Mapping[str, Any]) -> str:
    """A record as a YAML document; any string comes back as it was."""
    written: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return written
