"""What a finished run has to publish, and whether its privacy statement lets it go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.report.summaries import (
    NONE,
    UNASKED,
    ReportError,
    Summary,
    read_summary,
    trust_of,
)
from privsyn_flower.runs import UNFINISHED

Kind = Literal["text", "model"]

TEXT, MODEL = "synthetic.jsonl", "model"  # of a run folder
SPLIT = "the split was chosen by private text"  # in a threat model, after what it holds against
ANYWAY = "--no-privacy-claimed"


class PublishError(ReportError):
    """A run cannot be published so; the text says why, and what to do."""


@dataclass(frozen=True)
class Product:
    """One result of a finished run, which becomes one folder and one repository.

    run: its folder. source: the file of text, or the folder of the model. unclaimed: why nothing
    private is claimed for what was made of the users' answers; "" where the claim holds.
    """

    run: Path
    config: RunConfig
    summary: Summary
    kind: Kind
    source: Path
    unclaimed: str

    @property
    def private(self) -> bool:
        """Whether differential privacy is claimed for something private."""
        return not self.unclaimed and trust_of(self.summary) != UNASKED


def read_product(run: Path, *, model: bool = False, anyway: bool = False) -> Product:
    """A run's text, or with `model`, and where there is no text, its model.

    anyway: also where no privacy is claimed. Raises PublishError for a run that is not finished or
    has no such result, and for one without a claim; ReportError for what is no run folder, and
    ConfigError for one of an earlier version.
    """
    folder = run.expanduser().absolute()
    if not (folder / "config.toml").is_file():
        raise PublishError(f"{folder} is no run folder of this app: it has no config.toml")
    summary = read_summary(folder)
    if UNFINISHED in summary:
        raise PublishError(
            f"{folder} is not finished (to come: {summary[UNFINISHED]}): "
            f"`privsyn run --resume {folder}`"
        )
    kind, source = _result(folder, summary, model)
    unclaimed = why_unclaimed(summary)
    if unclaimed and not anyway:
        raise PublishError(
            f"{folder}: no privacy is claimed for what this run made ({unclaimed}), and it must "
            f"not be released as private. To publish it all the same, say {ANYWAY}: its card "
            "then begins with that"
        )
    config = load_config(folder / "config.toml")
    return Product(folder, config, summary, kind, source, unclaimed)


def why_unclaimed(summary: Summary) -> str:
    """Why a run's result may not be released as private; "" where it may."""
    threat = str(summary["threat_model"])
    if trust_of(summary) == NONE:
        return threat
    return SPLIT if SPLIT in threat else ""


def _result(folder: Path, summary: Summary, model: bool) -> tuple[Kind, Path]:
    """What is to be published. Raises PublishError when it is not there."""
    text, trained = folder / TEXT, folder / MODEL
    if not model and text.is_file():
        return "text", text
    if (trained / "config.json").is_file():
        return "model", trained
    what = f"no {MODEL}/" if model else f"neither {TEXT} nor {MODEL}/"
    raise PublishError(
        f"{folder}: its method = {summary['method']!r} left {what}, so there is nothing to publish"
    )
