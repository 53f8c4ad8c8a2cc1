"""Run the examples of a page with privsyn-secagg, all nodes in this process.

    python scripts/secagg_trial.py docs/secure-sum.md

Only what that package asks for may be imported: anything else of the environment is refused.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

REFUSED = ("dp_accounting", "privsyn_flower", "scipy", "torch", "transformers")


class Refusing(MetaPathFinder):
    """An environment without the libraries of REFUSED."""

    def find_spec(self, name: str, *about: Any) -> None:
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"{name} is no part of privsyn-secagg's environment")


class Nodes:
    """A Grid whose nodes answer in this process. answers: node id -> message -> reply."""

    def __init__(self, answers: dict[int, Callable[[Any], Any]]) -> None:
        self.answers, self.replies = answers, dict[str, Any]()

    def get_node_ids(self) -> list[int]:
        return list(self.answers)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        sent = {message.metadata.message_id: message for message in messages}
        for key, message in sent.items():
            self.replies[key] = self.answers[message.metadata.dst_node_id](message)
        return list(sent)

    def pull_messages(self, keys: Iterable[str]) -> list[Any]:
        return [self.replies.pop(key) for key in keys if key in self.replies]


def nodes(answer: Callable[[Any, Any], Any], ids: Iterable[int]) -> Nodes:
    """Nodes with one handler and a state each."""
    from flwr.app import Context, RecordDict

    contexts = {i: Context(1, i, {}, RecordDict(), {}) for i in ids}
    return Nodes({i: lambda message, own=own: answer(message, own) for i, own in contexts.items()})


def main(page: Path) -> None:
    """The exact sum of the page's app, then the noisy one."""
    sys.meta_path.insert(0, Refusing())
    from flwr.app import RecordDict
    from privsyn_secagg import secure_sum
    from privsyn_secagg.protocol.messaging import in_process

    text = page.read_text("utf-8").replace("privsyn_flower", "privsyn_secagg")
    apps = []
    for code in re.findall(r"(?s)```python\n(.*?)```", text):
        apps.append(scope := dict[str, Any]())
        exec(compile(code, page.name, "exec"), scope)
    client, server, noisy = apps
    with tempfile.TemporaryDirectory() as home, in_process():
        os.environ["XDG_CACHE_HOME"] = home
        server["main"](nodes(client["app"], range(1, 5)), None)
        asked = {"message_type": "query.ages", "length": 3, "largest": 100_000, "min_nodes": 8}
        grid = nodes(noisy["ages"], range(11, 19))  # nobody met these
        total = secure_sum(grid, grid.get_node_ids(), RecordDict(), **asked) / 1024
        if not 0 < abs(total - [0, 0, 8]).max() < 40:
            sys.exit(f"{total} is not (0, 0, 8) with noise of standard deviation 4")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
