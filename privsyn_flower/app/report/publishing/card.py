"""README.md of what is published: the hub's card, and the guarantee in full.

The front matter is the hub client's; every sentence about privacy is the run's own statement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privsyn_flower.app.report.checked import (
    CLOSENESS,
    INSPECT,
    checked,
    closeness_rows,
    text_lines,
)
from privsyn_flower.app.report.forms import fact_sheet
from privsyn_flower.app.report.guarantee import text_environment
from privsyn_flower.app.report.publishing.product import (
    COLUMNS,
    Product,
    PublishError,
    size_category,
)
from privsyn_flower.app.report.summaries import NO_QUERIES, Summary, benchmark_lines, trust_of
from privsyn_flower.app.report.tables import interval
from privsyn_flower.config.schema import METHODS
from privsyn_flower.privacy.wording import at_most

TAG = "differential-privacy"
PARQUET, PICKED, SETTINGS = "data/train.parquet", "data/seeds.parquet", "run.toml"
PATH = "FOLDER"  # where it lies is not told
LSTM = "privsyn-lstm"  # `model_type` of the models that only this package loads
# How the name of an architecture ends -> the class of transformers that loads it.
AUTO = {
    "CausalLM": "AutoModelForCausalLM",
    "ConditionalGeneration": "AutoModelForSeq2SeqLM",
    "SequenceClassification": "AutoModelForSequenceClassification",
}
PIPELINES = {"CausalLM": "text-generation", "SequenceClassification": "text-classification"}
NOTHING_CLAIMED = "NO PRIVACY IS CLAIMED FOR WHAT IS HERE"


@dataclass(frozen=True)
class Facts:
    """What a card says beside the run's own files.

    rows, columns: of a data set. seeds: texts that votes picked, beside it. model_type,
    architecture: of a model's config.json. licence: the hub's name of the publisher's choice, or
    "". loaded: keys in `[models]` of the public models that the run used. figures: whether the
    benchmark's are told. name: of the repository, or "".
    """

    loaded: Collection[str]
    name: str = ""
    licence: str = ""
    figures: bool = False
    rows: int = 0
    columns: Sequence[str] = ()
    seeds: int = 0
    model_type: str = ""
    architecture: str = ""


def card(product: Product, facts: Facts) -> str:
    """The whole README.md. Raises PublishError when figures are asked for and there are none."""
    summary, config = product.summary, product.config
    kind = f"{_kind(summary).capitalize()} text" if product.kind == "text" else "A model"
    title = f"{kind} of {method_of(summary)}"
    # None can be made of a summary of a version that noted no claim.
    asked = trust_of(summary) != NO_QUERIES and "claim" in summary
    made: str = (
        text_environment()
        .get_template("card.md")
        .render(
            front_matter=front_matter(product, facts, title),
            title=title,
            product=product,
            summary=summary,
            config=config,
            facts=facts,
            where=facts.name or PATH,
            lstm=facts.model_type == LSTM,
            auto=AUTO.get(facts.architecture.rpartition("For")[2], "AutoModel"),
            private_text=private_text(config),
            public_text=public_text(config),
            models=models(config, facts.loaded),
            sheet=fact_sheet(summary) if asked else [],
            figures=list(_figures(product)) if facts.figures else [],
            measures=[name.replace("_", "-") for name in _measures(product)],
            closeness=closeness_rows(summary) if facts.figures else [],
            CLOSENESS=CLOSENESS,
            checks=checked(summary),
            text_lines=text_lines(summary),
            INSPECT=INSPECT,
            benchmark_lines=benchmark_lines(summary),
            COLUMNS=COLUMNS,
            NOTHING_CLAIMED=NOTHING_CLAIMED,
            PICKED=PICKED,
            SETTINGS=SETTINGS,
            UNKNOWN=UNKNOWN,
        )
    )
    return made


def front_matter(product: Product, facts: Facts, title: str) -> str:
    """The card's YAML, without its fences; the tag only where something private is protected."""
    from huggingface_hub import DatasetCardData, ModelCardData

    tags = ["privsyn-flower", "federated-learning"]
    more: dict[str, Any] = {"license": facts.licence or UNKNOWN}
    if product.private:
        tags.insert(0, TAG)
        more["differential_privacy"] = _claim(product.summary)
    if product.kind == "model":
        known = ModelCardData(
            base_model=base_model(product.config) or None,
            library_name=None if facts.model_type == LSTM else "transformers",
            pipeline_tag=PIPELINES.get(facts.architecture.rpartition("For")[2]),
            tags=tags,
            **more,
        )
        return str(known.to_yaml())
    files = [{"split": "train", "path": PARQUET}]
    configs = [{"config_name": "default", "data_files": files}]
    if facts.seeds:
        picked = [{"split": "train", "path": PICKED}]
        configs.append({"config_name": "seeds", "data_files": picked})
    return str(
        DatasetCardData(
            pretty_name=title,
            size_categories=[size_category(facts.rows)],
            task_categories=["text-generation"],
            tags=[_kind(product.summary), *tags],
            configs=configs,
            **more,
        ).to_yaml()
    )


def method_of(summary: Summary) -> str:
    """The method with whoever published it, or its own name."""
    entry = METHODS.get(str(summary["method"]))
    return entry.title if entry and entry.title else f"method = {summary['method']}"


def _kind(summary: Summary) -> str:
    """What the texts are: those of one row of the papers' tables are public ones as they were."""
    entry = METHODS.get(str(summary["method"]))
    return "public" if entry and entry.product == "Dataset" else "synthetic"


def _claim(summary: Summary) -> dict[str, Any]:
    """For programs: the numbers of the guarantee, as rounded up as elsewhere on the card, with what
    they mean."""
    names = ("epsilon", "delta", "unit", "adjacency", "accountant", "threat_model")
    claim = {name: summary[name] for name in names if summary.get(name) is not None}
    if "epsilon" in claim:
        claim["epsilon"] = float(at_most(claim["epsilon"]))
    return claim


def _measures(product: Product) -> list[str]:
    """What the benchmark measured: of classes another than of next tokens."""
    found = product.summary.get("benchmark") or {}
    return [name for name in ("accuracy", "loss", "macro_f1") if found.get(name)]


def _figures(product: Product) -> Iterator[list[str]]:
    """The benchmark's, measured on private text. Raises PublishError where there is none."""
    found: Mapping[str, Any] = product.summary.get("benchmark") or {}
    if not found.get("accuracy"):
        raise PublishError(f"{product.run} has no benchmark figures: leave --benchmark-figures out")
    for name in found["accuracy"]:
        measures = _measures(product)
        ends = [found.get(f"{what}_interval", {}).get(name) for what in measures]
        cells = [
            interval(float(one), *of) if of else f"{one:.4f}"
            for one, of in zip([found[what][name] for what in measures], ends, strict=True)
        ]
        yield [str(found.get("methods", {}).get(name, name)), *cells]
