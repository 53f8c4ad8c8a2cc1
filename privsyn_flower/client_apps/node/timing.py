"""How much processor time an answer took, written down by simulated nodes only."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict

from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.local.timings import TIMINGS_FILE
from privsyn_flower.protocol.question import Ticket


@contextlib.contextmanager
def timed(node: Node, ticket: Ticket, users: int) -> Iterator[None]:
    """Append the CPU seconds of this block, all threads of the process, to the node's timings.

    users: that the node stands for. Nothing is written where a policy or a deployed node could
    make it anything else than a simulation, nor when the block raises; a file that cannot be
    written changes nothing else.
    """
    start = time.process_time()
    yield
    if node.policy is not None or node.facts.deployed:
        return
    entry = asdict(ticket) | {"cpu_seconds": time.process_time() - start, "users": users}
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file = os.open(node.cache / TIMINGS_FILE, flags, 0o600)
        try:
            os.write(file, (json.dumps(entry) + "\n").encode())
        finally:
            os.close(file)
