"""Fine-tunings at once: what they find is the same, and none outlives an error or its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privsyn_flower.evaluation import process_pool
from privsyn_flower.evaluation.classification import Classifier
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.evaluation.process import CUT
from privsyn_flower.evaluation.process_pool import FineTuning, Line, sums_after, worth_at_once
from privsyn_flower.evaluation.rows import Work
from privsyn_flower.evaluation.tuning import Tuning
from tests.rigs.fitting import texts
from tests.text.conftest import causal_folder, masked_folder

__all__ = ["causal_folder", "masked_folder"]  # pytest finds fixtures by name

TUNING = Tuning(0, 4, 16, 3e-3, seed=4, epochs=2)
STEPS = replace(TUNING, epochs=0, steps=5)


@pytest.mark.slow
def test_at_once_is_one_after_the_other_to_the_last_bit(
    causal_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = Downstream(causal_folder, length=16)
    wanted = [
        FineTuning("a", model.encode(texts(1)), TUNING, "on a"),
        FineTuning("b", model.encode(texts(2)), STEPS, "on b"),
    ]
    users = {f"u{i}": model.encode(texts(3 + i, 2 * i)) for i in range(3)}  # one has nothing
    choice = model.encode(texts(9, 6))
    expected = sums_after(model, wanted, users, choice=choice)
    assert not np.array_equal(expected["a"], expected["b"]) and not expected["a"][0].any()
    model.reset()
    before, told = model.parameters(), list[tuple[str, float, float]]()
    work = Work(tmp_path / "work")
    found = sums_after(
        model,
        wanted,
        users,
        choice=choice,
        at_once=2,
        progress=lambda stage, done, total, note="": told.append((stage, done, total)),
        work=work,
    )
    for name, sums in expected.items():
        assert np.array_equal(found[name], sums), name
    assert [event for event in told if event[0] == "on a"] == [
        ("on a", n, 10) for n in range(1, 11)
    ]
    after = model.parameters()
    assert all(np.array_equal(before[name], after[name]) for name in before), "it was not needed"
    # Users' rows are gone with the folders; what was found is found again, by no process.
    assert {path.suffix for path in (tmp_path / "work").iterdir()} == {".json"}
    monkeypatch.setattr(process_pool, "sums_by_another", None)
    again = sums_after(model, wanted, users, choice=choice, at_once=2, work=work)
    assert all(np.array_equal(again[name], sums) for name, sums in expected.items())


def test_as_many_at_once_as_cores_and_memory_hold(
    causal_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Downstream(causal_folder, length=16)
    rows = model.encode(texts(1))
    job = FineTuning("a", rows, replace(STEPS, steps=1_000_000_000), "on a")
    monkeypatch.setattr(process_pool, "cpu_workers", lambda: 4)
    monkeypatch.setattr(process_pool, "main_memory", lambda: 1 << 40)
    assert worth_at_once(model, job) == 4
    assert worth_at_once(model, replace(job, tuning=STEPS)) == 1, "over before a process has begun"
    monkeypatch.setattr(process_pool, "main_memory", lambda: 5 * process_pool.PROCESS)
    assert worth_at_once(model, job) == 2, "half of the memory is theirs"
    monkeypatch.setattr(process_pool, "main_memory", lambda: 0)
    assert worth_at_once(model, job) == 1
    model.processes = 2  # they share each already
    monkeypatch.setattr(process_pool, "main_memory", lambda: 1 << 40)
    assert worth_at_once(model, job) == 1


class _Counting:
    """A model that counts how often it is tuned."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tuned = folder, 0

    def load_spec(self) -> dict[str, Any]:
        return {"model": str(self.folder), "length": 4}

    def packed(self, rows: Any) -> Any:
        return rows

    def fine_tune(self, *_: Any, **__: Any) -> None:
        self.tuned += 1

    def user_sums(self, users: Any) -> Any:
        return np.array([[float(self.tuned), 0.0, 1.0]])


def test_what_is_kept_is_of_the_models_content_and_not_of_its_place(tmp_path: Path) -> None:
    for name, content in (("one", b"a"), ("copy", b"a"), ("other", b"b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
    wanted, work = [FineTuning("a", [[1, 2]], STEPS, "on a")], Work(tmp_path / "work")

    def tuned(name: str) -> int:
        model = _Counting(tmp_path / name)
        sums_after(model, wanted, {"u": [[1, 2]]}, at_once=1, work=work)
        return model.tuned

    assert [tuned("one"), tuned("one"), tuned("copy"), tuned("other")] == [1, 0, 0, 1]
    (tmp_path / "one" / "model.safetensors").write_bytes(b"anew")
    assert tuned("one") == 1, "another model in the same place"


@pytest.mark.slow
def test_a_classifier_by_another_process_and_its_error(
    masked_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = Classifier(masked_folder, ["x", "y"], length=16, seed=3)  # its dropout is 0.1
    examples = model.encode(texts(1), ["x", "y"] * 10)
    assert model.unpacked(model.packed(examples)) == examples
    users = {"u": examples[:5], "nobody": [], "v": examples[5:9]}
    wanted = [FineTuning("a", examples, TUNING, "on a"), FineTuning("b", [], STEPS, "on b")]
    expected = sums_after(model, wanted[:1], users)
    work = SimpleNamespace(kept={}, once=None)

    def once(name: str, about: Any, make: Callable[[Path | None], Any]) -> Any:
        work.kept[name] = make(None)
        if name == "a":
            done.append(True)
        return work.kept[name]

    done = list[bool]()
    work.once = once
    with pytest.raises(RuntimeError, match=r"^on b: process 1 of 1 ended with 1: .*no text to "):
        # One after the other in a process each: the second finds nothing to learn from.
        sums_after(model, wanted, users, at_once=2, work=work, begun=_after(done, "b"))
    assert np.array_equal(np.array(work.kept["a"]), expected["a"])


def _after(done: list[bool], name: str) -> Any:
    """`begun`: the fine-tuning of this name waits for the other."""

    @contextmanager
    def begun(own: str) -> Any:
        while own == name and not done:
            time.sleep(0.05)
        yield

    return begun


class Named:
    """A model as far as digests go."""

    def load_spec(self) -> dict[str, Any]:
        return {"model": "of nothing"}

    def packed(self, rows: Any) -> Any:
        return rows


def jobs(*names: str) -> list[FineTuning]:
    return [FineTuning(name, [[1, 2]], TUNING, f"on {name}") for name in names]


def faked(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], None]) -> list[str]:
    """Processes that end when they are cut; `act` is called in the thread of each. Names of those
    that were begun, and `NAME cut`."""
    seen: list[str] = []

    def another(
        spec: Any, rows: Any, users: Any, tuning: Any, progress: Any, stage: str, **more: Any
    ) -> Any:
        name, line = stage.removeprefix("on "), more["line"]
        seen.append(name)
        act(name)
        command = [sys.executable, "-c", "import os; os.read(0, 1)"]
        if name.startswith("long"):
            assert subprocess.run(command, stdin=line.end, timeout=600).returncode == 0
            seen.append(f"{name} cut")
            raise RuntimeError(f"{stage}: ended")
        return [[len(name)]]

    monkeypatch.setattr(process_pool, "sums_by_another", another)
    return seen


def test_an_error_ends_the_others_and_is_the_one_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(name: str) -> None:
        if name == "bad":
            raise RuntimeError("on bad: process 1 of 1 ended with 1: ValueError: none")

    seen = faked(monkeypatch, act)
    work = Work(tmp_path / "work")
    with pytest.raises(RuntimeError, match="on bad"):
        sums_after(Named(), jobs("long", "good", "bad", "late"), {}, at_once=2, work=work)
    assert sorted(seen) == ["bad", "good", "long", "long cut"] and seen[-1] == "long cut"
    monkeypatch.setattr(process_pool, "sums_by_another", None)
    assert sums_after(Named(), jobs("good"), {}, at_once=2, work=work)["good"].tolist() == [[4]]


def test_an_interruption_ends_all_and_loses_nothing_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(name: str) -> None:
        if name == "long 2":
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    seen = faked(monkeypatch, act)
    work = Work(tmp_path / "work")
    # A shell's background job, as these tests may be, begins with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            sums_after(Named(), jobs("first", "long 1", "long 2", "late"), {}, at_once=2, work=work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(seen) == ["first", "long 1", "long 1 cut", "long 2", "long 2 cut"]
    seen = faked(monkeypatch, lambda name: None)
    found = sums_after(Named(), jobs("first", "last"), {}, at_once=2, work=work)
    assert seen == ["last"] and found["first"].tolist() == [[5]]


def test_a_process_ends_with_whoever_wanted_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "privsyn_flower.evaluation.process", str(tmp_path)]
    with Line() as line:
        os.mkfifo(tmp_path / process_pool.JOB)  # it waits for its job for ever
        process = subprocess.Popen(command, stdin=line.end)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        line.cut()
        assert process.wait(60) == CUT
