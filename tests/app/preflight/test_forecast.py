"""Counts of work times speeds; this machine's speeds, which are measured once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from privsyn_flower.app.preflight import speeds
from privsyn_flower.app.preflight.sizes import NAMED, size_of
from privsyn_flower.app.preflight.speeds import (
    FILE,
    forecast,
    memory_needed,
    memory_of,
    remember,
    seconds_of,
    speed_key,
    spoken,
    this_machine,
    timed,
    too_large,
)
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods.stages import Task
from tests.rigs.plan import BOX

LLAMA, GPT = NAMED["meta-llama/Llama-2-7b-hf"], NAMED["distilbert/distilgpt2"]
WRITING = Task("expansion", "writing", "generation", "generator", 640, 85)
TUNING = Task("benchmark", "tuning", "fine-tuning", "downstream", 65_536, 64)


def test_work_that_was_not_timed_takes_at_least_its_operations() -> None:
    seconds, known = seconds_of(TUNING, GPT, BOX)
    assert not known and seconds == 6 * GPT.parameters * 65_536 * 64 / 1e11
    assert seconds_of(replace(TUNING, adapters=True), GPT, BOX)[0] == seconds * 2 / 3
    written, _ = seconds_of(WRITING, LLAMA, BOX)
    assert written == 2 * LLAMA.parameters * 640 * 85 / 1e11
    assert seconds_of(replace(WRITING, times=3), LLAMA, BOX)[0] == 3 * written


def test_timed_work_goes_by_its_speed_and_a_cap_ends_it() -> None:
    box = replace(BOX, speeds={speed_key(TUNING, GPT): 1000.0})
    assert seconds_of(TUNING, GPT, box) == (65_536 * 64 / 1000, True)
    assert seconds_of(replace(TUNING, cap=60.0), GPT, box) == (60.0, True)
    assert not seconds_of(TUNING, LLAMA, box)[1], "another model's speed says nothing"


def test_memory_is_that_of_weights_and_their_optimiser() -> None:
    assert memory_of(TUNING, GPT, "cpu") == 16 * GPT.parameters
    assert memory_of(replace(TUNING, adapters=True), GPT, "cpu") == 4 * GPT.parameters
    assert memory_of(WRITING, LLAMA, "cuda") == 2 * LLAMA.parameters
    config = RunConfig.from_flat({"models.generator": LLAMA.name})
    needed = memory_needed(config, [WRITING, replace(WRITING, stage="control")], "cpu")
    assert needed == {"generator": (4 * LLAMA.parameters, WRITING)}
    [found] = too_large(needed, BOX)
    assert found.text.startswith("generation by models.generator needs more than 25.1 GiB")
    assert found.fatal and not list(too_large(needed, replace(BOX, memory=2**35)))


def test_a_stage_sums_its_tasks_and_says_what_it_cannot() -> None:
    config = RunConfig.from_flat({"models.generator": "somebody/unheard-of"})
    rows = Task("rounds", "rows", "embedding", "embedder", 100, 43, 8)
    nodes, size = replace(rows, what="users", times=1, nodes=True), size_of("embedder", config)
    assert size is not None
    box = replace(BOX, speeds={speed_key(rows, size): 4300.0})
    rounds, expansion = forecast(config, [rows, nodes, WRITING], box)
    assert (rounds.seconds, rounds.node_seconds, rounds.timed) == (8.0, 1.0, True)
    assert rounds.tasks[0] == "rows: 100 texts of 43 tokens, 8 times" and not rounds.unknown
    assert expansion.seconds is None and "models.generator" in expansion.unknown[0]
    served = RunConfig.from_flat({"generation.base-url": "http://localhost:1/v1"})
    [own] = forecast(served, [WRITING], BOX)
    assert own.seconds is None and "generation.base-url" in own.unknown[0]


def test_times_in_words() -> None:
    assert [spoken(s) for s in (0.2, 40, 300, 8000, 4e5, 1e9)] == [
        "less than a second", "40 s", "5 min", "2 h", "5 days", "32 years"
    ]  # fmt: skip


def test_a_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = this_machine(tmp_path, "cpu")
    assert found.operations > 1e8 and found.memory > 2**27

    def never() -> float:
        raise AssertionError("measured again")

    monkeypatch.setattr(speeds, "_cpu_rate", never)
    assert this_machine(tmp_path, "cpu") == found
    remember(tmp_path, replace(found, speeds={"embedding x": 5.0}))
    remember(tmp_path, replace(found, speeds={"generation y": 6.0}))
    again = this_machine(tmp_path, "cpu")
    assert again.speeds == {"embedding x": 5.0, "generation y": 6.0}
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / FILE).write_text("{half")
    with pytest.raises(AssertionError, match="measured again"):
        this_machine(tmp_path, "cpu")


def test_a_cache_that_takes_no_file_has_no_speeds(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert this_machine(tmp_path / "file", "cpu").operations > 0


def test_small_models_are_timed_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.from_flat({"cache": str(tmp_path), "models.device": "cpu"})
    tasks = [
        Task("rounds", "rows", "embedding", "embedder", 100, 43),
        Task("rounds", "fill", "mask-filling", "infiller", 100, 43),
    ]
    keys = [speed_key(task, s) for task in tasks if (s := size_of(task.model, config))]
    found = timed(config, tasks, BOX, seconds=60.0)
    assert len(keys) == 2 and all(found.speeds[key] > 10 for key in keys)
    monkeypatch.setattr(speeds, "WORK", {})  # nothing is timed twice
    assert timed(config, tasks, found, seconds=60.0) == found
    text = (tmp_path / FILE).read_text("utf-8")
    (stored,) = json.loads(text).values()
    assert set(stored) == {"operations", "speeds"} and set(stored["speeds"]) == set(keys)
    assert str(tmp_path) not in text


@pytest.mark.parametrize("wrong", ["0", "NaN", '"fast"', "{}", "[]"])
def test_figures_that_cannot_be_rates_are_measured_anew(tmp_path: Path, wrong: str) -> None:
    (tmp_path / FILE).write_text(f'{{"x": {{"operations": {wrong}, "speeds": {{}}}}}}')
    assert speeds._stored(tmp_path) == {}
    (tmp_path / FILE).write_text('{"x": {"operations": 2, "speeds": {}}}')
    assert speeds._stored(tmp_path)["x"]["operations"] == 2.0


def test_no_timing_begins_when_there_is_no_time(tmp_path: Path) -> None:
    config = RunConfig.from_flat({"cache": str(tmp_path)})
    assert timed(config, [TUNING], BOX, seconds=0.0).speeds == {}


def test_a_folders_name_is_not_kept(tmp_path: Path) -> None:
    size = size_of("generator", RunConfig())
    assert size is not None
    named = replace(size, name=str(tmp_path / "patients-of-doctor-x"))
    assert "patients" not in speed_key(WRITING, named)
