"""The secure sum without Flower: seconds and bytes of all nodes and the server, in one process.

    python benchmarks/secure_sum.py [--nodes 30 100 300] [--length 18000] [--bits 32]

Prints one row per number of nodes without and with dropouts (a fifth falls silent before its
masked vector arrives). Goals on two idle cores: 100 nodes in at most 8 s, with dropouts 15 s.
`node ms` is the mean over nodes that share this process and what it remembers of public texts
(signatures, the cohort); `alone ms` is one node with nothing remembered, as on a device, where
every message starts a process. `ratio` is `node ms` against that of the first row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privsyn_flower.secagg import Session, cohort, graph, keys, node
from privsyn_flower.secagg.server import SecureSum

STAGES = ("advertise", "share", "mask", "confirm", "unmask")


def once(stage: str, session: Session) -> None:
    """Nothing is remembered here."""


class Measured:
    """One session's times and bytes."""

    def __init__(self, nodes: int, length: int, bits: int, dropping: float) -> None:
        low = min(0.85, 1 - dropping)  # W_min / W: exactly the survivors suffice
        self.session = Session("benchmark", "sum", 1, 1, length, bits, low * nodes)
        self.ids = list(range(nodes))
        self.dead = set(self.ids[: int(dropping * nodes)])
        self.states: dict[int, dict[str, Any]] = {i: {} for i in self.ids}
        self.identities = {i: Ed25519PrivateKey.generate() for i in self.ids}
        self.vectors = np.random.default_rng(0).integers(-1000, 1000, (nodes, length))
        self.seconds = dict.fromkeys((*STAGES, "server", "alone"), 0.0)
        self.up = dict.fromkeys(self.ids, 0)
        self.down = dict.fromkeys(self.ids, 0)

    def nodes(
        self, stage: str, down: dict[int, tuple[bytes, ...]], act: Callable[..., bytes]
    ) -> dict[int, bytes]:
        """One stage of every node; the last one's is done with nothing remembered."""
        sent, last = {}, max(down)
        for i, parts in down.items():
            if i == last:
                for remembered in (keys.signed, cohort._decoded, graph._plan):
                    remembered.cache_clear()
            start = time.perf_counter()
            sent[i] = act(i, *parts)
            passed = time.perf_counter() - start
            self.seconds[stage] += passed
            self.seconds["alone"] += passed if i == last else 0.0
            self.up[i] += len(sent[i])
            self.down[i] += sum(map(len, parts))
        return sent

    def server(self, act: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = act(*arguments)
        self.seconds["server"] += time.perf_counter() - start
        return result

    def run(self) -> None:
        """All five stages; the sum is compared with the true one."""
        session, states, keys_of = self.session, self.states, self.identities
        secure, digest = SecureSum(session), session.digest
        head = session.to_json().encode()
        adverts = {}

        def advertise(i: int, _: bytes) -> bytes:
            adverts[i] = node.advertise(states[i], session, i, 1, keys_of[i])
            return adverts[i].encode()

        self.nodes("advertise", dict.fromkeys(self.ids, (head,)), advertise)
        members = self.server(secure.gather, adverts)
        dealt = self.nodes(
            "share",
            dict.fromkeys(self.ids, (members,)),
            lambda i, data: node.share(states[i], digest, data, lambda cohort: None, once),
        )
        relayed = self.server(secure.relay, dealt)
        masked = self.nodes(
            "mask",
            {i: parts for i, parts in relayed.items() if i not in self.dead},
            lambda i, *parts: node.mask(states[i], digest, *parts, lambda s, w: self.vectors[i]),
        )
        survivors = self.server(secure.survive, masked)
        signed = self.nodes(
            "confirm",
            dict.fromkeys(masked, (survivors,)),
            lambda i, data: node.confirm(states[i], digest, data, keys_of[i], once),
        )
        proof = self.server(secure.confirm, signed)
        given = self.nodes(
            "unmask",
            dict.fromkeys(signed, proof),
            lambda i, *parts: node.unmask(states[i], digest, *parts, once),
        )
        total = self.server(secure.total, given).astype(np.uint64)
        true = self.vectors[sorted(masked)].sum(axis=0).astype(np.uint64)
        if not np.array_equal(total, true & np.uint64(2**session.bits - 1)):
            raise RuntimeError("the sum is wrong")
        self.graph = secure.cohort.graph


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[30, 100, 300])
    parser.add_argument("--length", type=int, default=18_000)
    parser.add_argument("--bits", type=int, default=32)
    options = parser.parse_args()
    print(f"{options.length} coordinates of {options.bits} bits; seconds unless marked")
    columns = ("nodes", "dropped", "degree", "total", *STAGES, "server", "node ms", "ratio")
    columns += ("alone ms", "kB up", "kB down")
    print(" ".join(f"{name:>9}" for name in columns))
    Measured(8, 64, options.bits, 0.0).run()  # imports and first calls
    first = 0.0
    for dropping in (0.0, 0.2):
        for count in options.nodes:
            run = Measured(count, options.length, options.bits, dropping)
            run.run()
            spent = sum(run.seconds[stage] for stage in STAGES)
            each = 1000 * spent / count
            first = first or each
            row = [count, len(run.dead), run.graph.degree, spent + run.seconds["server"]]
            row += [run.seconds[stage] for stage in (*STAGES, "server")]
            row += [each, each / first, 1000 * run.seconds["alone"]]
            row += [max(run.up.values()) / 1000, max(run.down.values()) / 1000]
            print(" ".join(f"{x:9d}" if isinstance(x, int) else f"{x:9.2f}" for x in row))


if __name__ == "__main__":
    main()
