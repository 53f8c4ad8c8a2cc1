"""`[training]`, `[ftrl]` and `[proximity]`: the keys of training on the nodes."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from privsyn_flower.config.section import Section, split_list

ServerOptimizerName = Literal["fedavg", "fedavgm", "fedadam", "fedyogi", "adamw"]
MechanismName = Literal[
    "independent", "tree", "tree-honaker", "tree-restart", "banded", "banded-optimised", "blt"
]


# A plan leaves a node 20 times what the integers of all its releases may be off Gaussian noise by.
MOST_OVERLAP = 20


class AveragingConfig(Section):
    """The server's keys of `[training]`: all that DP-FedAvg and DP-FTRL need in anybody's app."""

    clip_norm: float = Field(1.0, gt=0, description="L2 bound of one user's update, all layers")
    adaptive_clipping: bool = Field(
        False, description="the bound follows a quantile of the norms (Andrew et al. 2021)"
    )
    target_quantile: float = Field(0.5, gt=0, lt=1, description="adaptive: share within the bound")
    clip_learning_rate: float = Field(
        0.2, gt=0, description="adaptive: geometric step of the bound"
    )
    server_optimizer: ServerOptimizerName = Field(
        "fedavg", description="what the server does with the noisy mean update"
    )
    server_learning_rate: float = Field(1.0, gt=0, description="of the server's step")
    server_momentum: float = Field(0.9, ge=0, lt=1, description="fedavgm, fedadam, fedyogi")
    beta_2: float = Field(0.99, ge=0, lt=1, description="fedadam, fedyogi: of the second moment")
    tau: float = Field(1e-3, gt=0, description="fedadam, fedyogi: added to its root")
    server_schedule: Literal["constant", "linear"] = Field(
        "constant", description="of the server's step over the rounds; linear: falls to 0 after "
        "the last"
    )  # fmt: skip
    server_warm_up_rounds: int = Field(
        0, ge=0, description="first rounds, over which the server's step grows to its full size"
    )
    server_weight_decay: float = Field(
        0.0, ge=0, description="adamw: decoupled, share of the weights times the step's rate"
    )
    noise: Literal["nodes", "aggregator"] = Field(
        "nodes", description="who adds it: nodes (the server learns noisy sums only), or an "
        "aggregator that is trusted with the sums"
    )  # fmt: skip

    @model_validator(mode="after")
    def _what_goes_together(self) -> Self:
        if self.adaptive_clipping and self.noise != "nodes":
            raise ValueError(
                "training.adaptive-clipping = true needs training.noise = 'nodes': the noise of a "
                "trusted aggregator is made for one bound in all rounds"
            )
        if self.server_weight_decay and self.server_optimizer != "adamw":
            raise ValueError(
                f"training.server-weight-decay = {self.server_weight_decay} belongs to "
                f"training.server-optimizer = 'adamw', and it is {self.server_optimizer!r}: set it "
                "to 0"
            )
        return self

    def check_rounds(self, rounds: int) -> None:
        """Raises ValueError unless a round is left after the server's warm-up."""
        if self.server_warm_up_rounds and self.server_warm_up_rounds >= rounds:
            raise ValueError(
                f"training.server-warm-up-rounds = {self.server_warm_up_rounds} must be below "
                f"rounds = {rounds}: lower it, or raise rounds"
            )


class LocalConfig(Section):
    """The nodes' keys of `[training]`: what is trained of `models.downstream`, and how."""

    parameters: Literal["full", "lora", "layers"] = Field(
        "full", description="what is trained: all, low-rank factors, or the named layers"
    )
    layers: str = Field("", description="layers: patterns of parameter names, as in *.mlp.*")
    lora_rank: int = Field(8, ge=1, description="lora: rank of the factors, on all projections")
    lora_factors: Literal["both", "up"] = Field(
        "both", description="lora: both factors, or up alone over fixed public down (FFA-LoRA)"
    )
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="of a user's local steps")
    learning_rate: float = Field(0.1, gt=0, description="of a user's local steps")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum of the local steps")
    weight_decay: float = Field(0.0, ge=0, description="of the local steps")
    epochs: int = Field(1, ge=1, description="passes over a user's texts in one round")
    batch_size: int = Field(4, ge=1, description="texts of one local step")
    max_steps: int = Field(
        0, ge=0, description="most local steps of a user in a round; 0: those that "
        "data.samples-per-user texts take"
    )  # fmt: skip

    @model_validator(mode="after")
    def _what_belongs_together(self) -> Self:
        if (self.parameters == "layers") != bool(self.layers.strip(", ")):
            raise ValueError(
                f"training.layers = {self.layers!r} with training.parameters = "
                f"{self.parameters!r}: patterns of names belong to 'layers', which needs some"
            )
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f"training.momentum = {self.momentum} belongs to training.optimizer = 'sgd', and "
                f"it is {self.optimizer!r}: set momentum = 0"
            )
        return self

    def steps(self, samples: int) -> int:
        """Most local steps of a user with so many texts in a round: a public number."""
        return self.max_steps or -(-samples // self.batch_size) * self.epochs


class TrainingConfig(AveragingConfig, LocalConfig):
    """`[training]`: training on the nodes, of `models.downstream`, or of CTCL's generator."""

    task: Literal["next-token", "classification"] = Field(
        "next-token", description="what models.downstream learns of the users' texts: the next "
        "token, or which class of training.labels a text has (its label)"
    )  # fmt: skip
    labels: str = Field(
        "", description="classification: public class list; other texts are ignored"
    )
    public_steps: int = Field(
        0, ge=0, description="fine-tuning on public text before round 1; 0: none"
    )
    evaluate: bool = Field(
        False, description="one paid evaluation on the nodes: the final model against the start"
    )
    evaluate_rounds: str = Field(
        "", description="further paid evaluations: the model after each of these rounds against "
        "the start, below rounds and ascending, as in 0,300,600; 0: the start alone; empty: none"
    )  # fmt: skip

    @property
    def classifies(self) -> bool:
        """Whether the model learns classes of texts."""
        return self.task == "classification"

    @property
    def evaluated_rounds(self) -> tuple[int, ...]:
        """The rounds of evaluate-rounds."""
        return tuple(int(one) for one in split_list(self.evaluate_rounds))

    @property
    def evaluations(self) -> int:
        """How many evaluations are paid for, that of the final model among them."""
        return len(self.evaluated_rounds) + self.evaluate

    @model_validator(mode="after")
    def _classes_of_a_classifier(self) -> Self:
        named = split_list(self.labels)
        if not self.classifies and not named:
            return self
        if not self.classifies or len(named) < 2 or len(set(named)) < len(named):
            raise ValueError(
                f"training.labels = {self.labels!r} with training.task = {self.task!r}: "
                "'classification' needs at least 2 distinct classes, and nothing else has any"
            )
        for key, value in (
            ("public-steps", self.public_steps),
            ("evaluate", self.evaluate),
            ("evaluate-rounds", self.evaluate_rounds),
        ):
            if value:
                raise ValueError(
                    f"training.{key} = {value!r} is about next tokens, and training.task = "
                    "'classification': leave it out"
                )
        return self

    @model_validator(mode="after")
    def _rounds_that_exist(self) -> Self:
        named = split_list(self.evaluate_rounds)
        whole = all(one.isascii() and one.isdigit() for one in named)
        if not whole or list(self.evaluated_rounds) != sorted({int(one) for one in named}):
            raise ValueError(
                f"training.evaluate-rounds = {self.evaluate_rounds!r} must be whole numbers of at "
                "least 0, ascending and each once, as in '0,8,16'"
            )
        return self


class FtrlConfig(Section):
    """`[ftrl]`: DP-FTRL's noise, correlated over the rounds."""

    mechanism: MechanismName = Field("blt", description="how the noise of the rounds is correlated")
    schedule: Literal["users", "nodes"] = Field(
        "users", description="who takes turns when min-separation is above 1: the users of every "
        "node, or whole nodes"
    )  # fmt: skip
    min_separation: int = Field(
        1, ge=1, description="rounds between two answers of a user, kept by the nodes; above 1 "
        "users take turns: each answers every min-separation rounds"
    )  # fmt: skip
    max_participations: int = Field(
        0, ge=0, description="rounds one user answers at most; 0: as many as fit"
    )
    restart_every: int = Field(0, ge=0, description="tree-restart: rounds of one tree")
    completion: bool = Field(False, description="tree-restart: complete a tree before the next")
    bands: int = Field(
        0, ge=0, description="banded, banded-optimised, and blt with noise of the nodes: rounds "
        "that share noise; 0: the separation, or all rounds where a user answers once"
    )  # fmt: skip
    buffers: int = Field(
        4, ge=1, description="blt: buffers of the noise, each as large as the model"
    )

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        restarts = self.mechanism == "tree-restart"
        if restarts != (self.restart_every > 0) or (self.completion and not restarts):
            raise ValueError(
                f"ftrl.restart-every = {self.restart_every}, ftrl.completion = "
                f"{str(self.completion).lower()}: they belong to ftrl.mechanism = 'tree-restart', "
                f"which needs restart-every, and it is {self.mechanism!r}"
            )
        return self

    def check_noise(self, training: AveragingConfig) -> None:
        """Raises ValueError on what noise of the nodes cannot be correlated with."""
        if training.noise == "aggregator":
            return
        other = self.mechanism not in ("banded", "banded-optimised", "blt")
        nodes = self.schedule == "nodes" and self.min_separation > 1
        for refused, key, instead in (
            (other, f"ftrl.mechanism = {self.mechanism!r}", "'banded...' or 'blt'"),
            (nodes, "ftrl.schedule = 'nodes'", "'users'"),
            (training.adaptive_clipping, "training.adaptive-clipping = true", "false"),
        ):
            if refused:
                raise ValueError(
                    f"{key} with training.noise = 'nodes': every node answers a sum over earlier "
                    f"rounds by one banded matrix; set {instead}, or training.noise = "
                    "'aggregator' if the aggregator is trusted with the sums"
                )
        if self.bands > MOST_OVERLAP * self.min_separation:
            raise ValueError(
                f"ftrl.bands = {self.bands} with training.noise = 'nodes' and ftrl.min-separation "
                f"= {self.min_separation}: nodes count a user's integers in every answer, which "
                f"fits with {MOST_OVERLAP} x min-separation bands at most: lower bands"
            )

    def check_rounds(self, rounds: int) -> None:
        """Raises ValueError unless every user has a turn, and the last round has users."""
        if self.min_separation > rounds:
            raise ValueError(
                f"ftrl.min-separation = {self.min_separation} exceeds rounds = {rounds}: "
                "lower it, or raise rounds"
            )
        if 0 < self.max_participations * self.min_separation < rounds:
            raise ValueError(
                f"ftrl.max-participations = {self.max_participations} turns of "
                f"ftrl.min-separation = {self.min_separation} rounds end before rounds = "
                f"{rounds}, and from there every node refuses: raise one of the two "
                "(0 participations: as many as fit), or lower rounds"
            )


class ProximityConfig(Section):
    """`[proximity]`: after a training, its model filters the public pool (Gboard, section 5)."""

    filter: bool = Field(
        False, description="write the public texts that the trained model keeps: proximity.jsonl"
    )
    most_unknown: float = Field(
        0.6, ge=0, le=1, description="largest share of words outside of the vocabulary"
    )
    least_score: float = Field(
        -5.0, ge=-1e6, le=0, description="least mean log-likelihood of a token by the trained "
        "model, nats; the paper's 5, of its 30,000 words"
    )  # fmt: skip
    least_quantile: float = Field(
        0.0, ge=0, lt=1, description="above 0: the least score is this quantile of the public "
        "texts' scores before the training"
    )  # fmt: skip
    gain: bool = Field(True, description="keep no text that the training made less likely")
