"""What one node knows about itself: its users' text (PRIVATE), its public weight, its policy.

A simulated node takes its shard of the federation named in the run config. A deployed node
takes everything from its own node config (`flower-supernode --node-config`) and nothing from
the server: `data` (a file of its users), `weight`, `cache`, the models, `policy`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context

from privsyn_flower.client_apps.node.failures import Failures, What
from privsyn_flower.client_apps.node.lifetime import Spent
from privsyn_flower.client_apps.node.node_log import FORMATS, node_logger, note_answer, note_refusal
from privsyn_flower.client_apps.node.policy import (
    Policy,
    check_cohort,
    check_member,
    load_policy,
    load_roster,
)
from privsyn_flower.client_apps.node.records import RECORDS_FILE, NodeRecords, Peer
from privsyn_flower.common.files import node_home, whole_path
from privsyn_flower.common.terminal import plain_log
from privsyn_flower.config import ConfigError
from privsyn_flower.protocol.greeting import RESOURCES, Hello
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.secagg import Cohort

if TYPE_CHECKING:
    from privsyn_flower.text.models.batches import SpecialTokens

logger = logging.getLogger("privsyn_flower")

UserTexts = Mapping[str, Sequence[str]]
NODE_KEYS = {
    "data",
    "label-column",
    "samples-per-user",
    "weight",
    "memory",
    "resources",
    "cache",
    "embedder",
    "downstream",
    "device",
    "policy",
    "log-format",
}
MEGABYTES = 1024  # of `memory`, if a device's owner says nothing
SIMULATED_KEYS = {"partition-id", "num-partitions"}  # all that Flower's simulation gives a node


@dataclass(frozen=True)
class Node:
    """One node. load() opens its users' text (PRIVATE) and must stay on the node.

    Texts with a label are `data.LabelledText`s. policy: what its owner allows; None in
    simulation, where one machine plays all parties. downstream: finds the folder of the language
    model whose changes may be evaluated; None: this node has none. central: the only node of a
    simulation whose server is trusted with it: nobody is there whom its time could tell anything.
    memory: bytes of embeddings that it may hold at once, more or less. failures: of the users'
    data, in the answer that is being made.
    """

    facts: Hello
    cache: Path
    embedder: str
    device: str
    policy: Policy | None
    noise_seed: int | None
    load: Callable[[], UserTexts]
    downstream: Callable[[], Path | None] = lambda: None
    central: bool = False
    failures: Failures = field(default_factory=Failures)
    memory: int = MEGABYTES << 20
    tell: Callable[[], None] = lambda: None  # says whose text this is, in a simulation
    log_format: str = "text"

    @property
    def records(self) -> NodeRecords:
        """What the node must not forget between messages."""
        return NodeRecords(self.cache / RECORDS_FILE)

    @property
    def timings(self) -> Path | None:
        """Where its timings go; None where it could be anything else than a simulation's."""
        return None if self.policy is not None or self.facts.deployed else self.cache

    def log(self) -> logging.Logger:
        """The node's local log; open it before the users' text, whose readers write to it, too."""
        return node_logger(self.cache, self.log_format)

    def failed(self, kind: What, error: BaseException, users: int, text: str) -> None:
        """What the data of `users` users raised, for the local log and file. Raises nothing."""
        with contextlib.suppress(Exception):
            self.failures.add(kind, error, users)
            self.log().error(text, exc_info=error)


def base_model(query: Query, node: Node) -> Path:
    """The folder of the node's own base model, which must be the one that the query is about.

    Raises WireError(MODEL) when it is another one, or not there.
    """
    from privsyn_flower.text.fingerprints import (
        DIGESTS_FILE,
        folder_fingerprint,
        persistent_digests,
    )

    try:
        folder = node.downstream()
        if folder is None:
            raise FileNotFoundError("this node has no downstream model (node-config downstream)")
        with persistent_digests(node.cache / DIGESTS_FILE):
            found = folder_fingerprint(folder)
    except Exception as error:  # of its own set-up, never of a user's data
        raise WireError(Refusal.MODEL, f"the base model is not available: {error}") from error
    if found != query.model:
        raise WireError(
            Refusal.MODEL, f"the query is about the base {query.model}, this node has {found}"
        )
    return folder


def check_ends(folder: Path, ends: SpecialTokens) -> None:
    """Refuse special tokens that this node's base lacks. Raises WireError(MALFORMED)."""
    from privsyn_flower.text.models.lm_metrics import check_special_tokens

    try:
        check_special_tokens(folder, ends)
    except ValueError as error:
        raise WireError(Refusal.MALFORMED, str(error)) from None


@contextlib.contextmanager
def alone(node: Node, text: str, users: int = 1) -> Iterator[None]:
    """What the data of one user, or of `users`, raises ends here: zeros; others' are untouched.

    text: for the node's local log.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # memory, and a panic of a tokenizer in Rust
        node.failed("answer", error, users, text)


def check_peers(cohort: Cohort, node: Node) -> None:
    """Raises unless this node joins such a sum: by its policy, and by whose keys these are.

    With a roster every member must be on it, with that key and weight. Without one, both are
    trusted on first use: a node id that shows another key or weight than before is refused.
    """
    if node.policy is None:
        return
    check_survivors(cohort, [True] * len(cohort.members), node)
    if node.policy.roster:
        roster = load_roster(node.policy.roster_path)
        for member in cohort.members:
            check_member(roster, member.identity, member.weight)
    else:
        peers = {str(m.id): Peer(m.identity, m.weight) for m in cohort.members}
        new = node.records.pin_all(peers)
        if new:
            logger.info("trusted on first use: the keys and weights of %d nodes", new)


def check_survivors(cohort: Cohort, listed: list[bool], node: Node) -> None:
    """Raises unless those of the cohort who are left are enough for this node's policy."""
    if node.policy is None:
        return
    check_cohort(
        node.policy,
        weights=[m.weight for m, here in zip(cohort.members, listed, strict=True) if here],
        min_weight=cohort.session.min_weight,
        colluding=cohort.session.colluding,
    )


def open_node(context: Context) -> Node:
    """The node described by Flower's context. Raises WireError(SETUP) for a wrong set-up."""
    if "data" in context.node_config or not in_simulation(context):
        return _deployed(context)
    return _simulated(context)


def in_simulation(context: Context) -> bool:
    """Only on positive evidence, else it is a device: a simulated node has no policy.

    Flower's simulation calls ClientApps inside Ray's actors, with a node config of these two keys
    and no other. A SuperNode's process is no actor, whatever its app does with Ray: it may be the
    driver of a cluster, its own or another's, and call tasks there. Another backend says so with
    PRIVSYN_SIMULATION=1 in the node's environment, which no server can set.
    """
    if os.environ.get("PRIVSYN_SIMULATION") == "1":
        return True
    return set(context.node_config) == SIMULATED_KEYS and _in_ray_actor()


def _in_ray_actor() -> bool:
    """Whether this process was started by Ray to be an actor; false for every driver."""
    ray = sys.modules.get("ray")  # imported by whoever runs an actor
    try:
        return bool(ray and ray.is_initialized() and ray.get_runtime_context().get_actor_id())
    except Exception:
        return False


def own_path(config: Mapping[str, object], key: str) -> Path | None:
    """What a key of the node config names, None for nothing. Raises WireError(SETUP) when it is
    relative; an embedder or model may have a name, which no folder here has."""
    value = str(config.get(key, ""))
    try:
        return whole_path(value, f"node-config {key}") if value else None
    except ValueError as error:
        raise WireError(Refusal.SETUP, str(error)) from None


def own_log_format(config: Mapping[str, object]) -> str:
    """What node-config log-format says. Raises WireError(SETUP) for none of FORMATS."""
    value = config.get("log-format", FORMATS[0])
    if value not in FORMATS:
        raise WireError(Refusal.SETUP, f"node-config log-format = {value!r} is none of {FORMATS}")
    return str(value)


def own_resources(config: Mapping[str, object]) -> str:
    """The group that the node's owner puts it in. Raises WireError(SETUP) for none of RESOURCES."""
    value = config.get("resources", "")
    if value not in RESOURCES:
        raise WireError(Refusal.SETUP, f"node-config resources = {value!r} is none of {RESOURCES}")
    return str(value)


def device_log(context: Context) -> tuple[Path, str] | None:
    """A device's folder and the format of its log, also where its set-up is wrong; None in a
    simulation."""
    config = context.node_config
    if not (set(config) - SIMULATED_KEYS) and in_simulation(context):
        return None
    with contextlib.suppress(WireError, RuntimeError, OSError):  # there may be no home
        folder = own_path(config, "cache") or node_home()
        return folder, "json" if config.get("log-format") == "json" else "text"
    return None


def note_answer_of(node: Node, ticket: Ticket, spent: Spent) -> None:
    """`note_answer` of a device; a simulation notes nothing."""
    if node.policy is not None:
        note_answer(node.cache, ticket, spent, node.log_format)


def note_refusal_of(context: Context | None, code: str, text: str) -> None:
    """`note_refusal` of the device whose context this is; None, and a simulation, note nothing."""
    if context is not None and (device := device_log(context)):
        note_refusal(device[0], code, text, device[1])


def _deployed(context: Context) -> Node:
    plain_log()
    config = context.node_config
    unknown = sorted(set(config) - NODE_KEYS - SIMULATED_KEYS)
    if unknown:
        raise WireError(
            Refusal.SETUP, f"unknown node-config keys {unknown}; known: {sorted(NODE_KEYS)}"
        )
    path, policy_path, cache = (own_path(config, key) for key in ("data", "policy", "cache"))
    if path is None or not path.is_file():
        raise WireError(Refusal.SETUP, f"node-config data = {str(path or '')!r} is not a file")
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise WireError(Refusal.SETUP, f"{path} needs pyarrow, which is in no device's extra")
    for key in ("embedder", "downstream"):
        if Path(str(config.get(key) or "/")).is_dir():
            own_path(config, key)
    weight, cap = config.get("weight", 1), config.get("samples-per-user", 0)
    if not isinstance(weight, int) or isinstance(weight, bool) or weight < 1:
        raise WireError(Refusal.SETUP, f"node-config weight = {weight!r} must be at least 1")
    if not isinstance(cap, int) or isinstance(cap, bool) or cap < 0:
        raise WireError(Refusal.SETUP, f"node-config samples-per-user = {cap!r} must be >= 0")
    memory = config.get("memory", MEGABYTES)
    if not isinstance(memory, int) or isinstance(memory, bool) or memory < 1:
        raise WireError(Refusal.SETUP, f"node-config memory = {memory!r} (MB) must be at least 1")
    try:
        policy = load_policy(policy_path)
    except ConfigError as error:
        raise WireError(Refusal.SETUP, str(error)) from None
    labels, base = str(config.get("label-column", "")), str(config.get("downstream", ""))

    def load() -> UserTexts:
        from privsyn_flower.data import load_samples, texts_of

        # Not strict: who labelled a text must not decide whether the others are read.
        users = texts_of(load_samples(path, label_column=labels, samples_cap=cap, strict=False))
        if len(users) > weight:  # who is hosted is public: refused, rather than dropped in silence
            raise WireError(
                Refusal.SETUP,
                f"{path} holds {len(users)} users, the node adds noise for weight = {weight}",
            )
        return users

    return Node(
        facts=Hello(
            weight,
            int(config.get("partition-id", 0)),
            deployed=True,
            resources=own_resources(config),
        ),
        cache=cache or node_home(),
        embedder=str(config.get("embedder", "minilm")),
        device=str(config.get("device", "auto")),
        policy=policy,
        noise_seed=None,
        load=load,
        downstream=lambda: _model_folder(base) if base else None,
        memory=memory << 20,
        log_format=own_log_format(config),
    )


def _simulated(context: Context) -> Node:
    from privsyn_flower.client_apps.node.simulated import Shard

    shard = Shard.of(context)
    seeded, group = shard.noise_seed is not None, shard.resources
    return Node(
        facts=Hello(shard.weight, shard.partition, deployed=False, seeded=seeded, resources=group),
        cache=shard.cache,
        embedder=shard.config.models.embedder,
        device=shard.config.models.device,
        policy=None,
        noise_seed=shard.noise_seed,
        load=shard.load,
        downstream=shard.downstream,
        central=shard.central,
        memory=shard.config.node_memory << 20,
        tell=shard.tell,
    )


def _model_folder(name: str) -> Path:
    from privsyn_flower.text.models.lm_metrics import base_folder

    return base_folder(name)
