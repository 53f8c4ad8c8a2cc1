"""The numbers of a run: keys that exclude each other, what noise leaves, what the ledger has; and
the noise of a release beside what the users' answers come to (`privsyn plan`'s first lines).

That is in units of the released sum. The answers are bounded, so the most that they can come to is
known before anything is asked; what they will come to is not, and nothing here guesses it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.config import EvolutionConfig, RunConfig, split_list
from privsyn_flower.privacy.accounting.calibration import infeasibilities
from privsyn_flower.privacy.encoding.dense import DensePlan
from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.privacy.encoding.sizing import WrapAround
from privsyn_flower.privacy.ledger import Ledger, LedgerError
from privsyn_flower.privacy.ledger.usage import affordable_charges
from privsyn_flower.privacy.plan import ROUNDS, Phase, PrivacyPlan
from privsyn_flower.privacy.planning import summed_std
from privsyn_flower.privacy.wording import at_most
from privsyn_flower.protocol.noise import matrix_options
from privsyn_flower.protocol.packing import LARGEST
from privsyn_flower.protocol.question import OptionValue, Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods import check_controls, recipe_of
from privsyn_flower.server_apps.methods.training import training_strategy
from privsyn_flower.server_apps.privacy_plan import ledger_terms, privacy_plan
from privsyn_flower.server_apps.public_text import check_deployment
from privsyn_flower.server_apps.readiness import missing
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.matrix_noise import charged_norms
from privsyn_flower.strategies.engine.mechanisms import encoding_of
from privsyn_flower.strategies.engine.run_ledger import own_ledger, shared_ledger
from privsyn_flower.strategies.engine.session import trusted_noise
from privsyn_flower.strategies.evaluation.config import MeasureConfig
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.text.embedders import known_dimension

from .findings import Finding, Findings


def keys(config: RunConfig) -> Findings:
    """Values that only fail together, and that no single key's bounds exclude."""
    check_deployment(config)
    yield from map(Finding, recipe_of(config).faults(config))
    check_controls(config)


def check_privacy(config: RunConfig) -> Findings:
    """The noise against the users who answer, and delta against 1 / users."""
    noise, answers, summed = noise_of(config)
    for infeasibility in infeasibilities(
        epsilon=config.epsilon,
        delta=config.delta,
        users=config.data.users,
        noise=noise,
        answers=answers,
        summed=summed,
    ):
        yield Finding(infeasibility.text, infeasibility.hopeless)


def noise_of(config: RunConfig) -> tuple[float, float, str]:
    """Standard deviation of the noise in bounds of one answer, answers in the sum, which sum."""
    users, rounds = config.round_users, config.rounds
    if not config.updates:
        drawn = config.cohort_nodes / config.nodes if config.cohort_nodes else 1.0
        return (
            privacy_plan(config).main.multiplier,
            users * config.sampling_rate * drawn,
            "a released sum",
        )
    # A model is the sum of its rounds: what counts is the noise of all of them together.
    answers = training_strategy(config).expected_users(users, config.nodes) * rounds
    summed = f"the sum of all {rounds} rounds"
    if not (config.trusts_aggregator or config.sends_rows):
        return summed_std(privacy_plan(config).main), answers, summed
    if missing("scipy"):  # `libraries` says so
        return 0.0, answers, summed
    if config.ftrl.mechanism in ("blt", "banded-optimised"):
        # To optimise coefficients takes seconds; those of the square root are nearly as good.
        like = config.ftrl.model_copy(update={"mechanism": "banded"})
        config = config.model_copy(update={"ftrl": like})
    return summed_std(privacy_plan(config, checked=False).main), answers, summed


def integers(config: RunConfig) -> Findings:
    """Whether there are integers in which the nodes' noise is what it is charged as.

    Of a model's length nothing is known yet; what is impossible for one coordinate is for more.
    """
    if config.trusts_aggregator:
        return
    try:
        encoding(config, recipe_of(config).length(config))
        for phase in privacy_plan(config).phases:
            if phase.group:  # asked after others have paid
                encoding(config, 1, phase)
    except WrapAround as error:
        yield Finding(str(error))


def encoding(config: RunConfig, length: int, phase: Phase | None = None) -> IntegerPlan | DensePlan:
    """The integers of answers of so many coordinates, a round's or those of a group's phase. Raises
    WrapAround when there are none whose sum and noise are what the privacy plan says."""
    users, main = config.round_users, privacy_plan(config).main
    if phase is not None and phase is not main:
        users, main = config.own.groups(config)[phase.group][0], phase
    if config.cohort_nodes:
        users = max(1, users * config.cohort_nodes // config.nodes)
    plan = RoundPlan(
        run="",
        users=users,
        noise_multiplier=main.multiplier,
        min_surviving_weight=config.min_surviving_weight,
        nodes=config.cohort_nodes or config.nodes,
        sampling_rate=main.rate,
        distance=privacy_plan(config).distance,
    )
    dense = config.updates and main is privacy_plan(config).main
    options: dict[str, OptionValue] = {"encoding": "dense"} if dense else {}
    options |= matrix_options(main.matrix) if main.matrix else {}
    rows, scales = np.zeros((0, 0), dtype=np.int8), np.zeros(0, dtype=np.float32)
    query = Query("", rows, scales, length, 1.0, "", options)
    if config.trusts_aggregator:
        return trusted_noise(main).encoding(plan, query)
    return encoding_of(plan, query, plan.noise_multiplier)


def everybody(config: RunConfig) -> Findings:
    """Whether a round of rows outlives the loss of one node, of those who share users evenly."""
    users = config.data.users
    needed = config.min_surviving_weight * users + config.colluding_weight * users
    if config.sends_rows and users - math.ceil(users / config.nodes) < math.ceil(needed - 1e-9):
        yield Finding(
            f"min-surviving-weight = {config.min_surviving_weight:g} and colluding-weight = "
            f"{config.colluding_weight:g} of data.users = {users} on nodes = {config.nodes}: no "
            "node may be missing in any round, or the round is asked again (spare-rounds = "
            f"{config.spare_rounds}): lower min-surviving-weight",
            fatal=False,
        )


def candidates(config: RunConfig) -> Findings:
    """Whether nodes take a question of so many candidates, where their dimension is known."""
    recipe, embedder = recipe_of(config), config.models.embedder
    length, width = recipe.candidates(config), known_dimension(embedder)
    if length and width and length * width > LARGEST:
        yield Finding(
            f"{length:,} candidates of {width:,} dimensions (models.embedder = {embedder!r}) are "
            f"{length * width:,} numbers, and nodes refuse a question of more than {LARGEST:,}: "
            f"lower {recipe.length_keys}, or take an embedder of {LARGEST // length:,} dimensions "
            "at most"
        )


def budget(config: RunConfig, folder: Path, *, resumed: bool = False) -> Findings:
    """What an existing ledger has left, against the releases that are still to come."""
    run = _run_id(folder)
    path = shared_ledger(config.ledger, config.population_name) or own_ledger(run)
    if not path.exists() or not path.stat().st_size:
        return
    if config.trusts_aggregator and missing("scipy"):
        return
    population = config.population_name or f"run {run}"
    try:
        ledger = Ledger.open(path, population=population, **ledger_terms(config))
    except LedgerError:
        if resumed:  # the ServerApp names the keys that changed since the run began
            return
        raise
    wanted = _charges(config, _released(folder), run)
    room = affordable_charges(ledger, wanted, run=run)
    total = ledger.header.total_epsilon
    if room is None or total is None or room >= len(wanted):
        return
    spent = ledger.spent_epsilon()
    whose = f"population {config.population_name!r}" if config.population_name else "this run"
    facts = (
        f"the ledger of {whose} ({path}) has spent epsilon = {at_most(spent)} of "
        f"{at_most(total)} and has room for {room} of {len(wanted)} releases at this noise"
    )
    if room or resumed:  # a begun run ends with the rounds that it has
        yield Finding(f"{facts}: the run will end early", fatal=False)
    else:
        way = f"set a smaller epsilon beside ledger-epsilon = {at_most(total)}"
        yield Finding(f"{facts}: {way}, or ask another population")


def _run_id(folder: Path) -> str:
    """The begun run's name in the ledger; "" before it has one."""
    path = folder / "checkpoints" / "run.json"
    return str(json.loads(path.read_text("utf-8"))) if path.exists() else ""


def _released(folder: Path) -> Counter[str]:
    """Releases that a run has, by the name of their phase."""
    found = Counter({ROUNDS: len(list(folder.glob("releases/round-*")))})
    for path in folder.glob("evaluations/*/"):
        if any(path.glob("releases/round-*")):
            # Earlier versions noted no phase: a question was called after it.
            found[RunFolder(path).load_value("phase") or path.name.partition("-")[0]] += 1
    return found


def _charges(config: RunConfig, released: Mapping[str, int], run: str) -> list[Mapping[str, Any]]:
    """What the ledger is still asked for, release by release; spare rounds left out."""
    made, wanted = privacy_plan(config), list[Mapping[str, Any]]()
    for phase in made.phases:
        group = phase.group and f"{run or 'new'}/{phase.group}"
        left = _of_phase(made, phase)[released.get(phase.name, 0) :]
        wanted += [{**charge, "group": group} for charge in left]
    return wanted


def _of_phase(plan: PrivacyPlan, phase: Phase) -> list[Mapping[str, Any]]:
    if phase.matrix is not None:
        norms = charged_norms(phase.matrix)
        return [
            {"noise_multiplier": phase.multiplier / norm, "total_variation": plan.distance}
            for norm in norms
        ]
    if phase.source == "aggregator":
        apart = phase.rounds if phase.correlation is None else 1
        return [{"noise_multiplier": z} for z in trusted_noise(phase).charged() * apart]
    charge = {
        "noise_multiplier": phase.multiplier,
        "sampling_rate": phase.rate,
        "total_variation": plan.distance,  # at most
    }
    return [charge] * phase.rounds


SURE = 1.96  # standard deviations of an interval
NEAREST = (
    "votes are for the nearest text, however far: they do not tell whether public text is of the "
    "users' domain"
)
MOST_EPSILON = 64  # times the run's: a larger one is no advice


@dataclass(frozen=True)
class Signal:
    """noise: standard deviation of one coordinate of what is released. expected: what the answers
    come to there, under the assumption that `assumed` states. users: of a round, on average.
    rounds: how many of them are in the sum."""

    kind: str
    unit: str
    noise: float
    expected: float
    users: float
    assumed: str
    note: str = ""
    rounds: int = 1

    @property
    def ratio(self) -> float:
        """Expected signal over noise."""
        return self.expected / self.noise if self.noise else math.inf

    def first(self) -> str:
        """Both numbers and what was assumed."""
        times = f" x {self.rounds} rounds" if self.rounds > 1 else ""
        return (
            f"noise {self.noise:,.4g}, signal {self.expected:,.4g} {self.unit}: ratio "
            f"{self.ratio:,.3g} ({self.assumed}; {self.users:,.0f} users{times} in the sum)"
        )

    def lines(self) -> list[str]:
        """In words."""
        ratio = (
            "the ratio is the signal in standard deviations of the noise; it is readable from "
            f"{SURE} on, {'as here' if self.readable else 'which it is not here'}"
        )
        return [self.first(), ratio, *([self.note] if self.note else [])]

    @property
    def readable(self) -> bool:
        """Whether it stands out of the noise at 95 %."""
        return self.ratio >= SURE


def weak(config: RunConfig, signal: Signal, coordinates: int | None) -> Findings:
    """A signal that the noise would cover, and what would make it readable."""
    if signal.readable:
        return
    users = math.ceil(config.data.users * SURE / signal.ratio)
    ways = [f"about {users:,} users (data.users = {config.data.users:,})"]
    if epsilon := _readable_from(config, coordinates):
        ways.append(f"epsilon = {epsilon:.3g} at these users")
    ways.append("fewer models" if signal.kind == "evaluation" else "fewer numbers in an answer")
    yield Finding(
        f"the signal ({signal.kind}) is {signal.ratio:.3g} times the noise, and is not surely "
        f"readable below {SURE}: the result may follow the noise more than the users, and be worse "
        f"than public text alone. It takes {', or '.join(ways)}",
        fatal=False,
    )


def _readable_from(config: RunConfig, coordinates: int | None) -> float | None:
    """The epsilon from which the signal is readable, to three digits; None: none that is known."""

    def readable(epsilon: float) -> bool:
        other = config.model_copy(update={"epsilon": epsilon})
        return signal_of(other, coordinates).readable

    low, high = config.epsilon, config.epsilon
    try:
        while not readable(high):
            low, high = high, 2 * high
            if high > MOST_EPSILON * config.epsilon:
                return None
        while high > 1.01 * low:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if readable(middle) else (middle, high)
    except ValueError:  # numbers without a privacy plan
        return None
    return math.ceil(high * 100) / 100


def signal_of(config: RunConfig, coordinates: int | None) -> Signal:
    """The signal of a configuration with rounds. coordinates: of an update, where the model's size
    is known."""
    kind, asked = recipe_of(config).question(config)
    if kind == "update":
        return _update(config, coordinates)
    _, users, _ = noise_of(config)
    bound = float(asked["bound"])
    noise = privacy_plan(config).main.multiplier * bound
    if kind == "evaluation":
        return _evaluation(config, users, noise)
    size = recipe_of(config).length(config)
    if kind == "votes":
        return votes_signal(config, asked, users, noise, size)
    classes = max(1, len(split_list(config[PopriConfig].labels)))
    expected = bound * users / math.sqrt(size * classes)
    return Signal(
        "scores", "a response", noise, expected, users,
        "root mean square of the scores' sum, when all users score alike",
        f"when they agree less, it shrinks as their agreement does: below {noise / expected:.2%} "
        "of it a response does not stand out by one standard deviation",
    )  # fmt: skip


def _evaluation(config: RunConfig, users: float, noise: float) -> Signal:
    """Accuracy is a quotient whose denominator is the tokens, counted in users' caps."""
    ratio = users / noise
    sure = ratio > SURE
    note = (
        f"an accuracy's 95 % interval is then about +- {SURE / ratio:.2g}; wider, as users hold "
        "less text" if sure else "no figure would have an interval: raise epsilon or users, or "
        "measure fewer models"
    )  # fmt: skip
    most = config[MeasureConfig].tokens(config)
    return Signal(
        "evaluation", "users' caps of tokens", noise, users, users,
        f"when every user has {most:,} tokens to predict or more", note,
    )  # fmt: skip


def votes_signal(
    config: RunConfig, options: Mapping[str, Any], users: float, noise: float, size: int
) -> Signal:
    """Of a vote among so many candidates, whose clipping `options` has."""
    votes = one_users_votes(
        options.get("clip", "normalised"),
        float(options["bound"]),
        min(size, config.data.samples_per_user * options.get("neighbors", 1)),
    )
    return Signal(
        "votes", "votes a candidate", noise, users * votes / size, users,
        f"the mean over {size:,} candidates, when every user has data.samples-per-user = "
        f"{config.data.samples_per_user} texts and votes for as many candidates",
        "; ".join(filter(None, [_threshold(config, noise), NEAREST])),
    )  # fmt: skip


def one_users_votes(clip: str, bound: float, votes: int) -> float:
    """Sum of one user's clipped votes for so many different candidates (`queries.votes`).

    Counts of 1 have the norm sqrt(n): normalised to the bound they sum to bound sqrt(n), clipped
    to it to n min(1, bound / sqrt(n)).
    """
    norm = math.sqrt(votes)
    return votes * (bound / norm if clip == "normalised" else min(1.0, bound / norm))


def _threshold(config: RunConfig, noise: float) -> str:
    """What the threshold is in both units."""
    if not config.owns(EvolutionConfig):
        return ""
    own = config.evolution
    votes = own.threshold * (noise if own.threshold_unit == "noise-std" else 1.0)
    return f"threshold {votes:,.4g} votes, {votes / noise:.2f} standard deviations of the noise"


def _update(config: RunConfig, coordinates: int | None) -> Signal:
    """A model is the sum of its rounds: of all of them together, in units of clip-norm."""
    noise, answers, summed = noise_of(config)
    clip = config.training.clip_norm
    if coordinates is None:
        note = (
            f"over the whole vector: unknown, the size of models.{config.trained} is not known here"
        )
    else:
        whole = noise * math.sqrt(coordinates)
        note = (
            f"over the whole vector of {coordinates:,} coordinates the noise has the norm "
            f"{whole * clip:,.4g}: ratio {answers / whole:,.3g}"
        )
    return Signal(
        "update", f"in one direction, of {summed}", noise * clip, answers * clip,
        answers / config.rounds,
        f"every update at training.clip-norm = {clip:g} and in that direction", note, config.rounds,
    )  # fmt: skip
