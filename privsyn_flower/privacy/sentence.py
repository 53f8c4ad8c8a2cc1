"""The sentence that goes with every epsilon: what it protects, against whom, and what not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from privsyn_flower.privacy.accounting.composition import Accountant, tightest
from privsyn_flower.privacy.accounting.sampling import SamplerName, check_sampler
from privsyn_flower.privacy.noise.integer_noise import SHARE_OF_DELTA, gaussian_delta
from privsyn_flower.privacy.wording import (
    ACCOUNTS,
    CARRIES,
    CHOSEN_TEXT,
    KEYS,
    ROWS,
    USERS,
    SplitName,
    assumed,
    at_least,
    at_most,
    changed_since,
    concentrated,
    in_groups,
    page,
    percent,
    sampling_sentence,
)

FILE = "privacy.md"  # of a run folder: the whole statement
_NOISE = {"nodes": "integer (discrete Gaussian)", "aggregator": "Gaussian"}


@dataclass(frozen=True)
class PrivacyStatement:
    """What a run claims. All fields are public.

    epsilon, delta: of the run, for the guaranteed noise, never for the actual survivors.
    noise_multiplier: guaranteed noise std / bound of one user's vector. rounds, spare_rounds:
    releases paid for. min_surviving_weight, colluding_weight: shares of the declared population's
    weight. sampling_rate: what epsilon was computed with, for poisson. keys and consistency: how
    nodes check each other's keys and the server's lists (secure aggregation). ledger_scope: "run"
    for a ledger made for this run, "population" for one that spans runs. simulated: one machine
    played all parties, or with cluster those of a Ray cluster. split: how a simulation's users came
    about (`USERS`). benchmark: held-out text was opened to measure the result. evaluations:
    releases beside the rounds that compare models on the nodes; with rounds = 0 all there are, and
    spare_rounds is theirs. private_selection: a checkpoint was chosen by private text, without
    noise. rival: another method was simulated for the benchmark. data: what users have.
    noise_source: "aggregator" where the nodes add none; noise_multiplier is then that of
    independent noise which costs a user as much for each participation. correlated: name of the
    mechanism that correlates noise across rounds. min_separation, max_participations: what the
    nodes enforce for each user (0: as many as fit); participations: most rounds of one user that
    epsilon counts (0: from those two). adaptive_clipping: one coordinate of the answer says whether
    the clip norm was reached. others: further questions of the run (name, releases, noise
    multiplier, noise source, sampling rate), covered by the same epsilon. groups: of users (name,
    epsilon, questions), each in one. rho_zcdp: of all releases, without sampling; None: none is
    claimed. chooses_text: the model filters public text. changed: keys changed after the start.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    rounds: int
    spare_rounds: int
    min_surviving_weight: float
    colluding_weight: float = 0.0
    aggregation: Literal["plain", "secure"] = "plain"
    sampler: SamplerName = "full"
    sampling_rate: float = 1.0
    keys: Literal["roster", "first-use"] = "first-use"
    consistency: Literal["signed"] = "signed"
    ledger_scope: Literal["run", "population"] = "run"
    simulated: bool = False
    cluster: bool = False
    split: SplitName = "unknown"
    simulation_seeded: bool = False
    benchmark: bool = False
    evaluations: int = 0
    private_selection: bool = False
    rival: bool = False
    data: Literal["texts", "data"] = "texts"
    noise_source: Literal["nodes", "aggregator"] = "nodes"
    correlated: str = ""
    min_separation: int = 1
    max_participations: int = 0
    participations: int = 0
    adaptive_clipping: bool = False
    others: tuple[tuple[str, int, float, str, float], ...] = ()
    groups: tuple[tuple[str, float, tuple[str, ...]], ...] = ()
    rho_zcdp: float | None = None
    chooses_text: bool = False
    changed: tuple[str, ...] = ()
    carries: str = ""
    unit: Literal["user"] = "user"
    adjacency: Literal["zero-out"] = "zero-out"

    def __post_init__(self) -> None:
        """Raises ValueError on a value that the sentence has no words for."""
        allowed: dict[str, tuple[str, ...]] = {
            "aggregation": ("plain", "secure"),
            "keys": tuple(KEYS),
            "consistency": ("signed",),
            "ledger_scope": ("run", "population"),
            "split": tuple(USERS),
            "data": ("texts", "data"),
            "noise_source": ("nodes", "aggregator"),
            "unit": ("user",),
            "adjacency": ("zero-out",),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be one of {values}")
        check_sampler(self.sampler, self.sampling_rate)
        self._check_source()
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon = {self.epsilon} must be at least 0")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta = {self.delta} must be above 0 and below 1")

    def _check_source(self) -> None:
        if self.min_separation < 1 or min(self.max_participations, self.participations) < 0:
            raise ValueError(
                f"min_separation = {self.min_separation} must be at least 1, max_participations = "
                f"{self.max_participations} and participations = {self.participations} at least 0"
            )
        if self.noise_source == "nodes":
            most = self.most_participations
            if self.sampler != "full" if self.correlated else most < self.rounds:
                raise ValueError(
                    f"correlated = {self.correlated!r}, sampler = {self.sampler!r}, participations "
                    f"= {most} of {self.rounds} rounds: nodes' noise is for all rounds of a user, "
                    "or correlated without a sampler"
                )
        elif self.sampler == "poisson" or self.simulation_seeded:
            raise ValueError(
                f"sampler = {self.sampler!r}, simulation_seeded = {self.simulation_seeded}: an "
                "aggregator's noise is from a secret key, and claims no amplification"
            )

    @property
    def most_participations(self) -> int:
        """Most rounds that one user takes part in."""
        fits = -(-self.rounds // self.min_separation)
        return min(self.participations or self.max_participations or fits, fits)

    @property
    def accountant(self) -> Accountant:
        """How epsilon was computed (`tightest`)."""
        if not self.samples:
            return "exact"
        main = self.most_participations + self.spare_rounds + self.evaluations
        events = Counter({(self.noise_multiplier, self.sampling_rate): main})
        for _, count, multiplier, _, rate in self.others:
            events[(multiplier, rate)] += count
        return tightest(events, gaussian_delta(self.delta))[1]

    @property
    def simulators(self) -> str:
        """Who played all parties: continues "a simulation: " and "simulated: "."""
        return "its machines" if self.cluster else "one machine"

    @property
    def _sources(self) -> set[str]:
        """Who adds noise, to the rounds or to another question: epsilon is of all together."""
        return {self.noise_source, *(source for _, _, _, source, _ in self.others)}

    @property
    def samples(self) -> bool:
        """Whether epsilon counts on Poisson sampling, of the rounds or of another question."""
        return min([self.sampling_rate, *(rate for *_, rate in self.others)]) < 1.0

    @property
    def threat_model(self) -> str:
        """One line for summary.json and tables."""
        return self._holds() + "; the split was chosen by private text" * (self.split == "private")

    def _holds(self) -> str:
        """Against whom the claim holds."""
        if self.private_selection:
            return "none: checkpoints were chosen by private text, which epsilon does not cover"
        if self.simulation_seeded:
            return "none: the noise came from the run's seed"
        if "aggregator" in self._sources:
            hidden = ", single answers stay hidden from it" if self.aggregation == "secure" else ""
            return (
                f"trusted aggregator: it has the sums without noise{hidden}; holds against readers "
                "of the released sums, not the server"
            )
        if self.aggregation == "secure":
            return (
                f"honest-but-curious server with at most {percent(self.colluding_weight)} of the "
                "weight colluding: holds against the server and readers of the released sums"
            )
        return "trusted aggregator: holds against readers of the released sums, not the server"

    def sentence(self) -> str:
        """The whole statement in plain words, one paragraph."""
        parts = [self._claim(), self._unit(), self.trust(), self._noise(), self.not_covered()]
        parts += [CHOSEN_TEXT] * self.chooses_text + [CARRIES] * bool(self.carries)
        if self.changed:
            parts.append(changed_since(self.changed))
        if self.simulated:
            parts.insert(
                3,
                f"This was a simulation: {self.simulators} played the server and all nodes and saw "
                "everything, so the claim is about these messages between separate machines.",
            )
        if self.simulation_seeded:
            parts.insert(
                0,
                "NO PRIVACY IS CLAIMED: this simulation drew its noise from the run's seed, so "
                "anyone who knows the seed can take the noise off; the rest of this statement "
                "says what real noise of the same size would give.",
            )
        return " ".join(parts)

    def short(self) -> str:
        """What the number means, and against whom, in at most 60 words; FILE has the rest."""
        parts = [self.what(), self.against()]
        if self.simulated:
            parts.append(f"Simulated: {self.simulators} saw everything.")
        what = self.chosen_by_private_text()
        parts.append(
            f"Not covered: {what}, chosen by private text; more in {FILE}."
            if what
            else f"Not covered: see {FILE}."
        )
        return " ".join(parts)

    def what(self) -> str:
        """The number, its unit and its adjacency."""
        return (
            f"Epsilon = {at_most(self.epsilon)} at delta = {self.delta:g} for each "
            f"{USERS[self.split][0]} with all its {self.data} on one node, zero-out adjacency."
        )

    def chosen_by_private_text(self) -> str:
        """What reading private text decided, which epsilon does not cover; "" for nothing."""
        chosen = [("the split", self.split == "private"), ("checkpoints", self.private_selection)]
        return " and ".join(name for name, is_so in chosen if is_so)

    def against(self) -> str:
        """Against whom the claim holds, in short."""
        if self.simulation_seeded:
            return "NO PRIVACY IS CLAIMED: the noise came from the run's seed."
        if self.private_selection:
            return "NO PRIVACY IS CLAIMED: private text chose checkpoints."
        own = ", never a user's own node" if self.samples else ""
        if "aggregator" in self._sources or self.aggregation == "plain":
            seen = "sums without noise" if self.aggregation == "secure" else "each node's answer"
            return (
                f"The server is TRUSTED, it sees {seen}: holds against readers of the released "
                f"sums, not the server{own}."
            )
        return (
            "Holds against readers of the released sums and an honest-but-curious server, "
            f"with at most {percent(self.colluding_weight)} of the weight colluding{own}."
        )

    def page(self) -> str:
        """The content of FILE in a run folder: the short form and the whole statement."""
        return page(self.short(), self.sentence(), self.carries)

    def _claim(self) -> str:
        aggregator = self.noise_source == "aggregator"
        plural = "s" if self.evaluations > 1 else ""
        evaluations = f"{self.evaluations} evaluation{plural} of models on the nodes"
        releases = f"{self.rounds} rounds" if self.rounds else evaluations
        if self.spare_rounds and not aggregator:  # there, an attempt that fails costs nothing
            releases += f" and {self.spare_rounds} spare"
        if self.evaluations and self.rounds:
            releases += f" and {evaluations}"
        noise = (
            f"{_NOISE[self.noise_source]} noise of at least {at_least(self.noise_multiplier)} "
            "times the L2 bound of one user's answer"
        )
        each = f"each with {noise}"
        if self.correlated:
            each = (
                f"with noise that is correlated across rounds ({self.correlated}) and costs a user "
                f"as much as independent {noise} in each of {self.most_participations} rounds"
                f"{' and in each evaluation' if self.evaluations else ''}"
            )
        return (
            f"Epsilon = {at_most(self.epsilon)} at delta = {self.delta:g} for each user, by "
            f"{ACCOUNTS[self.accountant]}, over {releases}, {each}{self._others()}; "
            f"{self._sampling()}.{in_groups(self.groups)}"
            f"{self._integers()}"
            f"{concentrated(self.rho_zcdp, 'nodes' in self._sources, self.samples)}"
            f"{self._participation()}"
        )

    def _others(self) -> str:
        """Questions of other kinds under the same epsilon."""
        text = ""
        for name, count, multiplier, source, rate in self.others:
            text += (
                f", and over {count} of {name!r} with {_NOISE[source]} noise of at least "
                f"{at_least(multiplier)} times its bound"
            )
            if rate != self.sampling_rate:
                text += f", in which each user takes part with probability {rate:g}"
        return text

    def _sampling(self) -> str:
        """What is claimed for sampling: where only other questions have it, for those."""
        if self.sampling_rate == 1.0 and self.samples:
            name, *_, rate = min(self.others, key=lambda other: other[-1])
            return f"for {name!r}, {sampling_sentence('poisson', rate, self.aggregation)}"
        return sampling_sentence(self.sampler, self.sampling_rate, self.aggregation)

    def _integers(self) -> str:
        """What of delta is not the Gaussians'."""
        if "nodes" not in self._sources:
            return ""
        return (
            f" Of delta, {SHARE_OF_DELTA * self.delta:.3g} pays for the integers: but for "
            "less than that, the noise is Gaussian noise rounded to integers, or more."
        )

    def _participation(self) -> str:
        text = ""
        if self.most_participations < self.rounds:
            apart = f", {self.min_separation} or more apart" if self.min_separation > 1 else ""
            most = self.most_participations
            text = (
                f" Every user takes part in at most {most} round{'s' if most > 1 else ''}{apart}, "
                "which each node enforces for its own users: one that miscounts weakens the claim "
                "for them alone."
            )
        if self.correlated and self.noise_source == "nodes":
            text += ROWS
        if self.adaptive_clipping:
            text += (
                " Whether a user's update was shortened is one more coordinate of the same answer "
                "under the same L2 bound; the bound of later rounds follows the noisy sum of it."
            )
        return text

    def _unit(self) -> str:
        who = "who is enrolled" if self.samples else "who takes part"
        return (
            f"The unit is the {USERS[self.split][0]}: the record of one node's user with all its "
            f"{self.data}, so a person with two devices counts twice. Adjacency is zero-out: "
            f"everything one user contributes is replaced by zero, while {who}, how many they are "
            "and the configuration are public."
        )

    def trust(self) -> str:
        """Against whom the claim holds, whom it trusts, and on what terms."""
        secure, terms = self.aggregation == "secure", assumed(self.colluding_weight, self.keys)
        readers = "everyone who sees the released sums or anything made from them"
        if "aggregator" not in self._sources:
            if not secure:
                return (
                    "Aggregation is plain, so the aggregator is trusted: the claim holds against "
                    f"{readers}, and claims nothing against the server, which sees each node's own "
                    "answer."
                )
            return (
                "Aggregation is secure: the server learns the sum of the answers and no single "
                f"one. The claim holds against the server and {readers}, {terms}"
            )
        sums = "each round's and evaluation's" if self.evaluations else "each round's"
        to = ""
        if "nodes" in self._sources:  # to some questions; epsilon is of all together
            named = [repr(name) for name, _, _, source, _ in self.others if source == "aggregator"]
            rounds = ["the rounds"] if self.noise_source == "aggregator" else []
            to, sums = f" to {' and '.join(rounds + named)}", "their"
        seen = f"{sums} sum without noise" if secure else "each node's own answer"
        text = (
            f"The aggregator is TRUSTED: the nodes add no noise{to}, so the server learns {seen}; "
            "it adds the noise before anything else is done with the sum. The claim holds against "
            f"{readers}, and claims nothing against the server."
        )
        if secure:
            text += f" Aggregation is secure: single answers stay hidden from the server, {terms}"
        return text

    def _noise(self) -> str:
        fixed = self.sampler == "fixed"
        whose = "weight of the nodes drawn for a round" if fixed else "declared users' weight"
        if "nodes" not in self._sources:
            return (
                "The aggregator adds all of the noise, so it suffices whoever answers; a sum of "
                f"less than {percent(self.min_surviving_weight)} of the weight of the nodes asked "
                "is not used, and an attempt without a release costs nothing."
            )
        return (
            f"The noise suffices as long as {percent(self.min_surviving_weight)} of the {whose} "
            "answers honestly, or the sum is not released; nodes assumed to collude (to know their "
            f"own noise and take it off): {percent(self.colluding_weight)} of the declared users' "
            "weight, on top of that."
        )

    def scope(self) -> str:
        """What the ledger counts."""
        if self.ledger_scope == "run":
            return (
                "The ledger is this run's own: any other run on the same users, on a fresh ledger "
                "too, adds its own epsilon."
            )
        return (
            "The ledger spans the runs that declared this population; together they "
            "never exceed the total it was created with, which is what holds for all of them, "
            "and runs on other ledgers add to it."
        )

    def not_covered(self) -> str:
        """What the ledger counts, and what epsilon says nothing of."""
        left_out = [
            f"settings tuned by looking at these users' {self.data}",
            "the time nodes take to answer, and whether they answer in time",
        ]
        if self.simulated and (prepared := USERS[self.split][1]):
            left_out.append(prepared)
        if "aggregator" in self._sources:
            left_out.append(
                "how far Gaussian noise made in floating-point arithmetic, before it is rounded to "
                "integers, is from an exact one"
            )
            left_out.append(
                "whoever reads the key of the noise, which is on the aggregator's disk while the "
                "run lasts"
            )
        if self.benchmark:
            left_out.append(
                "the figures under `benchmark`, which were measured on private or held-out text "
                "outside the nodes, without noise, for this evaluation only"
            )
        if self.rival:
            left_out.append(
                "the files of the rival method, made of the users' true votes with noise that no "
                "ledger counts, for this evaluation only"
            )
        text = f"{self.scope()} Not covered: {', '.join(left_out[:-1])}, and {left_out[-1]}."
        if self.split == "private":
            text += (
                " EPSILON DOES NOT COVER THE SPLIT: which users, samples and public texts there "
                "are was chosen by reading private text, so what this run made of them is for "
                "comparison and must not be released as private."
            )
        if self.private_selection:
            text += (
                " EPSILON DOES NOT COVER THE SELECTION: the checkpoint of each round was chosen by "
                "private text without noise, as in the paper's experiments, so the synthetic text "
                "of this run is for comparison with them and must not be released."
            )
        return text
