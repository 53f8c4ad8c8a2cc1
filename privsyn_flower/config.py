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

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Scalar = bool | int | float | str


class ConfigError(ValueError):
    """A key or value of the run configuration is wrong; the text names it and its bound."""


class Section(BaseModel):
    """One table of the configuration; kebab-case outside, snake_case inside."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        populate_by_name=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
    )


class DataConfig(Section):
    """`[data]`: who the users are, what they hold, and what text is public."""

    source: str = Field("docstrings", description="docstrings, files, or hub:NAME")
    path: str = Field("", description="files: jsonl, csv or parquet with the private users' text")
    public_path: str = Field("", description="files/hub: the public text (file, or hub:NAME)")
    private_packages: str = Field(
        "scipy,scikit-learn,pandas", description="docstrings: packages whose modules are users"
    )
    public_packages: str = Field(
        "stdlib,transformers,torch,ray,sqlalchemy,sympy",
        description="docstrings: the general public packages",
    )
    minority_packages: str = Field(
        "numpy", description="docstrings: public packages close to the private domain"
    )
    minority_share: float = Field(
        0.05, ge=0, le=1, description="docstrings: share of the public pool taken from them"
    )
    users: int = Field(1000, ge=1, description="declared number of private users (public)")
    samples_per_user: int = Field(8, ge=1, description="cap on one user's samples")
    min_samples_per_user: int = Field(1, ge=1, description="users with fewer are not enrolled")
    sections_per_module: int = Field(
        4, ge=1, description="docstrings: users made of one module, of consecutive samples each"
    )
    partition: Literal["natural", "uniform"] = Field(
        "natural", description="natural: by user column; uniform: the paper's random partition"
    )
    held_out_users: int = Field(150, ge=0, description="test users, read by final runs only")
    development_users: int = Field(100, ge=0, description="users for tuning the demo")
    public_pool: int = Field(8192, ge=1, description="public texts kept as the pool")
    public_validation: int = Field(512, ge=0, description="public texts for learning-rate choice")
    sample_words: int = Field(45, ge=4, description="words of a docstring sample or a candidate")
    user_column: str = Field("user_id", description="files/hub: column of the user's id")
    text_column: str = Field("text", description="files/hub: column of the text")
    label_column: str = Field("", description="files/hub: column of a label; empty: none")
    date_column: str = Field("", description="files/hub: column of a date; empty: none")
    date_from: str = Field("", description="first date kept, YYYY-MM-DD")
    date_to: str = Field("", description="last date kept, YYYY-MM-DD")
    seed: int = Field(0, ge=0, description="seed of the split")


class ModelsConfig(Section):
    """`[models]`: an embedded tiny model (tiny), a local folder, or a Hugging Face name."""

    embedder: str = Field("minilm", description="minilm, ngram-DIM, a folder, or a hub name")
    infiller: str = Field("tiny", description="masked LM: tiny, a folder, or a hub name")
    generator: str = Field("tiny", description="causal LM: tiny, a folder, or a hub name")
    downstream: str = Field("tiny", description="model fine-tuned for the result table")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0, mps")
    train_seconds: float = Field(240.0, gt=0, description="time budget to train one tiny model")
    train_steps: int = Field(0, ge=0, description="steps for a tiny model; 0: the recipe's")


class PreTextConfig(Section):
    """`[pretext]`: PrE-Text, Algorithms 1 and 2 of the paper."""

    population: int = Field(256, ge=2, description="N_syn: candidates in a round")
    lookahead: int = Field(
        2, ge=1, description="K: variations averaged per candidate; 1: the candidate itself"
    )
    clip: Literal["normalised", "worst-case", "sqrt-count"] = Field(
        "normalised", description="how one user's votes are bounded"
    )
    vote_bound: float = Field(1.0, gt=0, description="L2 bound of one user's votes")
    neighbors: int = Field(1, ge=1, description="candidates one sample votes for")
    metric: Literal["l2", "cosine", "ip"] = Field("l2", description="what nearest means")
    threshold: float = Field(1.0, ge=0, description="H: taken off every candidate's votes")
    threshold_unit: Literal["noise-std", "votes"] = Field(
        "noise-std", description="unit of H: std of the released noise, or votes (the paper)"
    )
    variation: Literal["mask-fill", "retrieval", "mixed"] = Field(
        "mask-fill", description="how survivors are varied"
    )
    retrieval_share: float = Field(0.5, ge=0, le=1, description="mixed: share retrieved")
    retrieval_neighbors: int = Field(16, ge=1, description="public neighbours to draw from")
    mask_fraction: float = Field(0.3, gt=0, lt=1, description="MASK%")
    mask_steps: int = Field(2, ge=1, description="W_steps")
    temperature: float = Field(1.0, gt=0, description="of the mask-fill")
    top_p: float = Field(1.0, gt=0, le=1, description="of the mask-fill")
    max_tokens: int = Field(64, ge=8, description="length of a candidate in tokens")


class ExpandConfig(Section):
    """`[expand]`: seeds -> synthetic text by a causal LM (PrE-Text, section 3 (6))."""

    samples: int = Field(2000, ge=0, description="synthetic texts to make; 0: seeds only")
    seeds_per_prompt: int = Field(3, ge=1, description="seeds shown in one prompt")
    include_seeds: bool = Field(False, description="put the seeds themselves into the output")
    temperature: float = Field(1.0, gt=0, description="of the causal LM")
    top_p: float = Field(1.0, gt=0, le=1, description="of the causal LM")
    max_tokens: int = Field(85, ge=8, description="new tokens per completion")
    min_words: int = Field(4, ge=1, description="shorter completions are dropped")
    batch_size: int = Field(64, ge=1, description="completions generated side by side")


class EvaluationConfig(Section):
    """`[evaluation]`: the benchmark (simulation only, with `benchmark = true`)."""

    sequence_length: int = Field(64, ge=8, description="tokens of a training sequence")
    steps: int = Field(200, ge=1, description="optimiser steps of every fine-tuning")
    batch_size: int = Field(32, ge=1, description="sequences of one optimiser step")
    learning_rates: str = Field("1e-4,3e-4,1e-3", description="tried on public validation text")
    bootstrap: int = Field(2000, ge=100, description="resamples of users for the interval")
    on: Literal["test", "development"] = Field("test", description="which held-out users")


class RunConfig(Section):
    """The whole configuration; top-level keys hold for every method."""

    method: Literal["pretext"] = Field("pretext", description="the only method so far")
    epsilon: float = Field(7.58, gt=0, description="the run's budget; never exceeded")
    delta: float = Field(3e-6, gt=0, lt=1, description="of the (epsilon, delta) guarantee")
    noise_multiplier: float = Field(
        0.0, ge=0, description="noise std / bound; 0: the smallest that keeps epsilon"
    )
    accountant: Literal["rdp"] = Field(
        "rdp", description="of integer (Skellam) noise, which has no tighter one"
    )
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
        1.0, gt=0, le=1, description="poisson: probability that a user takes part in a round"
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
        if self.nodes > self.data.users:
            raise ValueError(
                f"nodes = {self.nodes} exceeds data.users = {self.data.users}: lower nodes"
            )
        return self

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


def explain(error: ValidationError) -> str:
    """Every wrong key with its value and bound, on one line."""
    lines = []
    for item in error.errors():
        key = ".".join(str(part).replace("_", "-") for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        lines.append(f"{key} = {item['input']!r}: {message}" if key else message)
    return "; ".join(lines)
