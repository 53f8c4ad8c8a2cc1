"""What may be said of a run that asks no user anything: a row that the papers compare with.

It has no rounds, no noise of the nodes and no ledger. A statement here has the readings of
`PrivacyStatement`, so that summary, report and terminal take either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privsyn_flower.privacy.sentence import FILE
from privsyn_flower.privacy.wording import CARRIED, SplitName, at_most, page

FIGURES = (
    "the figures under `benchmark`, which were measured on private or held-out text outside the "
    "nodes, without noise"
)


@dataclass(frozen=True)
class Baseline:
    """The claim of a run without rounds. All fields are public; names as in `PrivacyStatement`."""

    simulated: bool = False
    split: SplitName = "unknown"
    benchmark: bool = False
    delta: ClassVar[float] = 0.0
    unit: ClassVar[str] = "user"
    adjacency: ClassVar[str] = "none"
    accountant: ClassVar[str] = "none"
    rho_zcdp: ClassVar[float | None] = None  # there is no Gaussian noise that it would be of
    noise_multiplier: ClassVar[float] = 0.0
    rounds: ClassVar[int] = 0
    most_participations: ClassVar[int] = 0
    carries = ""  # what PublicAlone may have been given

    @property
    def epsilon(self) -> float:
        """0, infinity, or that of a local mechanism."""
        raise NotImplementedError

    @property
    def threat_model(self) -> str:
        """One line for summary.json and tables."""
        raise NotImplementedError

    def sentence(self) -> str:
        """The whole statement in plain words, one paragraph."""
        raise NotImplementedError

    def short(self) -> str:
        """What the number means, in at most 60 words; FILE has the rest."""
        raise NotImplementedError

    def page(self) -> str:
        """The content of FILE in a run folder: the short form and the whole statement."""
        return page(self.short(), self.sentence(), self.carries)

    def _split(self) -> str:
        """What reading private text decided beforehand."""
        if self.split != "private":
            return ""
        return (
            " EPSILON DOES NOT COVER THE SPLIT: which users, samples and public texts there are "
            "was chosen by reading private text, so what this run made is for comparison and must "
            "not be released as private."
        )


@dataclass(frozen=True)
class PublicAlone(Baseline):
    """Epsilon 0: public text alone was used.

    carries: the statement of that text, or of a model that was given, where users' answers made it.
    """

    carries: str = ""

    @property
    def epsilon(self) -> float:
        return 0.0

    @property
    def threat_model(self) -> str:
        split = "; the split was chosen by private text" if self.split == "private" else ""
        carried = "; what it is made of carries an epsilon of its own" if self.carries else ""
        return f"nobody was asked: the result is made of public text alone{carried}{split}"

    def sentence(self) -> str:
        begin = "Epsilon = 0: nothing private was used."
        end = "so it says nothing about anyone's texts."
        if self.carries:
            begin = "Epsilon = 0 beside that of what was given as public."
            end = f"and {CARRIED}"
        text = (
            f"{begin} No user was asked anything, and the result is made of public text and public "
            f"models alone, {end} There is no noise and no ledger."
        )
        left_out = []
        if self.simulated and self.split == "unknown":
            left_out.append("the preparation of a simulated split")
        if self.benchmark:
            left_out.append(f"{FIGURES}, for this evaluation only")
        if left_out:
            text += f" Not covered: {', and '.join(left_out)}."
        return text + self._split()

    def short(self) -> str:
        chosen = self.split == "private"
        split = "Not covered: the split, chosen by private text. " if chosen else ""
        beside = " beside that of public text or models, which users' answers made"
        beside = beside if self.carries else ""
        return (
            f"Epsilon = 0{beside}: no user was asked anything, and the result is made of public "
            f"text alone. {split}More in {FILE}."
        )


@dataclass(frozen=True)
class NoPrivacy(Baseline):
    """Epsilon infinite: the result is made of the private text itself."""

    @property
    def epsilon(self) -> float:
        return float("inf")

    @property
    def threat_model(self) -> str:
        return "none: epsilon is infinite, the result is made of the private text itself"

    def sentence(self) -> str:
        return (
            "NO PRIVACY: there is NO guarantee, epsilon is infinite. The language model was shown "
            "the users' own texts, without noise and without a bound, and its answers may repeat "
            "them word for word. This is the papers' upper bound, made in a simulation by code of "
            "the benchmark: for comparison only. Nothing of this run may be released, and it "
            f"cannot be deployed: no server has its users' texts.{self._split()}"
        )

    def short(self) -> str:
        return (
            "NO PRIVACY: epsilon is infinite. The result is made of the users' own texts and may "
            f"repeat them. For comparison only, never to be released; see {FILE}."
        )


@dataclass(frozen=True)
class LocalParaphrases(Baseline):
    """Local differential privacy of paraphrased texts (Utpala et al. 2023, DP-Prompt).

    each: epsilon of one token. tokens: most of one paraphrase. texts: most of one user.
    seeded: the tokens were drawn from the run's seed.

    A token is drawn with probability proportional to exp(u / T), and every logit u lies in
    [low, high] whatever the text. For two texts the numerators differ by a factor of at most
    exp((high - low) / T), and so do the sums that divide them: a token costs
    2 (high - low) / T, without a delta. The next token's logits depend on the tokens before,
    which is adaptive composition; a paraphrase that ends early was post-processed. So a text
    costs at most `tokens` times that, and a user `texts` times a text.
    """

    each: float = 0.0
    tokens: int = 1
    texts: int = 1
    seeded: bool = False
    adjacency: ClassVar[str] = "replace-one"
    accountant: ClassVar[str] = "composition"

    def __post_init__(self) -> None:
        """Raises ValueError on numbers that are no guarantee."""
        if not self.each > 0 or min(self.tokens, self.texts) < 1:
            raise ValueError(
                f"each = {self.each} must be above 0, tokens = {self.tokens} and texts = "
                f"{self.texts} at least 1"
            )

    @property
    def per_text(self) -> float:
        """Epsilon of one text."""
        return self.each * self.tokens

    @property
    def epsilon(self) -> float:
        """Of one user."""
        return self.per_text * self.texts

    @property
    def threat_model(self) -> str:
        if self.seeded:
            return "none: the paraphrases were drawn from the run's seed"
        split = "; the split was chosen by private text" if self.split == "private" else ""
        return (
            "local: each device paraphrases its own texts and sends the paraphrases, which anyone "
            f"may read; holds against the server; simulated{split}"
        )

    def sentence(self) -> str:
        parts = [
            f"Epsilon = {at_most(self.epsilon)} (delta = 0) for each user, as LOCAL differential "
            f"privacy: each of a user's at most {self.texts} texts is replaced by a paraphrase of "
            f"at most {self.tokens} tokens, drawn one by one by a language model from logits that "
            "are clipped to a public range, at the temperature at which a token costs at most "
            f"{at_most(self.each)} and a text {at_most(self.per_text)}.",
            "What leaves a device is the paraphrases themselves: no secure sum and no noise hide "
            "them, and nobody needs to be trusted, so the claim holds against the server and "
            "everyone else. How many texts a user has leaves the device, too, and is not hidden.",
            "The unit is the user with all its texts. Adjacency is replace-one: all texts of one "
            "user become as many other texts. This is not the adjacency of the methods with "
            "rounds, where a user's contribution becomes zero, so equal epsilons do not mean the "
            "same.",
            "This was SIMULATED: one machine made all paraphrases from the private texts, by code "
            "of the benchmark, for comparison. On devices it needs a language model on each of "
            "them, for which this project has no app.",
        ]
        if self.seeded:
            parts.insert(
                0,
                "NO PRIVACY IS CLAIMED: the paraphrases were drawn from the run's seed, so anyone "
                "who knows the seed can test which text gives them; the rest of this statement "
                "says what real randomness would give.",
            )
        figures = f", {FIGURES}" if self.benchmark else ""
        parts.append(
            "Not covered: how far a draw in floating-point arithmetic, by a generator that starts "
            "from the operating system's randomness, is from an exact one, and the time that it "
            f"takes{figures}."
        )
        return " ".join(parts) + self._split()

    def short(self) -> str:
        if self.seeded:
            first = "NO PRIVACY IS CLAIMED: the paraphrases were drawn from the run's seed."
        else:
            first = (
                f"Epsilon = {at_most(self.epsilon)} for each user, LOCAL: {self.texts} paraphrased "
                f"texts at {at_most(self.per_text)} each leave the device and hold against anyone."
            )
        split = "the split, chosen by private text; more in" if self.split == "private" else "see"
        return f"{first} Simulated: one machine saw everything. Not covered: {split} {FILE}."
