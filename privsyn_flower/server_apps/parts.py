"""Configuration -> the parts of a run: public text, models, noise, ledger, statement."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.config import ConfigError, RunConfig, cache_folder, ledger_folder
from privsyn_flower.data import Federation, cached_embeddings, prepare
from privsyn_flower.data.sources import public_groups
from privsyn_flower.privacy import Ledger, PrivacyStatement, calibrate, epsilon
from privsyn_flower.privacy.accounting import SENSITIVITY
from privsyn_flower.privacy.renyi import plan_order
from privsyn_flower.progress import Progress
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.aggregation import Aggregation, PlainSum, SecureAggregation
from privsyn_flower.strategies.pretext import PrEText
from privsyn_flower.text.known import KnownRows
from privsyn_flower.text import Embedder, Generator, Infiller, load_embedder


@dataclass(frozen=True)
class PublicText:
    """pool: candidates and retrieval; federation: the simulated one, None in deployment."""

    pool: list[str]
    federation: Federation | None


def is_deployment(config: RunConfig) -> bool:
    """No private file named: the users' text is on real nodes, only public text is here."""
    return config.data.source == "files" and not config.data.path


def public_text(config: RunConfig, progress: Progress) -> PublicText:
    """The public side of the data. Raises ConfigError for keys that deployment forbids."""
    if is_deployment(config):
        if config.benchmark or config.simulation_seeded_noise:
            raise ConfigError(
                "benchmark and simulation-seeded-noise are for simulation only; with data.path "
                "empty the users are real: set both to false"
            )
        groups = public_groups(config.data, lambda note: progress("data", 0, 1, note))
        pool = [sample.text for group in groups for sample in group.samples]
        return PublicText(candidates(pool, config)[: config.data.public_pool], None)
    progress("data", 0, 1, "preparing the simulated federation")
    folder = prepare(config.data, cache_folder(config), lambda note: progress("data", 0, 1, note))
    federation = Federation(folder)
    progress("data", 1, 1)
    return PublicText(candidates(federation.public(), config), federation)


def candidates(pool: list[str], config: RunConfig) -> list[str]:
    """The pool's distinct texts, cut to `data.sample-words` words each.

    The first population, and so the first seeds, come from here: whole web pages would not be
    candidates of the length that the later rounds have.
    """
    words = config.data.sample_words
    return list(dict.fromkeys(" ".join(text.split()[:words]) for text in pool))


def _mechanism(config: RunConfig) -> dict[str, Any]:
    """What accounting needs to know beside noise and rounds."""
    return {"mechanism": "skellam", "sampling_rate": config.sampling_rate}


def noise_multiplier(config: RunConfig) -> float:
    """Calibrated, or the configured one when it keeps epsilon; spare rounds are paid for."""
    releases = config.rounds + config.spare_rounds
    if config.noise_multiplier == 0:
        return calibrate(config.epsilon, releases, config.delta, **_mechanism(config))
    spent = epsilon(config.noise_multiplier, releases, config.delta, **_mechanism(config))
    if spent > config.epsilon:
        raise ConfigError(
            f"noise-multiplier = {config.noise_multiplier} costs epsilon {spent:.4f} for "
            f"{releases} releases (rounds + spare-rounds), above epsilon = {config.epsilon}: "
            "raise noise-multiplier, lower rounds, or set noise-multiplier = 0 to calibrate it"
        )
    return config.noise_multiplier


def open_ledger(config: RunConfig, folder: RunFolder) -> Ledger:
    """The declared population's ledger, or one of the run's own (its scope is in the sentence)."""
    name = config.population_name
    path = folder.path / "ledger.jsonl"
    if config.ledger:
        if not name:
            raise ConfigError(
                f"ledger = {config.ledger!r} is shared by runs: set population-name to the name "
                "of the declared population it belongs to"
            )
        path = Path(config.ledger)
    elif name:
        path = ledger_folder() / f"{name}.jsonl"
    return Ledger.open(
        path,
        population=name or f"run {folder.path.name}",
        total_epsilon=config.ledger_epsilon or config.epsilon,
        total_delta=config.delta,
        simulation=config.simulation_seeded_noise,
        mechanism="skellam",
        order=_filter_order(config),
    )


def _filter_order(config: RunConfig) -> int | None:
    """The order at which a sampled plan is cheapest; without sampling the ledger knows it."""
    if config.sampling_rate == 1.0:
        return None
    releases = config.rounds + config.spare_rounds
    noise, rate = noise_multiplier(config), config.sampling_rate
    return plan_order(noise, releases, config.delta, rate, SENSITIVITY)


AGGREGATIONS: dict[str, type[Aggregation]] = {
    "secure": SecureAggregation,
    "plain": PlainSum,
}


def statement(config: RunConfig, multiplier: float) -> PrivacyStatement:
    """What the run claims, for the guaranteed noise and all releases that are paid for."""
    releases = config.rounds + config.spare_rounds
    return PrivacyStatement(
        epsilon=epsilon(multiplier, releases, config.delta, **_mechanism(config)),
        delta=config.delta,
        noise_multiplier=multiplier,
        rounds=config.rounds,
        spare_rounds=config.spare_rounds,
        min_surviving_weight=config.min_surviving_weight,
        colluding_weight=config.colluding_weight,
        accountant=config.accountant,
        aggregation=config.aggregation,
        sampler=config.sampler,
        sampling_rate=config.sampling_rate,
        keys=config.node_keys,
        simulated=not is_deployment(config),
        ledger_scope="population" if config.population_name else "run",
        simulation_seeded=config.simulation_seeded_noise,
        benchmark=config.benchmark,
    )


class Models:
    """The run's models, each loaded when first used; embedded tiny ones trained if needed."""

    def __init__(self, config: RunConfig, public: PublicText, progress: Progress) -> None:
        self.config = config
        self.public = public
        self.progress = progress
        self.cache = cache_folder(config)
        self._embedder: Embedder | None = None

    def folder(self, kind: str) -> str:
        """Name or folder of the infiller, generator or downstream model."""
        name: str = getattr(self.config.models, kind)
        if name != "tiny":
            return name
        from privsyn_flower.text.tiny import ensure_model

        if self.public.federation is None:
            raise ConfigError(
                f"models.{kind} = 'tiny' is trained on the simulated federation's public text; "
                "in deployment name a folder or a Hugging Face model"
            )
        return str(ensure_model(kind, self.public.federation, self.config, self.progress))

    def embedder(self) -> Embedder:
        """For public text: the pool's rows come from the cache on disk, others are remembered."""
        if self._embedder is None:
            models = self.config.models
            embedder = load_embedder(models.embedder, models.device, self.progress)
            pool = self.public.pool if self.config.pretext.variation != "mask-fill" else []
            rows = cached_embeddings(
                self.cache / "public", embedder.fingerprint, pool, embedder.embed
            )
            self._embedder = KnownRows(embedder, pool, rows)
        return self._embedder

    def infiller(self) -> Infiller:
        """Variation: mask-fill (the paper), public nearest neighbours, or some of each."""
        kind = self.config.pretext.variation
        if kind == "mask-fill":
            return self._mask_fill()
        if kind == "retrieval":
            return self._retrieval()
        from privsyn_flower.text.retrieval import Mixed

        return Mixed(self._retrieval(), self._mask_fill(), self.config.pretext.retrieval_share)

    def _mask_fill(self) -> Infiller:
        from privsyn_flower.text.infillers import MaskFill

        pretext = self.config.pretext
        return MaskFill(
            self.folder("infiller"),
            mask_fraction=pretext.mask_fraction,
            steps=pretext.mask_steps,
            temperature=pretext.temperature,
            top_p=pretext.top_p,
            max_tokens=pretext.max_tokens,
            device=self.config.models.device,
            progress=self.progress,
        )

    def _retrieval(self) -> Infiller:
        from privsyn_flower.text.retrieval import Retrieval

        embedder, pool = self.embedder(), self.public.pool
        neighbors = self.config.pretext.retrieval_neighbors
        return Retrieval(pool, embedder.embed(pool), embedder, neighbors)

    def generator(self) -> Generator:
        from privsyn_flower.text.generators import HuggingFaceGenerator

        expand = self.config.expand
        return HuggingFaceGenerator(
            self.folder("generator"),
            temperature=expand.temperature,
            top_p=expand.top_p,
            max_tokens=expand.max_tokens,
            batch_size=expand.batch_size,
            device=self.config.models.device,
            progress=self.progress,
        )

    def strategy(self) -> PrEText:
        """The configured method."""
        config = self.config
        return PrEText(
            self.public.pool,
            embedder=self.embedder(),
            infiller=self.infiller(),
            rounds=config.rounds,
            config=config.pretext,
            samples_cap=config.data.samples_per_user,
            seed=config.seed,
            progress=self.progress,
        )
