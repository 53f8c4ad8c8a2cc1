"""What a run needs to know of its method, and leaves to it: the questions to every recipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from privsyn_flower.common.progress import ProgressLog
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.data import Federation
from privsyn_flower.evaluation.rows import Work
from privsyn_flower.privacy.accounting.sampling import Sampler
from privsyn_flower.privacy.baseline import Baseline
from privsyn_flower.privacy.plan import ROUNDS, Phase
from privsyn_flower.runs import RunFolder, StageClock
from privsyn_flower.server_apps.methods.stages import Task
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.public_text import PublicText
from privsyn_flower.strategies.engine.cohort import Cohort
from privsyn_flower.strategies.engine.session import Session

S = TypeVar("S")  # a Strategy, but for methods without rounds

NOISE = "noise"  # the control that every method with a benchmark has, besides random public text


def sampler_of(config: RunConfig) -> Sampler:
    """Draws who takes part in a round, and is what is accounted."""
    return Sampler(config.sampler, config.sampling_rate, config.cohort_nodes)


class RunContext(Protocol):
    """What a recipe has of its run (`server_apps.run.Run`).

    clock: `with clock(STAGE):` measures it. caption: what stands above the run's pictures. asks:
    whether the users are sent any query; `session` raises ConfigError where they are not.
    """

    config: RunConfig
    folder: RunFolder
    progress: ProgressLog
    clock: StageClock
    public: PublicText
    asks: bool

    @property
    def session(self) -> Session: ...

    @property
    def caption(self) -> str: ...

    def federation(self) -> Federation: ...

    def work(self) -> Work: ...


class Recipe(ABC, Generic[S]):
    """One method around its rounds: first what a configuration says, then the stages of a run.

    controls: names for `evaluation.controls`, of a method with a benchmark. libraries: modules that
    the method needs besides those of its models. length_keys: the keys that `length` comes of.
    keeps_generator: a finished run has one in its model/ that writes
    (`strategies.synthesis.topic_texts`). rewrites: text is written anew of what was released
    (`rewritten`).
    """

    controls: ClassVar[tuple[str, ...]] = ()
    libraries: ClassVar[tuple[str, ...]] = ()
    length_keys: ClassVar[str] = ""
    keeps_generator: ClassVar[bool] = False
    rewrites: ClassVar[bool] = False

    # Of a configuration, before anything is loaded ---------------------------------------

    @classmethod
    @abstractmethod
    def question(cls, config: RunConfig) -> tuple[str, dict[str, Any]]:
        """The kind of the rounds' question, and the keys that it is asked with."""

    @classmethod
    def phases(cls, config: RunConfig) -> list[Phase]:
        """What the users are asked, and paid for: here the rounds, with noise of the nodes."""
        rounds = Phase(ROUNDS, config.rounds, config.spare_rounds, sampler_of(config))
        return [rounds.with_multiplier(config.noise_multiplier)]

    @classmethod
    def baseline(cls, config: RunConfig, **facts: Any) -> Baseline | None:
        """What a method claims that asks no user anything, and so has no phases; None for others.

        facts: of the data, as `Baseline` has them.
        """
        return None

    @classmethod
    def statement_fields(cls, config: RunConfig) -> dict[str, Any]:
        """What the privacy statement says of the method's own settings."""
        return {}

    @classmethod
    def length(cls, config: RunConfig) -> int:
        """Coordinates of an answer; 1 where only the model will tell."""
        return 1

    @classmethod
    def candidates(cls, config: RunConfig) -> int:
        """Texts or topics of the largest question about them: their embeddings travel."""
        return cls.length(config)

    @classmethod
    @abstractmethod
    def loads(cls, config: RunConfig) -> set[str]:
        """The models that a run loads, by their keys in `[models]`; the benchmark's left out."""

    @classmethod
    def retrieves(cls, config: RunConfig) -> bool:
        """Whether texts are compared with the whole public pool, which is embedded for it."""
        return False

    @classmethod
    def first_texts(cls, config: RunConfig) -> tuple[str, int]:
        """How many public texts it cannot begin without, and the key that says so."""
        return "", 0

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        """What is wrong with keys that only fail together."""
        yield from ()

    @classmethod
    def asks_with(cls, config: RunConfig, *, released: bool) -> Sequence[str]:
        """Of the keys that are changeable otherwise (`changes`), those by which users are asked
        here. released: all that the run asks is; what is left then is never changed."""
        return ()

    @classmethod
    def work(cls, config: RunConfig) -> list[Task]:
        """What the stages compute, at most, for the forecast of `privsyn plan`."""
        return []

    @classmethod
    def texts(cls, config: RunConfig) -> int:
        """Synthetic texts of the result, at most."""
        return 0

    # Of a run, in their order ------------------------------------------------------------

    def __init__(self, run: RunContext, models: Models) -> None:
        self.run, self.models = run, models
        self.config, self.folder = run.config, run.folder

    @abstractmethod
    def strategy(self, folder: RunFolder) -> S:
        """The algorithm before its first round, with its files in `folder`."""

    def begin(self) -> S:
        """Stages `models` and `public`: the run's strategy, and all that it needs.

        Raises ConfigError for what the rounds would only stumble over.
        """
        with self.run.clock("models"):
            return self.strategy(self.folder)

    def ready(self, strategy: S) -> None:
        """Before the first question: use what is needed after it once, on public text. Raises what
        that raises."""

    def prepare(self, strategy: S) -> None:
        """Before the first round: what is asked first, and paid for."""

    def between(self, strategy: S, cohort: Cohort) -> None:
        """As the rounds begin: make ready what is asked between them, and paid for. cohort: of the
        rounds."""

    def evaluate(self, strategy: S) -> None:
        """After the last round: what is asked once more, and paid for."""

    @abstractmethod
    def result(self, strategy: S) -> int:
        """Write the result; the number of synthetic texts."""

    @property
    def quality(self) -> Mapping[str, Any]:
        """What the synthetic text is like by public things alone (`evaluation.quality`)."""
        return {}

    def unusable(self, samples: int) -> list[str]:
        """Why the result, of so many texts, is of no use; nothing where it is."""
        return []

    def output_paths(self) -> list[str]:
        """Files and folders of the run that are made of what its rounds released."""
        return ["model", "synthetic.jsonl", "control", "control.jsonl"]

    def figures(self, strategy: S) -> Mapping[str, Any]:
        """The method's own part of the summary."""
        return {}

    def benchmark(self, strategy: S) -> dict[str, Any]:
        """Controls, figures and pictures of the result; simulation only, not covered by epsilon.
        Raises ConfigError for a method that is compared with nothing."""
        raise ConfigError(f"benchmark = true: method = {self.config.method!r} has none")

    @classmethod
    def is_compared(cls) -> bool:
        """Whether the method has a benchmark."""
        return cls.benchmark is not Recipe.benchmark
