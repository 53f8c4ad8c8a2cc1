"""One run between its promise and its rounds: the same steps for `start` and for `privsyn run`.

The promise (`privacy.promise`) says what a run costs; here it meets the federation's public numbers
and the run folder: the plan of each phase's rounds, who adds their noise, the sentence, the ledger,
and what a run that goes on must find as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from flwr.serverapp import Grid

from privsyn_flower.config import ledger_folder
from privsyn_flower.privacy.correlated import Participation, factorization
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.privacy.promise import Phase, Promise
from privsyn_flower.progress import Progress, silent
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import Aggregation
from privsyn_flower.strategies.engine.cohort import Cohort, RoundPlan
from privsyn_flower.strategies.engine.mechanisms import AggregatorNoise, Mechanism, NodeNoise
from privsyn_flower.strategies.engine.one_question import OneQuestion, ask_once
from privsyn_flower.strategies.engine.rounds import Rounds, Strategy
from privsyn_flower.strategies.engine.run_ledger import held, ledger_scope, open_ledger, run_id

PROMISED = "promised"  # name of the value in the run folder


@dataclass(frozen=True)
class Terms:
    """A federation's public numbers, and where its ledger is; the guarantee rests on the first
    four. Names as in `RoundPlan`, and of the keys in docs/configuration.md."""

    users: int
    min_surviving_weight: float = 0.85
    colluding_weight: float = 0.0
    node_keys: Literal["first-use", "roster"] = "first-use"
    nodes: int = 1
    round_timeout: float = 600.0
    stage_timeout: float = 60.0
    node_timeout: float = 120.0
    ledger: str | Path = ""
    population_name: str = ""
    seed: int = 0
    kind: Literal["any", "simulated", "deployed"] = "any"
    seeded_noise: bool = False


@dataclass
class Session:
    """A run of a promise over `grid`, in a folder that the caller holds locked.

    said: what else the statement says (`PrivacyStatement`). kept: further values that must stay as
    they are while the run lasts, as JSON has them. keys: folder of an aggregator's noise keys.
    greeting: message type of the hello, "" for the usual one.
    """

    grid: Grid
    folder: RunFolder
    promise: Promise
    terms: Terms
    aggregation: Aggregation
    said: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    keys: Path | None = None
    greeting: str = ""
    progress: Progress = silent
    node_caches: Path | None = None

    def __post_init__(self) -> None:
        """Raises ValueError when no cohort could ever carry the guaranteed noise."""
        self.statement = self.promise.statement(
            min_surviving_weight=self.terms.min_surviving_weight,
            colluding_weight=self.terms.colluding_weight,
            aggregation=self.aggregation.name,
            keys=self.terms.node_keys,
            ledger_scope=ledger_scope(self.terms.population_name),
            **self.said,
        )

    def plan(self, phase: Phase | None = None) -> RoundPlan:
        """The public numbers of a phase's rounds; of the main one when none is named."""
        terms = {
            key: value
            for key, value in asdict(self.terms).items()
            if key not in ("node_keys", "ledger", "population_name")
        }
        terms |= {"greeting": self.greeting} if self.greeting else {}
        numbers = self.promise.round_numbers(phase or self.promise.main)
        return RoundPlan(run=run_id(self.folder), **terms, **numbers)

    def mechanism(self, phase: Phase | None = None, name: str = "") -> Mechanism:
        """Who adds the noise of a phase. name: of one question beside the rounds."""
        phase, run = phase or self.promise.main, run_id(self.folder)
        if phase.source == "nodes":
            return NodeNoise()
        keys = self.keys or noise_key_folder()
        return trusted_noise(phase, keys, f"{run}-{name}" if name else run)

    @contextmanager
    def begun(self) -> Iterator[Ledger]:
        """The run's ledger, held until the end. Raises ValueError, naming the values, when the run
        was begun with another promise: its noise is made for that, and its statement says it."""
        check_promise(self.folder, self._promised())
        self.ledger = open_ledger(
            self.folder,
            ledger=self.terms.ledger,
            population_name=self.terms.population_name,
            **self.promise.ledger_terms(simulation=self.terms.seeded_noise),
        )
        with held(self.ledger, self.folder):
            yield self.ledger

    def rounds(self, strategy: Strategy, mechanism: Mechanism | None = None) -> Rounds:
        """The engine for the main phase's rounds; inside `begun`. The promise is kept from here."""
        self.folder.save_value(PROMISED, self._promised())
        return Rounds(
            self.grid,
            strategy,
            self.plan(),
            self.folder,
            self.ledger,
            self.aggregation,
            self.progress,
            mechanism or self.mechanism(),
            self.node_caches,
        )

    def ask(
        self, question: OneQuestion, phase: str, *, number: int = 1, cohort: Cohort | None = None
    ) -> None:
        """One question of a phase beside the rounds; inside `begun`. See `ask_once`.

        number: which of the phase's it is; asked again, its release is read from disk. cohort: of
        the rounds, whose nodes are then known. Raises ValueError for one more than is paid for.
        """
        paid = self.promise[phase]
        if not 1 <= number <= paid.rounds:
            raise ValueError(f"{phase} {number}: the run has paid for {paid.rounds} of them")
        self.folder.save_value(PROMISED, self._promised())
        name = phase if paid.rounds == 1 else f"{phase}-{number:04d}"
        ask_once(
            question,
            grid=self.grid,
            folder=self.folder,
            name=name,
            plan=self.plan(paid),
            ledger=self.ledger,
            aggregation=self.aggregation,
            mechanism=self.mechanism(paid, name),
            spare=paid.spare,
            progress=self.progress,
            cohort=cohort,
            node_caches=self.node_caches,
        )

    def _promised(self) -> dict[str, Any]:
        """What must not change while a run of any method lasts, as JSON has it."""
        promised = asdict(self.statement)
        del promised["simulated"]  # known when the nodes have answered
        del promised["data"]  # a word of the sentence
        promised["epsilon"] = self.promise.target  # what it comes to is the accountant's last digit
        if not self.statement.others:  # runs that were begun before there were any go on
            del promised["others"]
        plan, mechanism = self.plan(), self.mechanism()
        promised |= {"users": plan.users, "cohort_nodes": plan.cohort_nodes}
        promised |= {"population_name": self.terms.population_name, "noise": mechanism.promise}
        promised |= self.kept
        as_stored: dict[str, Any] = json.loads(json.dumps(promised))
        return as_stored


def trusted_noise(phase: Phase, keys: Path = Path(), run: str = "") -> AggregatorNoise:
    """A trusted aggregator's noise for a phase, or for one of its questions when they are
    independent; its key in `keys` (PRIVATE) under the name `run`."""
    if phase.correlation is None or phase.participation is None:
        one, once = factorization("independent", 1), Participation(1)
        return AggregatorNoise(one, once, phase.multiplier, keys, run)
    return AggregatorNoise(phase.correlation, phase.participation, phase.multiplier, keys, run)


def check_promise(run: RunFolder, promised: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the values, unless the run was begun with the same ones."""
    stored = run.load_value(PROMISED) or promised
    changed = [
        f"{key} = {promised.get(key)!r} was {stored.get(key)!r}"
        for key in sorted({*promised, *stored})
        if promised.get(key) != stored.get(key)
    ]
    if changed:
        raise ValueError(
            f"{run.path} was begun with other values: {', '.join(changed)}; its noise is made for "
            "those: restore them, or choose another folder"
        )


def noise_key_folder() -> Path:
    """Where keys of an aggregator's noise lie by default: PRIVATE, outside of any run folder."""
    return ledger_folder().parent / "noise-keys"
