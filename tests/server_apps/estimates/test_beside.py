"""How many fine-tunings go on at once: by cores, memory and what they are worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from privsyn_flower.app.preflight.plan import plan_of
from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.server_apps.estimates import beside
from privsyn_flower.server_apps.estimates.beside import START, at_once, here_at_once, need, together
from privsyn_flower.server_apps.estimates.machine import Machine
from privsyn_flower.server_apps.estimates.shapes import shape_of
from privsyn_flower.server_apps.estimates.stages import shapes_of, stage_of
from privsyn_flower.server_apps.estimates.work import Task
from privsyn_flower.server_apps.methods import recipe_of

ROOT = Path(__file__).parents[3]
BOX = Machine("a box", "cpu", 2, 2**34, 2**34, {"4": 1e11, "2": 1e11}, 1e10)
DEMO = load_config(ROOT / "configs" / "demo.toml")


def apart(config: RunConfig) -> list[Task]:
    return [task for task in recipe_of(config).work(config) if task.apart]


def test_the_demo_has_two_at_once_on_two_cores() -> None:
    tasks, shape = apart(DEMO), shape_of("downstream", DEMO)
    assert shape is not None and [task.times for task in tasks] == [4]
    assert at_once(tasks, shape, BOX) == 2
    assert at_once(tasks, shape, replace(BOX, workers=4)) == 4
    assert at_once(tasks, shape, replace(BOX, workers=64)) == 4, "there are no more"
    assert at_once(tasks, shape, replace(BOX, workers=1)) == 1
    assert at_once(tasks, shape, replace(BOX, device="cuda")) == 1
    # Half of the memory is theirs: three fit, and not quite three.
    three = replace(BOX, workers=4, main_memory=6 * need(tasks[0], shape))
    assert at_once(tasks, shape, three) == 3
    assert at_once(tasks, shape, replace(three, main_memory=three.main_memory - 2)) == 2
    assert at_once(tasks, shape, replace(three, main_memory=0)) == 1
    # A few steps are over before a process for them has begun.
    assert at_once([replace(tasks[0], items=32)], shape, three) == 1
    # Several processes share each already.
    shared = DEMO.evaluation.model_copy(update={"processes": 2})
    assert not apart(DEMO.model_copy(update={"evaluation": shared}))


def test_the_run_asks_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "this_machine", lambda cache, device: BOX)
    assert here_at_once(DEMO, recipe_of(DEMO).work(DEMO)) == 2
    monkeypatch.setattr(beside, "this_machine", None)  # is not asked for what is not worth it
    few = DEMO.evaluation.model_copy(update={"steps": 1})
    small = DEMO.model_copy(update={"evaluation": few})
    assert here_at_once(small, recipe_of(small).work(small)) == 1
    assert here_at_once(DEMO, []) == 1


def test_pieces_side_by_side_take_as_long_as_the_last() -> None:
    assert together([10, 10, 10, 10], 2) == 2 * (10 + START)
    assert together([10, 10, 10], 2) == 2 * (10 + START)
    assert together([30, 10, 10], 2) == 30 + START
    assert together([10], 4) == 10 + START


def test_the_plan_has_their_time_and_memory(tmp_path: Path) -> None:
    values = {**DEMO.flat(), "run-folder": str(tmp_path), "cache": str(tmp_path / "cache")}
    config = RunConfig.from_flat(values)
    tasks, shapes = recipe_of(config).work(config), shapes_of(config)
    tuned = [task for task in tasks if task.stage == "benchmark"]
    alone = stage_of(config, tuned, shapes, replace(BOX, workers=1))
    both = stage_of(config, tuned, shapes, BOX)
    assert (alone.at_once, both.at_once) == (1, 2)
    [one] = apart(config)
    shape = shapes["downstream"]
    assert shape is not None
    rest = stage_of(config, [task for task in tuned if not task.apart], shapes, BOX).seconds
    each = (alone.seconds - rest) / 4
    assert both.seconds == pytest.approx(rest + 2 * (each + START))
    plan = plan_of(config, tmp_path, BOX)
    [stage] = [stage for stage in plan.stages if stage.stage == "benchmark"]
    assert stage.memory == 2 * need(one, shape)
    assert any(line.endswith(", 4 times, 2 at once") for line in stage.tasks)
