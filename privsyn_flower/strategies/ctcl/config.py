"""`[ctcl]`: topics, and a generator that learns texts by the topics' keywords (CTCL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from privsyn_flower.config.common import (
    SYNTHETIC,
    CommonConfig,
    MethodEntry,
    MethodTable,
    Place,
)
from privsyn_flower.config.section import split_list


class CtclConfig(MethodTable):
    """`[ctcl]`: CTCL (Tan et al. 2025, arXiv 2503.12347, sections 3 and 4).

    How much text is written, and how it is drawn, are keys of `[expand]`; the local and the
    server's training have `[training]`, and `[ftrl]` where an aggregator adds the noise.
    """

    table: ClassVar[str] = "ctcl"
    arguments: ClassVar[Mapping[str, str]] = {"topics": "load_topics(folder)"}
    trained: ClassVar[str] = "conditional"

    topics: str = Field(
        "train",
        description="train (from public text), or a folder of `privsyn topics make`",
    )
    topic_count: int = Field(1300, ge=1, le=65535, description="train: topics, m")
    clustering: Literal["k-means", "hdbscan"] = Field(
        "k-means", description="train: how public embeddings become topics; hdbscan finds its own m"
    )
    umap_components: int = Field(
        0, ge=0, le=256, description="hdbscan: dimensions to which UMAP brings embeddings first "
        "(extra umap; BERTopic's, as in the paper: 5); 0: as they are"
    )  # fmt: skip
    topic_words: int = Field(10, ge=1, le=10, description="train: keywords of a topic, at most")
    histogram: bool = Field(
        True,
        description="ask for the noisy histogram of topics; false: all count the same",
    )
    histogram_multiplier: float = Field(
        10.0, ge=0, description="its noise std / bound; 0: what histogram-share buys"
    )
    histogram_share: float = Field(
        0.1, gt=0, lt=1, description="of the run's mu^2, where histogram-multiplier is 0"
    )
    topic_threshold: float = Field(
        1.0, ge=0, description="counts below so many standard deviations of the noise are 0; the "
        "paper: 0"
    )  # fmt: skip
    generator_training: bool = Field(
        True, description="train the generator on the nodes; false: the histogram alone"
    )
    condition: Literal["topic", "none"] = Field(
        "topic", description="what a text is generated from: its topic's keywords, or nothing"
    )
    document_type: str = Field(
        "", max_length=200, description="public line of every condition, as in 'medical abstract'"
    )
    labels: str = Field(
        "", description="public class list: a text's class is a line of its condition, and the "
        "histogram counts classes and topics together; empty: no classes"
    )  # fmt: skip
    max_source: int = Field(128, ge=1, le=1024, description="tokens of a condition, at most")
    resample_pool: int = Field(
        0, ge=0, description="condition none: texts that are written first and clustered; "
        "expand.samples are drawn of them to the histogram's shares of the clusters; 0: all are "
        "kept as they come"
    )  # fmt: skip
    repetition_penalty: float = Field(1.5, ge=1, description="of tokens that a text has already")
    filter: bool = Field(True, description="drop degenerate texts of the generator")

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        if not (self.histogram or self.generator_training):
            raise ValueError(
                "ctcl.histogram = false with ctcl.generator-training = false asks no user "
                "anything: set one of the two to true"
            )
        if not self.topics.strip():
            raise ValueError("ctcl.topics = '' must be 'train', or the folder of a topic model")
        if self.umap_components and self.clustering != "hdbscan":
            raise ValueError(
                f"ctcl.umap-components = {self.umap_components} comes before ctcl.clustering = "
                f"'hdbscan', and it is {self.clustering!r}: leave it out"
            )
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"ctcl.labels = {self.labels!r} has a class twice: name each once")
        if self.resample_pool:
            self._check_resampling()
        if self.condition == "none":
            self._check_without_condition()
        return self

    def _check_resampling(self) -> None:
        """Clusters are of a trained generator's own text, so they are no topics of a condition."""
        if self.condition != "none" or not self.histogram or not self.generator_training:
            raise ValueError(
                f"ctcl.resample-pool = {self.resample_pool} draws text of a private fine-tuning "
                "without conditions to a histogram's shares: set ctcl.condition = 'none', "
                "histogram = true and generator-training = true, or resample-pool = 0"
            )
        if self.topics != "train":
            raise ValueError(
                f"ctcl.topics = {self.topics!r} with ctcl.resample-pool = {self.resample_pool}: "
                "the clusters are of the text that the run writes; leave topics out"
            )
        if self.resample_pool < self.topic_count:
            raise ValueError(
                f"ctcl.resample-pool = {self.resample_pool} texts cannot have ctcl.topic-count = "
                f"{self.topic_count} clusters: raise the one, or lower the other"
            )

    def _check_without_condition(self) -> None:
        """What only a condition could bring to the generator."""
        if self.histogram and not self.resample_pool:
            raise ValueError(
                "ctcl.histogram = true with ctcl.condition = 'none': a generator without "
                "conditions cannot be asked for a topic, so the histogram would be paid for in "
                "vain; set histogram = false, or condition = 'topic', or draw its text by the "
                "histogram (resample-pool)"
            )
        if self.document_type or self.labels:
            raise ValueError(
                f"ctcl.document-type = {self.document_type!r}, ctcl.labels = {self.labels!r}: they "
                "are lines of a condition, and ctcl.condition = 'none'; set condition = 'topic', "
                "or leave them out"
            )

    @property
    def by_topic(self) -> bool:
        """Whether the generator is told each text's topic."""
        return self.condition == "topic"

    @property
    def classes(self) -> tuple[str, ...]:
        """The public class list; empty without classes."""
        return tuple(split_list(self.labels))

    @property
    def updates(self) -> bool:
        return self.generator_training

    def uses(self, table: str, config: CommonConfig) -> bool:
        """The rounds are DP-FTRL's with a trusted aggregator, and DP-FedAvg's else."""
        return table != "ftrl" or config.training.noise == "aggregator"

    def relocated(self, path: Place, model: Place) -> Self:
        topics = self.topics if self.topics == "train" else path(self.topics)
        return self.model_copy(update={"topics": topics})

    def check(self, config: CommonConfig) -> None:
        """What CTCL needs of the other tables."""
        if self.labels and not config.data.labelled:
            raise ValueError(
                f"ctcl.labels = {self.labels!r} needs data.label-column, where classes stand"
            )
        if config.generation.backend != "huggingface" or config.generation.chat:
            raise ValueError(
                f"generation.backend = {config.generation.backend!r}, generation.chat = "
                f"{str(config.generation.chat).lower()}: ctcl trains its generator's own weights "
                "on bare conditions: set 'huggingface' and false"
            )
        for key, value in (
            ("evaluate", config.training.evaluate),
            ("evaluate-rounds", config.training.evaluate_rounds),
            ("public-steps", config.training.public_steps),
        ):
            if value:
                raise ValueError(
                    f"training.{key} = {value!r} is about next tokens without conditions, and ctcl "
                    "trains a generator with them: leave it out (models.conditional is the start)"
                )
        if not self.generator_training and config.training.noise == "aggregator":
            raise ValueError(
                "ctcl.generator-training = false with training.noise = 'aggregator': the histogram "
                "alone has noise of the nodes; leave training.noise out"
            )


METHODS = (
    MethodEntry(
        "ctcl",
        SYNTHETIC,
        CtclConfig,
        ("training", "ftrl"),
        order=6,
        title="CTCL (Tan et al. 2025)",
    ),
)
