"""TensorBoard's event files, in the run folder: `tensorboard --logdir RUN/tensorboard`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from privsyn_flower.app.tracking.public import Value


class TensorBoard:
    """Scalars by round, and the privacy plan and the settings as a page of text.

    Whatever a file has is on disk when a call returns; a resumed run adds another file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"

    def begin(
        self, run: str, name: str, facts: Mapping[str, Value], settings: Mapping[str, Value]
    ) -> None:
        """Open a file; the page is written by the first start."""
        first, self.last = not self.folder.exists(), 0
        self.writer = EventFileWriter(str(self.folder))
        if first:
            table = _table({"run": run, "name": name, **facts, **settings})
            self._write(text_pb("run", table), 0)

    def log(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Scalars group/NAME."""
        # What the `scalars` tab reads; it makes tensors of them itself.
        parts = [
            summary_pb2.Summary.Value(tag=f"{group}/{key}", simple_value=float(value))
            for key, value in values.items()
        ]
        self.last = step
        self._write(summary_pb2.Summary(value=parts), step)

    def end(self, status: str, privacy_short: str) -> None:
        """The sentence that goes with the result."""
        if privacy_short:
            self._write(text_pb("result", privacy_short), self.last)
        self.writer.close()

    def _write(self, summary: summary_pb2.Summary, step: int) -> None:
        event = event_pb2.Event(wall_time=time.time(), step=step, summary=summary)
        self.writer.add_event(event)
        self.writer.flush()


def _table(facts: Mapping[str, Value]) -> str:
    """Markdown, as TensorBoard's text tab shows it."""
    rows = [f"| {key} | {str(value).replace('|', '/')} |" for key, value in facts.items()]
    return "\n".join(["| key | value |", "|---|---|", *rows])


library = TensorBoard
