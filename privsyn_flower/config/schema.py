"""The run configuration: every key of every method, typed, bounded and explained.

Flower knows only flat keys with bool, number or string values, and only keys that the app
declares; so the sections below are flattened with dots (`pretext.population`), lists are
comma-separated strings, and `[tool.flwr.app.config]` in pyproject.toml is generated from
this file (`scripts/update_app_config.py`) and compared with it in a test.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from privsyn_flower.config.base import ConfigError, Section, explain
from privsyn_flower.config.sections import (
    DataConfig,
    EvaluationConfig,
    ExpandConfig,
    FtrlConfig,
    GenerationConfig,
    ModelsConfig,
    PopriConfig,
    PreTextConfig,
    TrainingConfig,
)

Scalar = bool | int | float | str


REMOVED = {  # keys of older versions: what to do without them, instead of a guess at a near name
    "accountant": "all noise has one accounting, the exact one; leave the key out (privsyn account "
    "--renyi tells what the papers' accountants say)",
}


class RunConfig(Section):
    """The whole configuration; top-level keys hold for every method."""

    method: Literal["pretext", "popri", "dp-fedavg", "dp-ftrl"] = Field(
        "pretext", description="synthetic text: pretext, popri; training: dp-fedavg, dp-ftrl"
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
        "full", description="who takes part in a round: all, by nodes' own coins, or a draw"
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
    population_name: str = Field("", description="declared population; empty: a ledger per run")
    ledger: str = Field("", description="ledger file; empty: by population name, or per run")
    ledger_epsilon: float = Field(0.0, ge=0, description="ledger's total; 0: this epsilon")
    seed: int = Field(0, ge=0, description="of the server's choices; never of real noise")
    simulation_seeded_noise: bool = Field(False, description="tests only: noise from the seed")
    benchmark: bool = Field(False, description="simulation only: figures on held-out users")
    run_folder: str = Field("", description="absolute path; empty: under the cache folder")
    cache: str = Field("", description="absolute path; empty: ~/.cache/privsyn-flower")
    assets: str = Field("", description="folder of shipped tiny models; empty: the package's")
    data: DataConfig = Field(default_factory=DataConfig)
    models: ModelsConfig = Field(default_factory=ModelsConfig)
    pretext: PreTextConfig = Field(default_factory=PreTextConfig)
    popri: PopriConfig = Field(default_factory=PopriConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    ftrl: FtrlConfig = Field(default_factory=FtrlConfig)
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    expand: ExpandConfig = Field(default_factory=ExpandConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)

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
        if self.method == "popri":
            self._check_popri()
        self._check_training()
        self._check_noise()
        self._check_evaluation()
        self._check_split()
        if self.nodes > self.data.users:
            raise ValueError(
                f"nodes = {self.nodes} exceeds data.users = {self.data.users}: lower nodes"
            )
        return self

    def _check_split(self) -> None:
        """Users, samples and public text are chosen by private text for benchmarks only."""
        keys = self.data.chosen_by_text
        if keys and not self.benchmark:
            raise ValueError(
                f"{keys}: this chooses users, samples or public text by reading private text, "
                "which epsilon does not cover: for benchmarks only (benchmark = true); else "
                "leave it at its default (data.near-duplicates = 'own', data.partition = "
                "'natural', data.min-samples-per-user = 1)"
            )

    def _check_popri(self) -> None:
        """What POPri needs of the other tables."""
        popri = self.popri
        if popri.checkpoint == "private" and not self.benchmark:
            raise ValueError(
                "popri.checkpoint = 'private' chooses by private text without noise, which epsilon "
                "does not cover: for benchmarks only (benchmark = true); set 'last' or 'public'"
            )
        public = "public" in (popri.checkpoint, popri.select)
        if public and self.data.public_validation < 2:
            raise ValueError(
                f"data.public-validation = {self.data.public_validation}: choosing by public text "
                "(popri.checkpoint, popri.select) needs at least 2 texts"
            )
        if popri.labels and not self.data.label_column:
            raise ValueError("popri.labels needs data.label-column, where a text's class stands")
        if self.generation.backend == "openai":
            raise ValueError(
                "generation.backend = 'openai' has no way to load the adapters that popri trains: "
                "set 'huggingface', or 'vllm' with base-url for a server that takes LoRA adapters"
            )
        if popri.select == "federated" and self.evaluation.task != "next-token":
            raise ValueError(
                "popri.select = 'federated' measures next tokens with models.downstream, and "
                f"evaluation.task = {self.evaluation.task!r} names another kind of model: set "
                "popri.select to 'last' or 'public'"
            )

    @property
    def trains(self) -> bool:
        """Whether the method trains a model on the nodes, and writes no text."""
        return self.method in ("dp-fedavg", "dp-ftrl")

    @property
    def trusts_aggregator(self) -> bool:
        """Whether the noise is Gaussian and added by the aggregator, which sees sums without."""
        return self.trains and self.training.noise == "aggregator"

    @property
    def local_steps(self) -> int:
        """Most local steps of a user in a round: only public numbers bound a node's work."""
        training = self.training
        batches = -(-self.data.samples_per_user // training.batch_size)
        return training.max_steps or batches * training.epochs

    def _check_training(self) -> None:
        """What DP-FedAvg and DP-FTRL need, and what only they have."""
        ftrl = self.ftrl
        if self.method == "dp-ftrl":
            if self.training.noise != "aggregator":
                raise ValueError(
                    "method = 'dp-ftrl' correlates the noise of its rounds, which only one party "
                    "that adds all of it can do: set training.noise = 'aggregator' if the "
                    "aggregator is trusted, or method = 'dp-fedavg'"
                )
            if ftrl.min_separation > self.rounds:
                raise ValueError(
                    f"ftrl.min-separation = {ftrl.min_separation} exceeds rounds = {self.rounds}: "
                    "lower it, or raise rounds"
                )
            if 0 < ftrl.max_participations * ftrl.min_separation < self.rounds:
                raise ValueError(
                    f"ftrl.max-participations = {ftrl.max_participations} turns of "
                    f"ftrl.min-separation = {ftrl.min_separation} rounds end before rounds = "
                    f"{self.rounds}, and from there every node refuses: raise one of the two "
                    "(0 participations: as many as fit), or lower rounds"
                )
        elif ftrl != FtrlConfig():
            raise ValueError(
                f"keys of ftrl belong to method = 'dp-ftrl', and it is {self.method!r}: leave "
                "them out"
            )
        if not self.trains and self.training != TrainingConfig():
            raise ValueError(
                "keys of training belong to method = 'dp-fedavg' or 'dp-ftrl', and it is "
                f"{self.method!r}: leave them out"
            )

    def _check_noise(self) -> None:
        """What cannot go with Gaussian noise of a trusted aggregator."""
        if not self.trusts_aggregator:
            return
        if self.sampler != "full":
            raise ValueError(
                f"sampler = {self.sampler!r} with training.noise = 'aggregator', whose noise is "
                "made for users who all take part or take turns (ftrl.min-separation): set 'full'"
            )
        if self.simulation_seeded_noise:
            raise ValueError(
                "simulation-seeded-noise = true is for the nodes' noise; training.noise = "
                "'aggregator' draws its key from the operating system: set it to false"
            )

    def _check_evaluation(self) -> None:
        """What a comparison needs of the method."""
        if self.evaluation.rival and self.trains:
            raise ValueError(
                f"evaluation.rival = {self.evaluation.rival!r} is simulated for synthetic text, "
                f"not for method = {self.method!r}: set it to ''"
            )
        if self.evaluation.task == "classification":
            if self.method != "popri" or not self.popri.labels:
                raise ValueError(
                    f"evaluation.task = 'classification' with method = {self.method!r} and "
                    f"popri.labels = {self.popri.labels!r}: it needs method = 'popri' and labels, "
                    "so that synthetic text has classes"
                )
            if len(split_list(self.popri.labels)) < 2:
                raise ValueError(
                    f"evaluation.task = 'classification' with popri.labels = "
                    f"{self.popri.labels!r}: at least 2 classes are needed"
                )
            if self.evaluation.rival == "pretext":
                raise ValueError(
                    "evaluation.rival = 'pretext' writes text without classes, of no use to "
                    "evaluation.task = 'classification': set rival = ''"
                )
        if self.evaluation.rival and self.method == self.evaluation.rival:
            raise ValueError(
                f"evaluation.rival = {self.evaluation.rival!r} is the method itself: set it to ''"
            )

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
        known = flat_defaults()
        nested: dict[str, Any] = {}
        for key, value in values.items():
            if key in REMOVED:
                raise ConfigError(f"configuration key {key!r} is no more: {REMOVED[key]}")
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"unknown configuration key {key!r}{hint}")
            section, _, name = key.rpartition(".")
            (nested.setdefault(section, {}) if section else nested)[name] = value
        try:
            return cls.model_validate(nested)
        except ValidationError as error:
            raise ConfigError(explain(error)) from None

    def flat(self) -> dict[str, Scalar]:
        """Every key with its value, dotted, as Flower's run config takes them."""
        return flatten(self.model_dump(by_alias=True))


def cache_folder(config: RunConfig) -> Path:
    """Where caches live: the configured folder or the user's cache folder."""
    return Path(config.cache or "~/.cache/privsyn-flower").expanduser()


def ledger_folder() -> Path:
    """Where populations' ledgers lie by default: data, not a cache that may be emptied."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "privsyn-flower" / "ledgers"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Nested tables -> dotted keys; a list or a date is refused with its key."""
    flat: dict[str, Scalar] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            flat[f"{prefix}{key}"] = value
        else:
            raise ConfigError(
                f"{prefix}{key} = {value!r}: only booleans, numbers and strings are allowed "
                "(write a list as one comma-separated string)"
            )
    return flat


def flat_defaults() -> dict[str, Scalar]:
    """Every known key with its default."""
    return flatten(RunConfig().model_dump(by_alias=True))


def split_list(text: str) -> list[str]:
    """A comma-separated value -> its non-empty parts."""
    return [part.strip() for part in text.split(",") if part.strip()]
