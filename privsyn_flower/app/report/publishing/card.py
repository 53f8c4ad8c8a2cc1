"""README.md of what is published: the hub's card, and the guarantee in full.

The front matter is the hub client's; every sentence about privacy is the run's own statement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privsyn_flower.app.report.evaluations import interval, table
from privsyn_flower.app.report.forms import fact_sheet
from privsyn_flower.app.report.guarantee import carried
from privsyn_flower.app.report.methods import METHODS, PUBLIC_AS_IT_WAS
from privsyn_flower.app.report.publishing import sources
from privsyn_flower.app.report.publishing.product import Product, PublishError
from privsyn_flower.app.report.publishing.rows import COLUMNS, size_category
from privsyn_flower.app.report.summaries import UNASKED, Summary, benchmark_lines, trust_of
from privsyn_flower.privacy.wording import at_least, at_most

TAG = "differential-privacy"
PARQUET, PICKED, SETTINGS = "data/train.parquet", "data/seeds.parquet", "run.toml"
PATH = "FOLDER"  # where it lies is not told
LSTM = "privsyn-lstm"  # `model_type` of the models that only this package loads
# How the name of an architecture ends -> the class of transformers that loads it.
AUTO = {"CausalLM": "AutoModelForCausalLM", "ConditionalGeneration": "AutoModelForSeq2SeqLM"}
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
    summary, text = product.summary, product.kind == "text"
    title = (
        f"{f'{_kind(summary).capitalize()} text' if text else 'A model'} of {method_of(summary)}"
    )
    blocks = [f"---\n{front_matter(product, facts, title)}\n---", f"# {title}"]
    if product.unclaimed:
        blocks.append(
            f"**{NOTHING_CLAIMED}: {product.unclaimed}.** What follows says what the run's "
            "noise was, not what this repository keeps private."
        )
    blocks += [f"**{one}**" for one in carried(summary)]
    blocks += [
        _what(product, facts),
        "## Privacy",
        *_privacy(product),
        *_fact_sheet(product.summary),
        "## Public text, models and licences",
        *_sources(product, facts),
        "## Known limits",
        "\n".join(f"- {limit}" for limit in _limits(product)),
    ]
    if facts.figures:
        blocks += ["## Figures that epsilon does not cover", *_figures(product)]
    return "\n\n".join(blocks) + "\n"


def front_matter(product: Product, facts: Facts, title: str) -> str:
    """The card's YAML, without its fences; the tag only where something private is protected."""
    from huggingface_hub import DatasetCardData, ModelCardData

    tags = ["privsyn-flower", "federated-learning"]
    more: dict[str, Any] = {"license": facts.licence or sources.UNKNOWN}
    if product.private:
        tags.insert(0, TAG)
        more["differential_privacy"] = _claim(product.summary)
    if product.kind == "model":
        known = ModelCardData(
            base_model=sources.base_model(product.config) or None,
            library_name=None if facts.model_type == LSTM else "transformers",
            pipeline_tag="text-generation" if facts.architecture.endswith("ForCausalLM") else None,
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
    return METHODS.get(str(summary["method"]), f"method = {summary['method']}")


def _kind(summary: Summary) -> str:
    """What the texts are: those of one row of the papers' tables are public ones as they were."""
    return "public" if summary["method"] in PUBLIC_AS_IT_WAS else "synthetic"


def _claim(summary: Summary) -> dict[str, Any]:
    """For programs: the numbers of the guarantee, as rounded up as elsewhere on the card, with what
    they mean."""
    names = ("epsilon", "delta", "unit", "adjacency", "accountant", "threat_model")
    claim = {name: summary[name] for name in names if summary.get(name) is not None}
    if "epsilon" in claim:
        claim["epsilon"] = float(at_most(claim["epsilon"]))
    return claim


def _what(product: Product, facts: Facts) -> str:
    summary, config = product.summary, product.config
    claim = summary.get("claim") or {}
    machines = "several machines" if claim.get("cluster") else "one machine"
    where = f" in a simulation on {machines}" if claim.get("simulated") else ""
    planned, done = summary.get("rounds_planned", 0), summary.get("rounds", 0)
    asked = f"{summary.get('users', 0):,} users{where} were asked"
    asked += f" in {done} rounds" if done else ""
    if not planned and not summary.get("claim"):
        asked = "There were no rounds in which users were asked anything"
    early = f" ({planned} were planned; it ended early)" if summary.get("ended_early") else ""
    version = summary.get("version", "of an unknown version")
    made = (
        f"Made by privsyn-flower {version}; the settings are in `{SETTINGS}`. {asked}{early}. The "
        f"private text: {sources.private_text(config)}."
    )
    alone = not config.expand.samples
    own = _rows(facts, alone) if product.kind == "text" else _model(facts)
    return f"{own}\n\n{made}"


def _rows(facts: Facts, alone: bool) -> str:
    """alone: nothing was written beyond the seeds."""
    rows = [["column", ""], ["---", "---"], *([f"`{one}`", COLUMNS[one]] for one in facts.columns)]
    where = facts.name or PATH
    load = f'from datasets import load_dataset\n\ntexts = load_dataset("{where}", split="train")'
    count = f"{facts.rows:,} texts, one a row."
    if facts.seeds and alone:
        count += " Nothing was written beyond the seeds: these are their texts."
    if facts.seeds:
        count += (
            f" The configuration `seeds` (`{PICKED}`) has the {facts.seeds:,} candidates that the "
            "users' noisy votes picked, with these votes: public texts, or variations of them, "
            "under the public text's own licence."
        )
    return "\n\n".join([count, "\n".join(table(rows)), f"```python\n{load}\n```"])


def _model(facts: Facts) -> str:
    where = facts.name or PATH
    if facts.model_type == LSTM:
        return (
            "A word-level LSTM (`model.safetensors`, `config.json`, `tokenizer.json`), which "
            f'privsyn-flower loads: `models.downstream = "{where}"`.'
        )
    auto = AUTO.get(facts.architecture.rpartition("For")[2], "AutoModel")
    load = f'from transformers import {auto}\n\nmodel = {auto}.from_pretrained("{where}")'
    return f"A {facts.architecture or 'model'}.\n\n```python\n{load}\n```"


def _privacy(product: Product) -> Iterator[str]:
    """The guarantee: in short, its numbers, and the run's whole statement."""
    summary = product.summary
    if short := summary.get("privacy_short"):
        yield str(short)
    rows = [["", ""], ["---", "---"]]
    rows += [
        ["epsilon", "infinite" if summary["epsilon"] is None else at_most(summary["epsilon"])],
        ["delta", f"{summary['delta']:g}"],
        ["unit of privacy", str(summary["unit"])],
        ["adjacency", str(summary["adjacency"])],
        ["threat model", str(summary["threat_model"])],
        ["accounting", str(summary["accountant"])],
    ]
    if summary.get("rho_zcdp") is not None:
        rows.append(["rho (zero-concentrated)", at_most(summary["rho_zcdp"])])
    if summary.get("noise_multiplier"):
        rows.append(["noise multiplier", f"at least {at_least(summary['noise_multiplier'])}"])
    if summary.get("epsilon_ledger_total") is not None:
        rows.append(["the ledger's total epsilon", at_most(summary["epsilon_ledger_total"])])
    yield "\n".join(table(rows))
    yield str(summary["privacy"])


def _fact_sheet(summary: Summary) -> Iterator[str]:
    """The points of NIST SP 800-226, where anything private was opened. None can be made of a
    summary of a version that noted no claim."""
    if trust_of(summary) == UNASKED or "claim" not in summary:
        return
    yield "## Fact sheet"
    yield (
        "The run's own answers to the points that NIST SP 800-226 (2025) goes through to evaluate "
        "a guarantee; nobody has assessed them."
    )
    rows = [["point", "question", "answer"], ["---"] * 3]
    for item in fact_sheet(summary):
        cells = (item.source.removeprefix("NIST SP 800-226, "), item.question, item.answer)
        rows.append([" ".join(cell.split()).replace("|", "\\|") for cell in cells])
    yield "\n".join(table(rows))


def _sources(product: Product, facts: Facts) -> Iterator[str]:
    if facts.licence:
        yield f"The publisher has put this repository under `{facts.licence}`."
    else:
        yield (
            f"Licence of this repository: {sources.UNKNOWN}; the publisher named none. What it was "
            "made of has licences of its own, whatever epsilon says."
        )
    yield "Public text of the run:"
    yield "\n".join(sources.public_text(product.config))
    if lines := sources.models(product.config, facts.loaded):
        yield "Public models that it used:"
        yield "\n".join(lines)


def _limits(product: Product) -> Iterator[str]:
    """What no number above says; the statement has what epsilon does not cover."""
    if product.kind == "text":
        yield "The texts are no facts about anyone or anything, and may be wrong or offensive."
    else:
        yield "What the model writes is no fact about anyone or anything, and may be offensive."
    yield (
        "Differential privacy protects the users' text. Public text may be repeated, word for "
        "word, and public models bring what they have read."
    )
    yield (
        "What many users have in common shows: that is what was learned. Epsilon bounds what can "
        "be told of one user of a node."
    )
    yield "Another run on the same users adds its own epsilon, unless one ledger spans both."
    if product.config.data.source == "docstrings":
        yield "The users were modules of public Python packages: a demonstration, nobody's secrets."
    for sentence in product.summary.get("verdict", {}).get("sentences", []):
        yield f"By the released sums alone: {sentence}."


def _figures(product: Product) -> Iterator[str]:
    """The benchmark's, measured on private text. Raises PublishError where there is none."""
    found: Mapping[str, Any] = product.summary.get("benchmark") or {}
    if not found.get("accuracy"):
        raise PublishError(f"{product.run} has no benchmark figures: leave --benchmark-figures out")
    yield (
        "Measured with private and held-out text, without noise, by whoever ran the simulation: "
        "these figures are NOT covered by epsilon."
    )
    rows = [["", "accuracy", "loss"], ["---", "---:", "---:"]]
    for name, value in found["accuracy"].items():
        ends = [found.get(f"{what}_interval", {}).get(name) for what in ("accuracy", "loss")]
        told = [
            interval(float(one), *of) if of else f"{one:.4f}"
            for one, of in zip((value, found["loss"][name]), ends, strict=True)
        ]
        rows.append([str(found.get("methods", {}).get(name, name)), *told])
    yield "\n".join(table(rows))
    yield "\n".join(f"- {line}" for line in benchmark_lines(product.summary))
