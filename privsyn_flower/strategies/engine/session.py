"""One run between its privacy plan and its rounds: as `start` and `privsyn run` both do it.

The plan (`privacy.plan`) says what a run costs; here it meets the federation's public numbers
and the run folder: the plan of each phase's rounds, who adds their noise, the sentence, the ledger,
and what a run that goes on must find as it was.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flwr.serverapp import Grid

from privsyn_flower.common.files import ledger_folder
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.privacy.accounting.calibration import infeasibilities
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.privacy.plan import Phase, PrivacyPlan
from privsyn_flower.privacy.planning import statement_of
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import Aggregation
from privsyn_flower.strategies.engine.arguments import changes
from privsyn_flower.strategies.engine.callbacks import Callbacks
from privsyn_flower.strategies.engine.cohort import Cohort, RoundPlan, TooFewNodes
from privsyn_flower.strategies.engine.mechanisms import Mechanism, NodeNoise
from privsyn_flower.strategies.engine.one_question import OneQuestion
from privsyn_flower.strategies.engine.record import claim_record, code, write_statement
from privsyn_flower.strategies.engine.rounds import Method, NoRelease, Rounds
from privsyn_flower.strategies.engine.run_ledger import (
    discard_if_uncharged,
    exclusive_ledger,
    ledger_scope,
    open_ledger,
    run_id,
)

if TYPE_CHECKING:
    from privsyn_flower.strategies.engine.aggregator_noise import AggregatorNoise

INVARIANTS = "promised"  # name of the value in the run folder
ARGUMENTS = "arguments"  # another: of its first start
FAILED = "failed"  # why a question gave nothing, in its folder: it is not asked again

logger = logging.getLogger("flwr")  # the log that Flower shows in every app


@dataclass(frozen=True)
class FederationSpec:
    """A federation's public numbers, and where its ledger is; the guarantee rests on the first
    four, and on groups: name -> (users, nodes) of those that phases name. Names as in `RoundPlan`,
    and of the keys in docs/configuration.md."""

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
    groups: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Session:
    """A run of a privacy plan over `grid`, in a folder that the caller holds locked.

    statement_fields: what else the statement says (`PrivacyStatement`). invariants: further values
    that must not change while the run lasts, as JSON. keys: folder of an aggregator's noise keys.
    greetings: message types of the hello. callbacks: told of releases.
    arguments: of the strategy and of `start`, in words; another start is told what differs.
    """

    grid: Grid
    folder: RunFolder
    privacy_plan: PrivacyPlan
    spec: FederationSpec
    aggregation: Aggregation
    statement_fields: Mapping[str, Any] = field(default_factory=dict)
    invariants: Mapping[str, Any] = field(default_factory=dict)
    keys: Path | None = None
    greetings: tuple[str, ...] = RoundPlan.greetings
    progress: Progress = silent
    callbacks: Callbacks = field(default_factory=Callbacks)
    arguments: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError when no cohort could ever carry the guaranteed noise."""
        self.statement = statement_of(
            self.privacy_plan,
            min_surviving_weight=self.spec.min_surviving_weight,
            colluding_weight=self.spec.colluding_weight,
            aggregation=self.aggregation.name,
            keys=self.spec.node_keys,
            ledger_scope=ledger_scope(self.spec.population_name),
            **self.statement_fields,
        )

    def warn_if_infeasible(self, noise: float, answers: float, **words: str) -> None:
        """Warn, in Flower's log, of numbers that cannot give much; arguments: `infeasibilities`."""
        epsilon, delta, users = self.privacy_plan.target, self.privacy_plan.delta, self.spec.users
        for infeasibility in infeasibilities(
            epsilon=epsilon, delta=delta, users=users, noise=noise, answers=answers, key="users",
            **words,
        ):  # fmt: skip
            logger.warning("%s", infeasibility.text)

    def write_statement(self) -> None:
        """The whole of it, as the run folder's privacy.md and privacy.yaml."""
        write_statement(self.folder.path, self.statement, self.known())

    def known(self) -> dict[str, Any]:
        """What is known of a run before anything is asked: its code, users and claim."""
        return {**code(), "users": self.spec.users, **claim_record(self.statement)}

    def plan(self, phase: Phase | None = None) -> RoundPlan:
        """The public numbers of a phase's rounds; of the main one when none is named."""
        spec = {
            key: value
            for key, value in asdict(self.spec).items()
            if key not in ("node_keys", "ledger", "population_name", "groups")
        }
        spec["greetings"] = self.greetings
        phase = phase or self.privacy_plan.main
        if phase.group:  # all who are assumed colluding may be in this one
            spec["colluding_users"] = math.ceil(spec["colluding_weight"] * spec["users"] - 1e-9)
            spec["users"], spec["nodes"] = self.spec.groups[phase.group]
        return RoundPlan(
            run=run_id(self.folder),
            noise_multiplier=phase.equivalent,
            spare_rounds=phase.spare,
            sampling_rate=phase.rate,
            cohort_nodes=phase.sampler.nodes,
            cycle=phase.cycle,
            distance=self.privacy_plan.distance,
            group=phase.group,
            **spec,
        )

    def mechanism(self, phase: Phase | None = None, name: str = "") -> Mechanism:
        """Who adds the noise of a phase. name: of one question beside the rounds."""
        phase, run = phase or self.privacy_plan.main, run_id(self.folder)
        if phase.matrix is not None:
            from privsyn_flower.strategies.engine.matrix_noise import MatrixNoise

            return MatrixNoise(phase.matrix, phase.multiplier, self.folder)
        if phase.source == "nodes":
            return NodeNoise()
        keys = self.keys or noise_key_folder()
        return trusted_noise(phase, keys, f"{run}-{name}" if name else run)

    @contextmanager
    def begun(self) -> Iterator[Ledger]:
        """The run's ledger, locked until the end. Raises ValueError, naming the values, when
        the run was begun with other invariants: its noise and its statement are for those.
        A run with other arguments that has no charge yet begins anew."""
        before = self.folder.load_value(ARGUMENTS) or self.arguments
        self._changes = changes(before, self.arguments)
        if self._changes and discard_if_uncharged(self.folder):
            self._changes = []
        check_invariants(self.folder, self._invariants())
        self.ledger = open_ledger(
            self.folder,
            ledger=self.spec.ledger,
            population_name=self.spec.population_name,
            **self.privacy_plan.ledger_terms(simulation=self.spec.seeded_noise),
        )
        if self.arguments and self.folder.load_value(ARGUMENTS) is None:
            self.folder.save_value(ARGUMENTS, dict(self.arguments))
        with exclusive_ledger(self.ledger, self.folder):
            yield self.ledger

    def rounds(self, strategy: Method) -> Rounds:
        """The engine for the main phase's rounds; inside `begun`. Stores the invariants."""
        self._save_invariants()
        plan = self.plan()
        plan = replace(plan, spare_rounds=max(0, plan.spare_rounds - self._borrowed()))
        return Rounds(
            self.grid,
            strategy,
            plan,
            self.folder,
            self.ledger,
            self.aggregation,
            self.progress,
            self.mechanism(),
            self.callbacks,
            self.privacy_plan.main.name,
        )

    @contextmanager
    def running(self, strategy: Method) -> Iterator[Rounds]:
        """`rounds` as `start` runs them; the statement then tells of the nodes that were there."""
        engine = self.rounds(strategy)
        self._tell_begun(strategy.rounds)
        self._state(engine)
        yield engine
        self._state(engine)

    def _tell_begun(self, rounds: int) -> None:
        """Say in Flower's log that a folder has rounds already, and what differs from then."""
        rows, differs = self.folder.metrics(), list(self._changes)
        if not rows:
            return
        here, then = len(list(self.grid.get_node_ids())), self.folder.load_value("weights") or {}
        if then and here != len(then):
            differs.append(f"{here} nodes are connected, were {len(then)}")
        text = "; ".join(differs) or "no argument differs from then"
        place, done = self.folder.path, len(rows)
        if done < rounds:
            logger.info("%s goes on after round %d of %d: %s", place, done, rounds, text)
            return
        logger.warning(
            "%s is complete already, nothing was asked, and its first result comes back (%s). For "
            "another run name another folder: one for each context.run_id",
            place,
            text,
        )

    def _state(self, engine: Rounds) -> None:
        """Say whether every node is simulated; remembered, as a finished run greets nobody, and
        one that has asked devices once is no simulation any more."""
        if facts := engine.cohort.nodes.values():
            deployed = any(node.deployed for node in facts)
            before = self.folder.load_value("simulated")
            self.folder.save_value("simulated", not deployed and before is not False)
        simulated = self.folder.load_value("simulated") is True
        cluster = simulated and (in_cluster() or self.folder.load_value("cluster") is True)
        if cluster:  # also where a resume is back on one machine
            self.folder.save_value("cluster", True)
        self.statement = replace(self.statement, simulated=simulated, cluster=cluster)
        self.write_statement()

    def ask(
        self,
        question: OneQuestion,
        phase: str,
        *,
        name: str = "",
        last: bool = False,
        cohort: Cohort | None = None,
    ) -> None:
        """Fill in the release of a phase's question, from disk when it was made; inside `begun`.

        name: of its folder, `evaluations/NAME`, and of the run that is charged, RUN-NAME; "" for
        the phase's. last: of an evaluation that no round follows; attempts of it may fail that the
        rounds have left of their spares, which cost as much, beside those of the phase. cohort: of
        the rounds, whose nodes and weights are then known, and nobody else is waited for; None, or
        one that has greeted nobody yet, greets them. Raises as `Rounds.run`, but an evaluation
        beside other questions that gave nothing is given up: NoRelease, now and always. Raises
        ValueError for one more than is paid for, and when NAME was another question.
        """
        paid, name = self.privacy_plan[phase], name or phase
        if Path(name).name != name or name == "..":
            raise ValueError(f"{name!r} must be the name of a folder, of one part")
        if len(self.query_names(phase) - {name}) >= paid.rounds:
            raise ValueError(f"{name}: the run has paid for {paid.rounds} of {phase!r}, all begun")
        self._save_invariants()
        own = RunFolder(self.folder.path / "evaluations" / name)
        if own.load_value("asked") not in (None, question.digest()):
            raise ValueError(
                f"{own.path} holds an evaluation of other models, or with another config: give it "
                "those, or choose another name"
            )
        own.save_value("phase", phase)
        own.save_value("asked", question.digest())
        spare = paid.spare - self._failed(self.query_names(phase) - {name})
        beside = self._beside(paid)
        spare += self.unused_spares(name) if last and beside else 0
        engine = self._engine(question, paid, own, max(0, spare), cohort)
        greeted = bool(engine.cohort.nodes)  # not where a resume begins with the question
        try:
            if failed := own.load_value(FAILED):
                raise NoRelease(failed)
            engine.run()
        except (NoRelease, TooFewNodes) as error:
            waits = isinstance(error, TooFewNodes) and not greeted  # they may still come
            if waits or not beside:
                raise
            own.save_value(FAILED, str(error))
            engine.mechanism.close(complete=True)  # nobody asks again: the key of its noise goes
            raise NoRelease(str(error)) from error

    def _engine(
        self,
        question: OneQuestion,
        paid: Phase,
        own: RunFolder,
        spare: int,
        cohort: Cohort | None,
    ) -> Rounds:
        """Of one question; where nodes are drawn, other ones than for the rounds.

        What an evaluation says is taken as it comes, and no check looks at it: whose data fails
        must not choose the result.
        """
        plan, name = self.plan(paid), own.path.name
        whole = plan.run
        plan = replace(
            plan,
            run=f"{whole}-{name}",
            seed=int(seeded(plan.seed, name).integers(2**31)),
            spare_rounds=spare,
        )

        def progress(stage: str, done: float, total: float, note: str = "") -> None:
            self.progress(name if stage == "rounds" else stage, done, total, note)

        mechanism = self.mechanism(paid, name)
        engine = Rounds(
            self.grid, question, plan, own, self.ledger, self.aggregation, progress, mechanism,
            self.callbacks.observers() if self._beside(paid) else self.callbacks, name, whole,
        )  # fmt: skip
        known = {} if cohort is None else {"nodes": cohort.nodes, "beyond": cohort.beyond}
        engine.cohort = Cohort(self.grid, plan, self.folder, progress, **known)
        return engine

    def _beside(self, paid: Phase) -> bool:
        """Whether it only measures what the run is about."""
        return paid.evaluates and paid is not self.privacy_plan.main

    def query_names(self, phase: str) -> set[str]:
        """Names of the questions of a phase that were begun; of any, when the folder is gone."""
        found, of = set(), dict[str, object]()
        for path in (self.folder.path / "evaluations").glob("*/"):
            # Earlier versions noted no phase, and named an app's evaluation-0003.
            of[path.name] = RunFolder(path).load_value("phase") or path.name.partition("-")[0]
        for name in {*of, *self._charged()}:
            found |= {name} if of.get(name, phase) == phase else set()
        return found

    def unused_spares(self, name: str = "") -> int:
        """Attempts that may fail of a question after the rounds: what they, and the questions
        beside them but for `name`, have left of theirs, which is paid for. None of a trusted
        aggregator, whose failed attempts cost nothing, and of rows that were paid for once more,
        which cost a user less than a question of its own."""
        main = self.privacy_plan.main
        if main.source == "aggregator" or main.correlation is not None:
            return 0
        charges = self.ledger.charges(run=run_id(self.folder))
        failed = sum(charge.state == "reserved" for charge in charges)
        return max(0, main.spare - failed - self._borrowed(name))

    def _borrowed(self, without: str = "") -> int:
        """Spare attempts of the rounds that questions beside them, but for one, have used."""
        main = self.privacy_plan.main
        if main.source == "aggregator" or main.correlation is not None:
            return 0
        used = 0
        for phase in self.privacy_plan.phases:
            names = self.query_names(phase.name) - {without}
            used += max(0, self._failed(names) - phase.spare) if phase.evaluates else 0
        return used

    def _failed(self, names: set[str]) -> int:
        """Attempts of these questions that were charged beyond one each."""
        charged = self._charged()
        return sum(max(0, charged[name] - 1) for name in names)

    def _charged(self) -> Counter[str]:
        """Attempts that are charged, by the name of the question beside the rounds."""
        run = f"{run_id(self.folder)}-"
        charges = (charge for charge in self.ledger.charges() if charge.state != "void")
        return Counter(c.run.removeprefix(run) for c in charges if c.run.startswith(run))

    def _save_invariants(self) -> None:
        if self.folder.load_value(INVARIANTS) is None:
            self.folder.save_value(INVARIANTS, self._invariants())

    def _invariants(self) -> dict[str, Any]:
        """What must not change while a run of any method lasts, as JSON has it."""
        invariants = asdict(self.statement)
        del invariants["simulated"], invariants["cluster"]  # known when the nodes have answered
        del invariants["data"], invariants["changed"], invariants["carries"]  # the sentence's words
        invariants["epsilon"] = self.privacy_plan.target  # the spent one is the accountant's digit
        del invariants["rho_zcdp"]  # follows from the noise, which is an invariant
        invariants["groups"] = dict(self.spec.groups)  # what each pays is the accountant's, too
        for name in ("others", "chooses_text", "groups"):
            if not invariants[name]:  # runs that were begun before there was such a thing go on
                del invariants[name]
        plan, mechanism = self.plan(), self.mechanism()
        invariants |= {"users": plan.users, "cohort_nodes": plan.cohort_nodes}
        invariants |= {"population_name": self.spec.population_name, "noise": mechanism.binding}
        invariants |= self.invariants
        as_stored: dict[str, Any] = json.loads(json.dumps(invariants))
        return as_stored


def in_cluster() -> bool:
    """Whether Flower's simulation, if this is one, has the machines of a Ray cluster of the user's:
    RAY_ADDRESS is what its Ray goes by, and "local" is one of its own."""
    return os.environ.get("RAY_ADDRESS", "").strip() not in ("", "local")


def trusted_noise(phase: Phase, keys: Path = Path(), run: str = "") -> AggregatorNoise:
    """A trusted aggregator's noise for a phase, or for one of its questions when they are
    independent; its key in `keys` (PRIVATE) under the name `run`."""
    from privsyn_flower.privacy.correlated import Participation, factorization
    from privsyn_flower.strategies.engine.aggregator_noise import AggregatorNoise

    if phase.factorization is None or phase.participation is None:
        one, once = factorization("independent", 1), Participation(1)
        return AggregatorNoise(one, once, phase.multiplier, keys, run)
    return AggregatorNoise(phase.factorization, phase.participation, phase.multiplier, keys, run)


WORDS = {"benchmark", "rival", "split"}  # of the sentence alone: what they tell is in other keys


def check_invariants(run: RunFolder, invariants: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the values, unless the run was begun with the same ones."""
    stored = run.load_value(INVARIANTS)
    if stored is None:
        if run.has_rounds():
            raise ValueError(
                f"{run.path} holds rounds, but checkpoints/{INVARIANTS}.json is missing, so "
                "nothing says what their noise was made for: put it back, or start a new run in "
                "another folder"
            )
        return
    changed = [
        f"{key} = {invariants.get(key)!r} was {stored.get(key)!r}"
        for key in sorted({*invariants, *stored} - WORDS)
        if invariants.get(key) != stored.get(key)
    ]
    if changed:
        raise ValueError(
            f"{run.path} was begun with other values: {', '.join(changed)}; its noise is made for "
            "those: restore them, or choose another folder"
        )


def noise_key_folder() -> Path:
    """Where keys of an aggregator's noise lie by default: PRIVATE, outside of any run folder."""
    return ledger_folder().parent / "noise-keys"
