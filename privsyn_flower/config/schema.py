"""The run configuration: every key of every method, typed, bounded and explained.

Flower knows only flat keys with bool, number or string values, and only keys that the app
declares; so the sections below are flattened with dots (`pretext.population`), lists are
comma-separated strings, and `[tool.flwr.app.config]` in pyproject.toml is generated from
these keys (`scripts/update_app_config.py`) and compared with them in a test.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from privsyn_flower.app.tracking.named import NAMES
from privsyn_flower.config.ctcl import CtclConfig
from privsyn_flower.config.data import DataConfig
from privsyn_flower.config.dp_prompt import DPPromptConfig
from privsyn_flower.config.evaluation import EvaluationConfig
from privsyn_flower.config.measure import MeasureConfig
from privsyn_flower.config.models import ExpandConfig, GenerationConfig, ModelsConfig
from privsyn_flower.config.pe import PeConfig, SftConfig
from privsyn_flower.config.popri import PopriConfig
from privsyn_flower.config.pretext import PreTextConfig
from privsyn_flower.config.proximity import ProximityConfig
from privsyn_flower.config.section import (
    ConfigError,
    Scalar,
    Section,
    explain,
    flatten,
    nested,
    split_list,
)
from privsyn_flower.config.training import FtrlConfig, TrainingConfig
from privsyn_flower.files import cache_home

METHODS = {  # method -> its tables; each checks what it needs of the others
    "pretext": ("pretext", "sft"),
    "pe": ("pe", "sft"),
    "popri": ("popri",),
    "dp-fedavg": ("training", "proximity"),
    "dp-ftrl": ("training", "ftrl", "proximity"),
    "ctcl": ("ctcl", "training", "ftrl"),
    "evaluation": ("measure",),
    # Rows that the papers compare with; nobody is asked.
    "public-only": ("popri",),  # its classes
    "expand-only": (),
    "expand-private": (),
    "dp-prompt": ("dp_prompt",),
}
SAMPLES = 2000  # what expand.samples = -1 stands for where a generator can write them
REMOVED = {  # keys of older versions: what to do without them, instead of a guess at a near name
    "accountant": "epsilon is computed in one way for all noise; leave the key out, but finish a "
    "run that began with it by the version that it began with (privsyn account --renyi tells what "
    "the papers' accountants say)",
}


class RunConfig(Section):
    """The whole configuration; top-level keys hold for every method."""

    method: Literal[
        "pretext",
        "pe",
        "popri",
        "dp-fedavg",
        "dp-ftrl",
        "ctcl",
        "evaluation",
        "public-only",
        "expand-only",
        "expand-private",
        "dp-prompt",
    ] = Field(
        "pretext",
        description="synthetic text: pretext, pe, popri, ctcl; training: dp-fedavg, dp-ftrl; "
        "given models measured: evaluation; "
        "baselines without queries: public-only, expand-only, expand-private, dp-prompt",
    )
    epsilon: float = Field(7.58, gt=0, description="the run's budget; never exceeded")
    delta: float = Field(3e-6, gt=0, lt=1, description="of the (epsilon, delta) guarantee")
    noise_multiplier: float = Field(
        0.0, ge=0, description="noise std / bound (dp-ftrl: before it is correlated); 0: the "
        "smallest that keeps epsilon"
    )  # fmt: skip
    rounds: int = Field(8, ge=1, description="T")
    spare_rounds: int = Field(1, ge=0, description="failed attempts the calibration pays for")
    aggregation: Literal["secure", "plain"] = Field(
        "secure", description="secure: only sums reach the server; plain: a trusted aggregator"
    )
    node_keys: Literal["first-use", "roster"] = Field(
        "first-use", description="declared: what nodes check each other's keys against"
    )
    sampler: Literal["full", "poisson", "fixed"] = Field(
        "full",
        description="who takes part in a round: all, users sampled by their nodes, or a draw",
    )
    sampling_rate: float = Field(
        1.0,
        gt=0,
        le=1,
        description="poisson: probability that a user counts in a round; its node works either way",
    )
    cohort_nodes: int = Field(0, ge=0, description="fixed: nodes the server draws for a round")
    min_surviving_weight: float = Field(
        0.85, gt=0, le=1, description="W_min / W: below it a sum is not released"
    )
    colluding_weight: float = Field(0.0, ge=0, lt=1, description="share assumed colluding")
    round_timeout: float = Field(600.0, gt=0, description="seconds a round waits for nodes")
    stage_timeout: float = Field(
        60.0, gt=0, description="seconds each short stage of secure aggregation waits"
    )
    node_timeout: float = Field(120.0, gt=0, description="seconds to wait for nodes at start")
    nodes: int = Field(8, ge=1, description="simulated SuperNodes, or nodes to wait for")
    node_memory: int = Field(
        1024, ge=1, description="MB of embeddings that a simulated node holds at once, about: its "
        "users' are read in blocks, and half of it keeps them for the next round where they fit"
    )  # fmt: skip
    population_name: str = Field("", description="declared population; empty: a ledger per run")
    ledger: str = Field("", description="ledger file; empty: by population name, or per run")
    ledger_epsilon: float = Field(0.0, ge=0, description="ledger's total; 0: this epsilon")
    seed: int = Field(0, ge=0, description="of the server's choices; never of real noise")
    simulation_seeded_noise: bool = Field(False, description="tests only: noise from the seed")
    benchmark: bool = Field(False, description="simulation only: figures on held-out users")
    trackers: str = Field(
        "", description="trackers of rounds and stages: tensorboard, mlflow, wandb, or a list of "
        "them; they get public numbers only"
    )  # fmt: skip
    run_folder: str = Field("", description="absolute path; empty: under the cache folder")
    cache: str = Field(
        "", description="absolute path; empty: ~/.cache/privsyn-flower (XDG_CACHE_HOME)"
    )
    assets: str = Field("", description="folder of shipped tiny models; empty: the package's")
    data: DataConfig = Field(default_factory=DataConfig)
    models: ModelsConfig = Field(default_factory=ModelsConfig)
    pretext: PreTextConfig = Field(default_factory=PreTextConfig)
    pe: PeConfig = Field(default_factory=PeConfig)
    sft: SftConfig = Field(default_factory=SftConfig)
    popri: PopriConfig = Field(default_factory=PopriConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    dp_prompt: DPPromptConfig = Field(default_factory=DPPromptConfig)
    ftrl: FtrlConfig = Field(default_factory=FtrlConfig)
    ctcl: CtclConfig = Field(default_factory=CtclConfig)
    proximity: ProximityConfig = Field(default_factory=ProximityConfig)
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    expand: ExpandConfig = Field(default_factory=ExpandConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    measure: MeasureConfig = Field(default_factory=MeasureConfig)

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        if self.min_surviving_weight + self.colluding_weight > 1:
            raise ValueError(
                f"min-surviving-weight = {self.min_surviving_weight} plus colluding-weight = "
                f"{self.colluding_weight} exceeds 1: no sum could ever be released; lower one"
            )
        if self.aggregation == "secure" and self.nodes < 3:
            raise ValueError(
                f"nodes = {self.nodes}: secure aggregation needs at least 3; raise nodes, or set "
                "aggregation = 'plain' to trust the server with each node's vector"
            )
        self._check_sampler()
        self._check_tables()
        for name in split_list(self.trackers):
            if name not in NAMES:
                raise ValueError(
                    f"trackers = {self.trackers!r}: {name!r} is none of {', '.join(NAMES)}"
                )
        if self.nodes > self.data.users:
            raise ValueError(
                f"nodes = {self.nodes} exceeds data.users = {self.data.users}: lower nodes"
            )
        return self

    def _check_tables(self) -> None:
        """What the method's tables and the common ones need; some belong to their methods alone."""
        for name in ("ftrl", "training", "pe", "sft", "ctcl", "proximity", "measure"):
            table = getattr(self, name)
            if not self.uses(name) and table != type(table)():
                owners = " or ".join(repr(method) for method in METHODS if name in METHODS[method])
                raise ValueError(
                    f"keys of {name} belong to method = {owners}, and it is {self.method!r}: leave "
                    "them out"
                )
        tables = [name for name in METHODS[self.method] if self.uses(name)]
        for name in (*tables, "data", "evaluation"):
            getattr(self, name).check(self)

    def uses(self, table: str) -> bool:
        """Whether a table is the method's; CTCL's rounds are DP-FTRL's with a trusted aggregator,
        and DP-FedAvg's else."""
        if (self.method, table) == ("ctcl", "ftrl"):
            return self.training.noise == "aggregator"
        return table in METHODS[self.method]

    @property
    def evolution(self) -> PreTextConfig:
        """The table of whoever evolves a population: the method, or the rival PrE-Text."""
        return self.pe if self.uses("pe") else self.pretext

    @property
    def seeds_alone(self) -> bool:
        """Whether no generator here is known to write the language of the users, but there are
        seeds of public text that is theirs."""
        evolves = self.uses("pe") or self.uses("pretext")
        return evolves and self.data.source != "docstrings" and self.models.generator == "tiny"

    @property
    def lora_rank(self) -> int:
        """Of the adapters that the run trains of its generator."""
        return self.sft.lora_rank if self.uses("sft") else self.popri.lora_rank

    @property
    def teaches_generator(self) -> bool:
        """Whether the run trains adapters of its generator, on pairs or on what survived."""
        return self.uses("popri") or bool(self.uses("sft") and self.sft.epochs)

    @property
    def trains(self) -> bool:
        """Whether the result is a model that the nodes trained, and no text."""
        return self.uses("training") and not self.uses("ctcl")

    @property
    def measures(self) -> bool:
        """Whether the users are asked nothing but how well given models predict their text."""
        return self.uses("measure")

    @property
    def updates(self) -> bool:
        """Whether the rounds ask for changes of a model, `models.TRAINED` (`trained`)."""
        return self.trains or (self.uses("ctcl") and self.ctcl.generator_training)

    @property
    def trained(self) -> str:
        """The key in `[models]` of what is trained on the nodes."""
        return "conditional" if self.uses("ctcl") else "downstream"

    @property
    def classes(self) -> Sequence[str]:
        """The public class list of the method's texts; empty without classes."""
        return split_list(self.labels[1])

    @property
    def labels(self) -> tuple[str, str]:
        """The key of the public class list of the method's texts, and its value."""
        table = next((t for t in ("ctcl", "pe", "pretext") if self.uses(t)), "popri")
        return f"{table}.labels", getattr(self, table).labels

    @property
    def trusts_aggregator(self) -> bool:
        """Whether the noise is Gaussian and added by the aggregator, which sees sums without."""
        return self.updates and self.training.noise == "aggregator"

    @property
    def local_steps(self) -> int:
        """Most local steps of a user in a round: only public numbers bound a node's work."""
        return self.training.steps(self.data.samples_per_user)

    def _check_sampler(self) -> None:
        """Each sampler has its own key, and the other one at its default."""
        if (self.sampler == "poisson") != (self.sampling_rate < 1):
            raise ValueError(
                f"sampling-rate = {self.sampling_rate} with sampler = {self.sampler!r}: a rate "
                "below 1 belongs to 'poisson' and to nothing else"
            )
        least = 3 if self.aggregation == "secure" else 1
        if self.sampler == "fixed" and not least <= self.cohort_nodes <= self.nodes:
            raise ValueError(
                f"cohort-nodes = {self.cohort_nodes} with sampler = 'fixed' must be from {least} "
                f"to nodes = {self.nodes}"
            )
        if self.sampler != "fixed" and self.cohort_nodes:
            raise ValueError(
                f"cohort-nodes = {self.cohort_nodes} belongs to sampler = 'fixed'; this one is "
                f"{self.sampler!r}"
            )

    @classmethod
    def from_flat(cls, values: Mapping[str, Scalar]) -> RunConfig:
        """Dotted keys -> configuration. Raises ConfigError naming key, value and bound."""
        for key in values:
            if key in REMOVED:
                raise ConfigError(f"configuration key {key!r} is no more: {REMOVED[key]}")
        try:
            found = cls.model_validate(nested(values, flat_defaults()))
        except ValidationError as error:
            raise ConfigError(explain(error)) from None
        if found.expand.samples >= 0:
            return found
        samples = 0 if found.seeds_alone and not found.sft.epochs else SAMPLES
        expand = found.expand.model_copy(update={"samples": samples})
        return found.model_copy(update={"expand": expand})

    def flat(self) -> dict[str, Scalar]:
        """Every key with its value, dotted, as Flower's run config takes them."""
        return flatten(self.model_dump(by_alias=True))


def cache_folder(config: RunConfig) -> Path:
    """Where caches live: the configured folder or the user's cache folder."""
    return Path(config.cache).expanduser() if config.cache else cache_home() / "privsyn-flower"


def ledger_folder() -> Path:
    """Where populations' ledgers lie by default: data, not a cache that may be emptied."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "privsyn-flower" / "ledgers"


def flat_defaults() -> dict[str, Scalar]:
    """Every known key with its default."""
    return flatten(RunConfig().model_dump(by_alias=True))
