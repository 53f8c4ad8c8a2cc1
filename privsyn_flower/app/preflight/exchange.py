"""What one device exchanges in a round: bytes of the question and of the answer, and its work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from privsyn_flower.app.preflight.numbers import Signal, encoding, votes_signal
from privsyn_flower.app.preflight.sizes import Size, model_files, size_of
from privsyn_flower.app.preflight.speeds import Machine, memory_of, seconds_of
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.encoding.dense import DensePlan, padded_length
from privsyn_flower.privacy.encoding.sizing import WrapAround
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.protocol.question import Query
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.methods.stages import Task, scoring, sequence_tokens, tokens_of
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.evaluation.config import MeasureConfig
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.strategies.resource_adaptive.config import WEAK, ResourceAdaptiveConfig

SAMPLE = 1024  # made-up candidates that are packed to see how many bytes one takes
# At most, of a topic beside its row: the row's scale, and ten keywords in JSON.
TOPIC_BYTES = 4 + 10 * 12


@dataclass(frozen=True)
class Exchange:
    """A round of one user on a device of its own. None: not known here.

    coordinates: of an answer. down, up: bytes of the question and of the masked answer; keys and
    shares of secure aggregation come on top. first_seconds: of a round in which the user's texts
    are embedded; seconds: of another; timed: by such work on this machine. memory: bytes of
    the model and what travels. once: bytes of a question beside the rounds. past: bytes of
    earlier rounds' answers that stay on its disk.
    """

    coordinates: int | None
    bits: int | None
    down: int | None
    up: int | None
    first_seconds: float | None = None
    seconds: float | None = None
    timed: bool = False
    memory: int | None = None
    once: int = 0
    past: int = 0


def exchange_of(config: RunConfig, machine: Machine) -> Exchange:
    """Of a configuration with rounds; a device as fast as `machine`."""
    if config.updates:
        return _training(config, machine)
    if config.measures:
        return _measuring(config, machine)
    embedder, count = size_of("embedder", config), recipe_of(config).length(config)
    bits, up = _answer(config, count)
    if embedder is None:
        return Exchange(count, bits, None, up)
    data, task = config.data, _embedding(config)
    embedding, timed = seconds_of(task, embedder, machine)
    products = 2.0 * count * data.samples_per_user * embedder.dimension / machine.operations
    need = memory_of(task, embedder, machine.device) + 4 * count * embedder.dimension
    down = question_bytes(config, count, embedder.dimension)
    return Exchange(count, bits, down, up, embedding + products, products, timed, need)


def weak_vote(config: RunConfig) -> tuple[Signal, int | None, int | None] | None:
    """Signal, bytes down and up of the one vote that weak nodes have; None of other methods."""
    if not config.owns(ResourceAdaptiveConfig):
        return None
    (phase,) = (one for one in privacy_plan(config).phases if one.group == WEAK)
    texts = config[ResourceAdaptiveConfig].pool * config.expand.samples
    embedder = size_of("embedder", config)
    users, _ = config.own.groups(config)[WEAK]
    down = None
    if embedder is not None:
        topics = config[CtclConfig].topic_count * (embedder.dimension + 4)
        down = question_bytes(config, texts, embedder.dimension) + 2 * texts + topics
    signal = votes_signal(config, {"bound": 1.0}, users, phase.multiplier, texts)
    return signal, down, _answer(config, texts, phase)[1]


def _answer(
    config: RunConfig, length: int | None, phase: Phase | None = None
) -> tuple[int | None, int | None]:
    """Bits of a coordinate, bytes of an answer; None where there are no such integers."""
    if length is None:
        return None, None
    try:
        plan = encoding(config, length, phase)
    except WrapAround:
        return None, None
    sent = plan.padded_length if isinstance(plan, DensePlan) else plan.length
    return plan.bits, sent * plan.bits // 8


def question_bytes(config: RunConfig, count: int, dimension: int) -> int:
    """Bytes of a question of so many candidates, packed as it travels (`protocol.packing`).

    Entries of made-up candidates are Gaussian, which is how a row's entries are spread; real ones
    have columns that differ, and take a little less.
    """
    some = min(count, SAMPLE)
    rows = np.random.default_rng(0).standard_normal((some, dimension)).astype(np.float32)
    own, groups = config[PopriConfig], 0
    if recipe_of(config).question(config)[0] == "scores":
        asked = own.dimension if own.dimension < dimension else 0
        query = Query.scores(rows, bound=1.0, model="", groups=[some], dimension=asked)
        groups = 4 * own.prompts
    else:
        query = Query.votes(rows, bound=1.0, model="")
        groups = 2 * count * bool(config.classes and not config.owns(CtclConfig))
    extra = sum(array.nbytes for name, array in query.extra.items() if name == "projection")
    return round(query.packed[0].nbytes * count / some) + extra + groups


def _training(config: RunConfig, machine: Machine) -> Exchange:
    size, training = size_of(config.trained, config), config.training
    length, down = trained(config, size)
    bits, up = _answer(config, length)
    if size is None:
        return Exchange(length, bits, down, up)
    task = Task(
        "rounds", "", "fine-tuning", config.trained, config.local_steps * training.batch_size,
        sequence_tokens(config), nodes=True,
    )  # fmt: skip
    seconds, timed = seconds_of(task, size, machine)
    need = memory_of(task, size, machine.device) + 8 * (length or 0)
    first, once, topics = 0.0, 0, recipe_of(config).candidates(config)
    embedder = size_of("embedder", config)
    if topics and embedder is not None:
        rows = topics * (embedder.dimension + TOPIC_BYTES)
        once = rows if config[CtclConfig].histogram else 0
        if config[CtclConfig].by_topic and down is not None:
            down += rows  # the node finds each text's condition by them
        first, _ = seconds_of(_embedding(config), embedder, machine)
    past = past_bytes(config, length)
    return Exchange(length, bits, down, up, first + seconds, seconds, timed, need, once, past)


def past_bytes(config: RunConfig, length: int | None) -> int:
    """Of the earlier rounds that a node of rows keeps, as 32-bit integers."""
    matrix = privacy_plan(config).main.matrix
    return 4 * padded_length(length) * (matrix.bands - 1) if matrix and length else 0


def _measuring(config: RunConfig, machine: Machine) -> Exchange:
    """At most: a model that is a whole one, with every weight another than the base's."""
    size, length = size_of("downstream", config), recipe_of(config).length(config)
    bits, up = _answer(config, length)
    if size is None:
        return Exchange(length, bits, None, up)
    own = config[MeasureConfig]
    task = replace(scoring(config, "", len(own.named), own.tokens(config)), nodes=True)
    task = replace(task, items=max(1, task.items // config.data.users))  # of one user
    seconds, timed = seconds_of(task, size, machine)
    down = 4 * size.parameters * len(own.named)
    need = memory_of(task, size, machine.device) + down
    return Exchange(length, bits, down, up, seconds, seconds, timed, need)


def _embedding(config: RunConfig) -> Task:
    """Of one user's texts."""
    data = config.data
    tokens = tokens_of(data.sample_words)
    return Task("rounds", "", "embedding", "embedder", data.samples_per_user, tokens)


def trained(config: RunConfig, size: Size | None) -> tuple[int | None, int | None]:
    """Coordinates of one user's update, and bytes of the parameters that travel to it.

    Low-rank factors and single layers are counted in the model's own files; None without them.
    """
    training = config.training
    more = int(training.adaptive_clipping)
    if training.parameters == "full":
        return (None, None) if size is None else (size.parameters + more, 4 * size.parameters)
    folder = model_files(config.trained, getattr(config.models, config.trained), config)
    if folder is None:
        return None, None
    from privsyn_flower.training import Layout
    from privsyn_flower.training.low_rank import initial_parameters, trained_patterns

    arrays = initial_parameters(
        folder, training.parameters, rank=training.lora_rank, factors=training.lora_factors,
        patterns=training.layers,
    )  # fmt: skip
    patterns = trained_patterns(
        folder, training.parameters, factors=training.lora_factors, patterns=training.layers
    )
    length = Layout.of(arrays, patterns).length
    return length + more, sum(array.nbytes for array in arrays.values())
