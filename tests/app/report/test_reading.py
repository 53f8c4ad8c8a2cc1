"""What a run folder says while the run goes on, after a kill, and when it is over."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.report.reading import read_run
from privsyn_flower.app.report.summaries import ReportError
from privsyn_flower.common.progress import ProgressLog
from privsyn_flower.config import RunConfig, to_toml
from privsyn_flower.privacy.ledger.usage import exclusive, export
from privsyn_flower.runs import RunFolder, write_json, write_jsonl
from tests.app.report.pages import released

CONFIG = RunConfig.from_flat({"method": "pretext", "seed": 3, "epsilon": 1.29})


def begun(folder: Path) -> RunFolder:
    """A run after its first round."""
    run = RunFolder(folder)
    (folder / "config.toml").write_text(to_toml(CONFIG), encoding="utf-8")
    run.save_value("run", "abc")
    run.save_value("promised", {"epsilon": 1.29, "rounds": 8})
    run.save_checkpoint(1, {}, {"round": 1, "nodes_answered": 8})
    return run


def finish(folder: Path, **values: Any) -> None:
    summary = {"method": "pretext", "epsilon": 1.29, "threat_model": "honest-but-curious"}
    write_json(folder / "summary.json", summary | values)


def test_a_run_that_goes_on_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    run = begun(tmp_path / "one")
    with run.lock():
        found = read_run(run.path)
    assert (found.state, found.name, found.seed) == ("running", "one", 3)
    assert found.config == CONFIG and found.stored["epsilon"] == 1.29
    assert found.summary == {} and found.ledger is None and not found.problems
    assert found.metrics == [{"round": 1, "nodes_answered": 8}]
    assert found.invariants["rounds"] == 8
    assert found.texts(5) == [] and found.text_count() == 0
    assert read_run(run.path).state == "stopped"


def test_a_run_is_finished_with_its_benchmark(tmp_path: Path) -> None:
    run = begun(tmp_path / "one")
    finish(run.path, unfinished=["benchmark"])
    assert read_run(run.path).state == "stopped"
    finish(run.path)
    found = read_run(run.path)
    assert found.state == "finished" and found.summary


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    run = begun(tmp_path / "one")
    (run.path / "error.txt").write_text("too few nodes\n", encoding="utf-8")
    (run.path / "run.log").write_text("a b WARNING one node is slow\na b INFO x\n", "utf-8")
    found = read_run(run.path)
    assert (found.state, found.error) == ("failed", "too few nodes")
    assert found.warnings == ["one node is slow"]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no run"):
        read_run(tmp_path)
    with pytest.raises(ReportError, match="no folder"):
        read_run(tmp_path / "nothing")


def test_damage_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    run = begun(tmp_path / "one")
    (run.path / "summary.json").write_text('{"method": "pre', encoding="utf-8")
    (run.path / "checkpoints" / "promised.json").write_text("{", encoding="utf-8")
    (run.path / "config.toml").write_text("seed = 1\nno-such-key = 2\n", encoding="utf-8")
    found = read_run(run.path)
    assert found.summary == {} and found.config is None and found.invariants == {}
    assert found.stored == {"seed": 1, "no-such-key": 2}
    assert [problem.partition(":")[0] for problem in found.problems[:1]] == ["config.toml"]
    assert "summary.json" in found.problems[1] and "promised.json" in found.problems[2]
    assert len(found.metrics) == 1


def test_half_a_line_is_not_there_yet(tmp_path: Path) -> None:
    run = begun(tmp_path / "one")
    ProgressLog(run.path / "progress.jsonl")("rounds", 1, 8, "epsilon so far 0.4")
    for name in ("progress.jsonl", "synthetic.jsonl", "metrics.jsonl"):
        with (run.path / name).open("a", encoding="utf-8") as file:
            file.write('{"stage": "rounds", "te')
    found = read_run(run.path)
    assert [event["done"] for event in found.progress] == [1.0]
    assert found.texts(3) == [] and len(found.metrics) == 1


def test_events_are_thinned_and_none_is_doubled(tmp_path: Path) -> None:
    run = begun(tmp_path / "one")
    path = run.path / "progress.jsonl"
    steps = [(0, ""), *((n, "") for n in range(1, 500)), (500, "half"), (501, "half"), (900, "")]
    again = [(10, ""), (20, ""), (1000, "")]  # after a kill
    rows = [
        {"t": t, "stage": "rounds", "done": float(done), "total": 1000.0, "note": note}
        for t, (done, note) in enumerate([*steps, *again])
    ]
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.write('{"t": "late", "stage": "rounds", "done": 1, "total": 1}\n[1]\n')
    found = read_run(run.path).progress
    assert [event["done"] for event in found] == [0, 500, 900, 10, 1000]


def test_texts_are_spread_over_the_file(tmp_path: Path) -> None:
    run = begun(tmp_path / "one")
    rows = [{"text": f"text {n}\u2028", "topic": n} for n in range(10)]
    write_jsonl(run.path / "synthetic.jsonl", rows)
    found = read_run(run.path)
    assert found.text_count() == 10
    assert [row["topic"] for row in found.texts(4)] == [0, 2, 5, 7]
    assert found.texts(99) == rows and found.texts(0) == []
    with pytest.raises(ValueError, match="limit = -1"):
        found.texts(-1)


def test_a_line_beyond_all_bounds_is_left_out(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("privsyn_flower.app.report.reading.LONGEST_LINE", 64)
    run = begun(tmp_path / "one")
    rows = [{"text": "a"}, {"text": "b" * 1000}, {"text": "c"}]
    write_jsonl(run.path / "synthetic.jsonl", rows)
    assert [row["text"] for row in read_run(run.path).texts(9)] == ["a", "c"]


def test_the_ledger_of_several_runs_is_read_whole(tmp_path: Path) -> None:
    run, path = begun(tmp_path / "one"), tmp_path / "people.jsonl"
    released(path, "another", 3, "people")
    ledger = released(path, "abc", 2, "people")
    released(path, "abc-topics", 1, "people")
    run.save_value("ledger", {"id": ledger.header.id, "path": str(path)})
    with exclusive(ledger):  # a run that goes on does not keep readers out
        found = read_run(run.path).ledger
    assert found is not None and found.whole and found.shared
    assert [charge.run for charge in found.charges].count("another") == 3
    assert [charge.run for charge in found.own] == ["abc", "abc", "abc-topics"]
    assert math.isclose(found.epsilon(found.charges), ledger.spent_epsilon())
    assert math.isclose(found.epsilon(found.own), ledger.spent_epsilon("abc"))
    assert set(found.times) == {charge.id for charge in found.charges}


def test_without_the_ledger_the_copy_tells_of_this_run(tmp_path: Path) -> None:
    run, path = begun(tmp_path / "one"), tmp_path / "abc.jsonl"
    ledger = released(path, "abc", 2, "run abc")
    export(ledger, "abc", run.path / "ledger.jsonl")
    run.save_value("ledger", {"id": "another ledger took its place", "path": str(path)})
    found = read_run(run.path).ledger
    assert found is not None and not found.whole and not found.shared
    assert len(found.own) == len(found.charges) == 2
    (run.path / "ledger.jsonl").write_text('{"kind": "copy", "version": 4}\n', encoding="utf-8")
    damaged = read_run(run.path)
    assert damaged.ledger is None and damaged.problems[0].startswith("ledger: ")
