"""The keys that every method has, what a method's own table adds, and the entry of a method.

No method is named here: their tables and entries are in `strategies/NAME/config.py`, and
`config.schema` puts the whole configuration together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, ValidationError

from privsyn_flower.config.data import DataConfig
from privsyn_flower.config.evaluation import EvaluationConfig
from privsyn_flower.config.evolution import EvolutionConfig, SftConfig
from privsyn_flower.config.models import ExpandConfig, GenerationConfig, ModelsConfig
from privsyn_flower.config.section import (
    ConfigError,
    Scalar,
    Section,
    explain,
    flatten,
    nested,
    split_list,
)
from privsyn_flower.config.training import FtrlConfig, ProximityConfig, TrainingConfig

SYNTHETIC, TRAINING = "synthetic text", "training"
MEASURING, BASELINE = "given models measured", "baselines without queries"
KINDS = (SYNTHETIC, TRAINING, MEASURING, BASELINE)
SAMPLES = 2000  # what expand.samples = -1 stands for where a generator can write them
OF_GENERATOR = {"smollm2": 500}  # and by one that takes a CPU half an hour for 2000

Product = Literal["Synthetic data", "Machine learning model", "Summary statistics", "Dataset"]
T = TypeVar("T", bound=Section)
Place = Callable[[str], str]


class MethodTable(Section):
    """A method's own table of keys; what it adds to the common ones, of which it may ask.

    table: its name in the configuration. arguments: keys that are no field of the class in
    somebody's own ServerApp -> what they are there. without_benchmark: keys that can choose by
    private text -> their values that do not. elsewhere: whether its keys may stand in the
    configuration of another method. trained: the key in `[models]` of what the nodes train.
    """

    table: ClassVar[str] = ""
    arguments: ClassVar[Mapping[str, str]] = {}
    without_benchmark: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {}
    elsewhere: ClassVar[bool] = False
    trained: ClassVar[str] = "downstream"

    def check(self, config: CommonConfig) -> None:
        """What the table needs of the others. Raises ValueError."""

    def uses(self, table: str, config: CommonConfig) -> bool:
        """Whether a shared table of the method is used with these keys."""
        return True

    def relocated(self, path: Place, model: Place) -> Self:
        """With every path absolute. model: the same for what may be a name or a folder."""
        return self

    @property
    def updates(self) -> bool:
        """Whether the rounds ask for changes of a model."""
        return False

    def groups(self, config: CommonConfig) -> Mapping[str, tuple[int, int]]:
        """Groups of nodes that are asked different questions -> their users and nodes, the rounds'
        group first; {} where all are asked the same."""
        return {}

    def adapter_rank(self, config: CommonConfig) -> int:
        """Rank of the adapters that the method trains of its generator; 0: it trains none."""
        return 0

    def evaluates_on_nodes(self, config: CommonConfig) -> bool:
        """Whether a model is measured on the nodes to make the result."""
        return False


@dataclass(frozen=True)
class MethodEntry:
    """A method in the table of methods.

    kind: one of KINDS. own: its table of keys. shared: the names of tables that it has in common
    with other methods. order: its place in lists; the first method is the default. title: its
    name with its authors. product: what kind of thing comes out, in the words of the registry of
    deployments.
    """

    name: str
    kind: str
    own: type[MethodTable] | None = None
    shared: tuple[str, ...] = ()
    order: int = 100
    title: str = ""
    product: Product = "Synthetic data"

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of its tables, besides those of every method."""
        return ((self.own.table,) if self.own else ()) + self.shared

    @property
    def classes(self) -> bool:
        """Whether its text may have classes."""
        return self.own is not None and "labels" in self.own.model_fields


class CommonConfig(Section):
    """The configuration as code that knows no method sees it.

    `config[PopriConfig]` is a table by its class. methods: name -> entry.
    """

    methods: ClassVar[Mapping[str, MethodEntry]] = {}

    method: str
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
    sft: SftConfig = Field(default_factory=SftConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    ftrl: FtrlConfig = Field(default_factory=FtrlConfig)
    proximity: ProximityConfig = Field(default_factory=ProximityConfig)
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    expand: ExpandConfig = Field(default_factory=ExpandConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)

    # Tables --------------------------------------------------------------------------------

    def __getitem__(self, table: type[T]) -> T:
        """The table of this class. Raises KeyError where no method has it."""
        for found in self.__dict__.values():
            if type(found) is table:
                return found
        raise KeyError(f"{table.__name__} is no table of the configuration")

    @property
    def entry(self) -> MethodEntry:
        """Of the configured method."""
        return self.methods[self.method]

    @property
    def own(self) -> MethodTable:
        """The method's own table; an empty one where it has none."""
        found: MethodTable = getattr(self, self.entry.own.table) if self.entry.own else NO_TABLE
        return found

    @property
    def tables(self) -> dict[str, MethodTable]:
        """The own tables of all methods, by name."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: own for name, own in found.items() if isinstance(own, MethodTable)}

    def owns(self, table: type[Section]) -> bool:
        """Whether the method's own table is of this class."""
        own: Section = self.own
        return isinstance(own, table)

    def uses(self, table: str) -> bool:
        """Whether a table, besides those of every method, is used by this one."""
        return table in self.entry.tables and self.own.uses(table, self)

    @property
    def evolution(self) -> EvolutionConfig:
        """The table of whoever evolves a population: the method, or the rival."""
        rival = self.methods.get(self.evaluation.rival)
        candidates: list[Section] = [self.own]
        if rival is not None and rival.own is not None:
            candidates.append(self[rival.own])
        return next((t for t in candidates if isinstance(t, EvolutionConfig)), EvolutionConfig())

    # What follows of the method --------------------------------------------------------------

    @property
    def seeds_alone(self) -> bool:
        """Whether no generator here is known to write the language of the users, but there are
        seeds of public text that is theirs."""
        evolves = self.owns(EvolutionConfig)
        return evolves and self.data.source != "docstrings" and self.models.generator == "tiny"

    @property
    def lora_rank(self) -> int:
        """Of the adapters that the run trains of its generator."""
        return self.own.adapter_rank(self) or self.sft.lora_rank

    @property
    def teaches_generator(self) -> bool:
        """Whether the run trains adapters of its generator, on pairs or on what survived."""
        return bool(self.own.adapter_rank(self) or (self.uses("sft") and self.sft.epochs))

    @property
    def trains(self) -> bool:
        """Whether the result is a model that the nodes trained, and no text."""
        return self.entry.kind == TRAINING

    @property
    def measures(self) -> bool:
        """Whether the users are asked nothing but how well given models predict their text."""
        return self.entry.kind == MEASURING

    @property
    def updates(self) -> bool:
        """Whether the rounds ask for changes of a model, `models.TRAINED` (`trained`)."""
        return self.trains or self.own.updates

    @property
    def trained(self) -> str:
        """The key in `[models]` of what is trained on the nodes."""
        return self.own.trained

    @property
    def classes(self) -> Sequence[str]:
        """The public class list of the method's texts; empty without classes."""
        return split_list(self.labels[1])

    @property
    def labels(self) -> tuple[str, str]:
        """The key of the public class list of the method's texts, and its value; "" twice where
        the method knows no classes."""
        if self.trains:
            return "training.labels", self.training.labels
        if not self.entry.classes:
            return "", ""
        own: Any = self.own
        return f"{own.table}.labels", own.labels

    @property
    def trusts_aggregator(self) -> bool:
        """Whether the noise is Gaussian and added by the aggregator, which sees sums without."""
        return self.updates and self.training.noise == "aggregator"

    @property
    def sends_rows(self) -> bool:
        """Whether nodes answer rows of a matrix, so that their noise is correlated over rounds."""
        return self.uses("ftrl") and self.training.noise == "nodes"

    @property
    def round_users(self) -> int:
        """Users whom the rounds ask, of all nodes or of one group's."""
        groups = self.own.groups(self).values()
        return next(iter(groups))[0] if groups else self.data.users

    @property
    def local_steps(self) -> int:
        """Most local steps of a user in a round: only public numbers bound a node's work."""
        return self.training.steps(self.data.samples_per_user)

    # Flat keys -----------------------------------------------------------------------------

    @classmethod
    def from_flat(cls, values: Mapping[str, Scalar]) -> Self:
        """Dotted keys -> configuration. Raises ConfigError naming key, value and bound."""
        try:
            found = cls.model_validate(nested(values, cls().flat()))
        except ValidationError as error:
            raise ConfigError(explain(error)) from None
        expand, chosen = found.expand, dict[str, Scalar]()
        if expand.samples < 0:
            alone = found.seeds_alone and not found.sft.epochs
            generator = found.models.generator
            chosen["samples"] = 0 if alone else OF_GENERATOR.get(generator, SAMPLES)
        if expand.include_seeds == "auto":
            own_text = not found.data.has_minority
            chosen["include_seeds"] = own_text and found.owns(EvolutionConfig)
        return found.model_copy(update={"expand": expand.model_copy(update=chosen)})

    def flat(self) -> dict[str, Scalar]:
        """Every key with its value, dotted, as Flower's run config takes them."""
        return flatten(self.model_dump(by_alias=True))


NO_TABLE = MethodTable()
