"""The secure sum beside Flower's SecAgg+, all nodes in this process.

    python benchmarks/secagg_plus.py [--nodes 30 100] [--length 18000]

Flower has SecAgg+ in its legacy modules alone, which nothing else here imports. Both sides sum the
same floats in steps of 2^-18 modulo 2^32, with as many neighbours and shares; in half of the rows a
fifth of the nodes falls silent when the masked vectors are due. `node ms` is the processor's time
of one node over all its messages, with nothing remembered of what others computed, as on a device;
`kB` are of its records as they travel. Each sum is compared with the true one.
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from privsyn_flower import secure_sum, secure_vector
from privsyn_flower.protocol.messaging import in_process, outgoing
from privsyn_flower.protocol.secure import stage_of
from privsyn_flower.secagg import cohort, graph, keys

try:
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters
    from flwr.common import parameters_to_ndarrays as arrays_of
    from flwr.common.serde import recorddict_to_proto
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
    from flwr.server.workflow.secure_aggregation import secaggplus_workflow as workflow
except ImportError as error:
    sys.exit(f"this flwr has no SecAgg+ to compare with: {error}")

STEPS, CLIP = 2**22, 8.0  # of SecAgg+: integers for [-CLIP, CLIP]
LOST = 0.2
Answer = Callable[[Message, Context], Message]


class Nodes:
    """A Grid of nodes in this process that counts what they cost. silent: who sends nothing in the
    stage `mask`, and from then on. stage(message): of the protocol."""

    def __init__(
        self, answers: dict[int, Answer], silent: set[int], stage: Callable[[Message], str | None]
    ) -> None:
        self.answers, self.silent, self.stage = answers, silent, stage
        self.contexts = {i: Context(1, i, {}, RecordDict(), {}) for i in answers}
        self.seconds, self.up, self.down = 0.0, dict.fromkeys(answers, 0), dict.fromkeys(answers, 0)
        self.replies = dict[str, Message]()

    def get_node_ids(self) -> list[int]:
        return list(self.answers)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        for message in sent:
            node = message.metadata.dst_node_id
            self.down[node] += size(message.content)
            if node in self.silent and self.stage(message) == "mask":
                continue
            for remembered in (keys.signed, cohort._decoded, graph._plan):
                remembered.cache_clear()
            start = time.process_time()
            reply = self.answers[node](message, self.contexts[node])
            self.seconds += time.process_time() - start
            self.up[node] += size(reply.content)
            self.replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(key) for key in ids if key in self.replies]

    def send_and_receive(self, messages: Iterable[Message], **_: Any) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def ours(vectors: np.ndarray, lost: set[int], shape: graph.Graph) -> tuple[Nodes, np.ndarray]:
    """The grid after the sum, and the sum of (nodes, length) float vectors."""
    count = len(vectors)
    with tempfile.TemporaryDirectory() as folder:

        def node(i: int) -> Answer:
            return secure_vector(folder=Path(folder) / str(i))(lambda message, context: vectors[i])

        grid = Nodes({i: node(i) for i in range(count)}, lost, stage_of)
        total = secure_sum(
            grid, range(count), RecordDict(), message_type="query.sum",
            length=vectors.shape[1], largest=CLIP, scale=STEPS / (2 * CLIP),
            min_nodes=least(count, lost), timeout=0.2,
        )  # fmt: skip
    return grid, total


def theirs(vectors: np.ndarray, lost: set[int], shape: graph.Graph) -> tuple[Nodes, np.ndarray]:
    """The same by SecAgg+, whose weighted mean of weights 1 is the sum over its nodes' number."""

    def node(i: int) -> Answer:
        def trained(message: Message, context: Context) -> Message:
            status = Status(Code.OK, "")
            result = FitRes(status, ndarrays_to_parameters([vectors[i]]), 1, {})
            return Message(compat.fitres_to_recorddict(result, True), reply_to=message)

        return lambda message, context: secaggplus_mod(message, context, trained)

    def stage(message: Message) -> str | None:
        masks = workflow.Stage.COLLECT_MASKED_VECTORS
        record = message.content.config_records[workflow.RECORD_KEY_CONFIGS]
        return "mask" if record[workflow.Key.STAGE] == masks else None

    means: list[np.ndarray] = []
    nodes = [SimpleNamespace(node_id=i) for i in range(len(vectors))]
    strategy = SimpleNamespace(
        configure_fit=lambda turn, start, manager: [(n, FitIns(start, {})) for n in nodes],
        aggregate_fit=lambda turn, results, failures: (
            means.extend(arrays_of(results[0][1].parameters)), {},
        ),
    )  # fmt: skip
    grid = Nodes({i: node(i) for i in range(len(vectors))}, lost, stage)
    state = RecordDict({
        MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: 1}),
        MAIN_PARAMS_RECORD: compat.parameters_to_arrayrecord(ndarrays_to_parameters([]), True),
    })  # fmt: skip
    context = LegacyContext(
        Context(1, 0, {}, state, {}), None, strategy,
        SimpleNamespace(num_available=lambda: len(vectors)),
    )  # fmt: skip
    made, workflow.Message = workflow.Message, message_of
    try:
        workflow.SecAggPlusWorkflow(
            shape.degree + 1, shape.threshold, max_weight=1.0, clipping_range=CLIP,
            quantization_range=STEPS,
        )(grid, context)  # fmt: skip
    finally:
        workflow.Message = made
    (mean,) = means
    return grid, mean * (len(vectors) - len(lost))


def size(content: RecordDict) -> int:
    """Bytes of a message's records as they travel."""
    return int(recorddict_to_proto(content).ByteSize())


def message_of(content: RecordDict, dst_node_id: int, message_type: str, group_id: str) -> Message:
    """What Flower's Message makes in a process of its own, of a content that many share."""
    return outgoing(copy.deepcopy(content), dst_node_id, message_type, ttl=60.0, group_id=group_id)


def least(count: int, lost: set[int]) -> int:
    """W_min: with a margin of 15 % for nodes that drop out, or of those that do."""
    return int(min(0.85 * count, count - len(lost)))


def compare(count: int, length: int, dropping: float) -> list[list[float]]:
    """(processor's ms of a node, of the server, kB up and down of a node), ours and theirs."""
    vectors = np.random.default_rng(0).uniform(-1.0, 1.0, (count, length))
    lost = set(range(int(dropping * count)))
    true = vectors[len(lost) :].sum(axis=0)
    shape = graph.plan([1] * count, least(count, lost), 0.0)
    rows = []
    for way in (ours, theirs):
        start = time.process_time()
        grid, total = way(vectors, lost, shape)
        spent = time.process_time() - start - grid.seconds
        if not np.allclose(total, true, atol=count * 2.0**-17):
            raise RuntimeError(f"{way.__name__}: the sum is wrong")
        kilobytes = [max(sums.values()) / 1000 for sums in (grid.up, grid.down)]
        rows.append([1000 * grid.seconds / count, 1000 * spent, *kilobytes])
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[30, 100])
    parser.add_argument("--length", type=int, default=18_000)
    options = parser.parse_args()
    for name in ("flwr", "privsyn_flower"):
        logging.getLogger(name).setLevel(logging.ERROR)
    columns = ("nodes", "lost", "", "node ms", "server ms", "kB up", "kB down")
    print(" ".join(f"{name:>9}" for name in columns))
    with in_process():
        compare(8, 64, 0.0)  # imports and first calls
        for dropping in (0.0, LOST):
            for count in options.nodes:
                rows = compare(count, options.length, dropping)
                ratio = [own / other for own, other in zip(*rows, strict=True)]
                for name, row in zip(("ours", "SecAgg+", "ratio"), [*rows, ratio], strict=True):
                    figures = " ".join(f"{x:9.2f}" for x in row)
                    print(f"{count:9d} {int(dropping * count):9d} {name:>9} {figures}")


if __name__ == "__main__":
    main()
