"""TensorBoard's event files, in the run folder: `tensorboard --logdir RUN/tensorboard`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from privsyn_flower.app.tracking.events import Ended, RoundReleased, RunStarted, Stage, Value


class TensorBoard:
    """Scalars by round, and the promise and the settings as a page of text.

    Whatever a file has is on disk when a call returns; a resumed run adds another file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"

    def run_started(self, event: RunStarted) -> None:
        """Open a file; the page is written by the first start."""
        first = not self.folder.exists()
        self.writer = EventFileWriter(str(self.folder))
        if first:
            facts = {"run": event.run, "name": event.name, **event.facts, **event.settings}
            self._write(text_pb("run", _table(facts)), 0)

    def round_released(self, event: RoundReleased) -> None:
        """`rounds/NAME` at the round."""
        self._scalars(event.phase, event.values, event.round)

    def stage(self, event: Stage) -> None:
        """`stage_seconds/NAME` at the rounds released so far."""
        self._scalars("stage_seconds", {event.name: event.seconds}, event.round)

    def ended(self, event: Ended) -> None:
        """`result/NAME` at the last round, and the sentence that goes with it."""
        self._scalars("result", event.figures, event.round)
        if event.privacy_short:
            self._write(text_pb("result", event.privacy_short), event.round)
        self.writer.close()

    def _scalars(self, group: str, values: Mapping[str, Value], step: int) -> None:
        # What the `scalars` tab reads; it makes tensors of them itself.
        parts = [
            summary_pb2.Summary.Value(tag=f"{group}/{key}", simple_value=float(value))
            for key, value in values.items()
        ]
        self._write(summary_pb2.Summary(value=parts), step)

    def _write(self, summary: summary_pb2.Summary, step: int) -> None:
        event = event_pb2.Event(wall_time=time.time(), step=step, summary=summary)
        self.writer.add_event(event)
        self.writer.flush()


def _table(facts: Mapping[str, Value]) -> str:
    """Markdown, as TensorBoard's text tab shows it."""
    rows = [f"| {key} | {str(value).replace('|', '/')} |" for key, value in facts.items()]
    return "\n".join(["| key | value |", "|---|---|", *rows])


def tracker(folder: Path) -> TensorBoard:
    """Of a run folder."""
    return TensorBoard(folder)
