"""Seconds and bytes of work; this machine's figures, which are measured once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.estimates import machine as machines
from privsyn_flower.server_apps.estimates import timing
from privsyn_flower.server_apps.estimates.machine import FILE, Machine, remember, this_machine
from privsyn_flower.server_apps.estimates.memory import memory
from privsyn_flower.server_apps.estimates.shapes import NAMED, shape_of
from privsyn_flower.server_apps.estimates.stages import shapes_of, spoken, stage_of
from privsyn_flower.server_apps.estimates.timing import estimate, key, timed
from privsyn_flower.server_apps.estimates.work import Task, operations, tokens_of

LLAMA, GPT = NAMED["meta-llama/Llama-2-7b-hf"], NAMED["distilbert/distilgpt2"]
BOX = Machine("a box", "cpu", 2, 2**34, 2**34, {"4": 1e11, "2": 1e11}, 1e10)
WRITING = Task("expansion", "writing", "generation", "generator", 640, 85, 64, 100)
TUNING = Task("benchmark", "tuning", "fine-tuning", "downstream", 65_536, 64, 65_536)


def test_operations_are_two_for_each_parameter_and_token() -> None:
    body, head = GPT.body, GPT.head
    assert operations(TUNING, GPT) == 6 * (body + head) * 65_536 * 64
    asked = operations(WRITING, LLAMA)
    assert asked == 640 * (2 * LLAMA.body * 185 + 2 * LLAMA.head * 85)
    assert operations(replace(WRITING, times=3), LLAMA) == 3 * asked


def test_a_pretext_batch_has_a_terabyte_of_scores() -> None:
    """PrE-Text's 65,536 texts of 64 tokens: one copy of the scores alone has 843 GB."""
    once = 4 * 65_536 * 64 * GPT.vocabulary
    assert once == pytest.approx(843e9, rel=1e-3)
    assert memory(TUNING, GPT, "cpu") > 4 * once
    small = memory(replace(TUNING, batch=32, items=32), GPT, "cpu")
    assert 20 * GPT.parameters < small < 20 * GPT.parameters + 3e9
    unscored = memory(replace(TUNING, scored=0.0), GPT, "cpu")
    assert unscored == memory(TUNING, GPT, "cpu") - 4 * once


def test_a_generators_memory_is_weights_and_keys() -> None:
    cache = 64 * 185 * 2 * 32 * 4096
    on_gpu = memory(WRITING, LLAMA, "cuda")
    assert on_gpu == 2 * LLAMA.parameters + 2 * cache + 64 * 4 * 32000
    assert memory(WRITING, LLAMA, "cpu", workers=2) == 4 * LLAMA.parameters + 2 * (
        4 * cache + 64 * 4 * 32000
    )
    pairs = Task("rounds", "pairs", "preferences", "generator", 96, 300, 4)
    assert memory(pairs, LLAMA, "cuda") < memory(pairs, LLAMA, "cpu")


def test_untimed_work_takes_at_least_its_operations_and_its_weights() -> None:
    found = estimate(WRITING, LLAMA, BOX)
    reading = 10 * 86 * 4 * (LLAMA.body + LLAMA.head) / 1e10
    assert not found.timed
    assert found.seconds == pytest.approx(max(operations(WRITING, LLAMA) / 1e11, reading))
    slow = replace(BOX, bandwidth=1e9)
    assert estimate(WRITING, LLAMA, slow).seconds == pytest.approx(10 * reading)


def test_timed_work_goes_by_its_speed_and_a_cap_ends_it() -> None:
    box = replace(BOX, speeds={key(TUNING, GPT): 1000.0})
    found = estimate(TUNING, GPT, box)
    assert found.timed and found.seconds == 65_536 * 64 / 1000
    assert estimate(replace(TUNING, cap=60.0), GPT, box).seconds == 60.0
    assert not estimate(TUNING, LLAMA, box).timed, "another model's speed says nothing"


def test_a_stage_sums_its_tasks_and_says_what_it_cannot() -> None:
    config = RunConfig.from_flat({"models.generator": "somebody/unheard-of"})
    shapes = shapes_of(config)
    rows = Task("rounds", "rows", "embedding", "embedder", 100, 43, 1, times=8)
    nodes = replace(rows, what="users", times=1, nodes=True)
    box = replace(BOX, speeds={key(rows, shapes["embedder"]): 4300.0})  # type: ignore[arg-type]
    found = stage_of(config, [rows, nodes, WRITING], shapes, box)
    assert (found.server, found.nodes, found.first) == (8.0, 1.0, 2.0)
    assert found.timed and found.unknown == (WRITING,)


def test_words_and_times_in_words() -> None:
    assert tokens_of(48) == 64 and tokens_of(48, 60) == 60
    assert [spoken(s) for s in (0.2, 40, 300, 8000, 4e5, 1e9)] == [
        "less than a second", "40 s", "5 min", "2 h", "5 days", "32 years"
    ]  # fmt: skip


def test_a_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = this_machine(tmp_path, "cpu")
    assert found.operations["4"] > 1e8 and found.bandwidth > 1e7 and found.memory > 2**27

    def never() -> tuple[dict[str, float], float]:
        raise AssertionError("measured again")

    monkeypatch.setattr(machines, "_probe_cpu", never)
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
    assert this_machine(tmp_path / "file", "cpu").bandwidth > 0


def test_small_models_are_timed_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.from_flat({"cache": str(tmp_path), "models.device": "cpu"})
    tasks = [
        Task("rounds", "rows", "embedding", "embedder", 100, 43, 1),
        Task("rounds", "fill", "mask-filling", "infiller", 100, 43, 64),
    ]
    shapes = shapes_of(config)
    first = replace(BOX, operations={"4": 1e11})
    found = timed(config, tasks, first, seconds=60.0)
    assert all(found.speeds[key(t, shapes[t.model])] > 10 for t in tasks)  # type: ignore[arg-type]
    monkeypatch.setattr(timing, "WORK", {})  # nothing is timed twice
    assert timed(config, tasks, found, seconds=60.0) == found
    text = (tmp_path / FILE).read_text("utf-8")
    (kept,) = json.loads(text).values()
    assert set(kept) == {"operations", "bandwidth", "speeds"}
    assert set(kept["speeds"]) == {key(t, shapes[t.model]) for t in tasks}  # type: ignore[arg-type]
    assert str(tmp_path) not in text


@pytest.mark.parametrize("wrong", ['{"4": 0}', '{"4": NaN}', '{"4": "fast"}', "{}", "[]"])
def test_figures_that_cannot_be_rates_are_measured_anew(tmp_path: Path, wrong: str) -> None:
    (tmp_path / FILE).write_text(
        f'{{"x": {{"operations": {wrong}, "bandwidth": 1, "speeds": {{}}}}}}'
    )
    assert machines._stored(tmp_path) == {}
    (tmp_path / FILE).write_text('{"x": {"operations": {"4": 2}, "bandwidth": 1, "speeds": {}}}')
    assert machines._stored(tmp_path)["x"]["operations"] == {"4": 2.0}


def test_no_timing_begins_when_there_is_no_time(tmp_path: Path) -> None:
    config = RunConfig.from_flat({"cache": str(tmp_path)})
    assert timed(config, [TUNING], BOX, seconds=0.0).speeds == {}


def test_a_folders_name_is_not_kept(tmp_path: Path) -> None:
    shape = shape_of("generator", RunConfig())
    assert shape is not None
    named = replace(shape, name=str(tmp_path / "patients-of-doctor-x"))
    assert "patients" not in key(WRITING, named)
