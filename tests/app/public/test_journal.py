"""What a stage wrote and its state agree after a kill, and no file of another is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.public import journal as journals
from privsyn_flower.app.public.journal import Journal, read_state
from privsyn_flower.common.files import DataError, LockTaken
from privsyn_flower.runs import read_jsonl


def test_two_processes_do_not_write_one_stage(tmp_path: Path) -> None:
    with Journal(tmp_path, "chat", {}), pytest.raises(LockTaken):
        Journal(tmp_path, "chat", {}).__enter__()


def test_a_line_that_the_state_does_not_know_is_cut_off(tmp_path: Path) -> None:
    with Journal(tmp_path, "chat", {}) as journal:
        journal.add({"text": "kept"})
    with (tmp_path / "chat.jsonl").open("a") as file:
        file.write('{"text": "half a li')
    with Journal(tmp_path, "chat", {}) as journal:
        journal.add({"text": "next"})
    assert [line["text"] for line in read_jsonl(tmp_path / "chat.jsonl")] == ["kept", "next"]
    (tmp_path / "chat.jsonl").write_text("")
    with (
        pytest.raises(DataError, match="shorter than it was written"),
        Journal(tmp_path, "chat", {}),
    ):
        pass
    for damaged in ("{", '{"bytes": 0}', "[]", '{"bytes": null}', "\xff"):
        (tmp_path / "chat.state.json").write_text(damaged, "latin-1")
        with pytest.raises(DataError, match=r"chat.state.json is damaged"):
            Journal(tmp_path, "chat", {}).__enter__()


def test_a_file_that_no_stage_wrote_is_left_alone(tmp_path: Path) -> None:
    """A user's own, a link to one, and what a kill left before the first state."""
    own = tmp_path / "chat.jsonl"
    own.write_text("mine\n")
    with pytest.raises(DataError, match=r"nothing tells .* move it away"):
        Journal(tmp_path, "chat", {}).__enter__()
    with Journal(tmp_path, "filter", {}):
        pass
    (tmp_path / "filter.jsonl").unlink()
    (tmp_path / "filter.jsonl").symlink_to(own)
    with pytest.raises(DataError, match="is a symbolic link"):
        Journal(tmp_path, "filter", {}).__enter__()
    assert own.read_text() == "mine\n"
    journal = Journal(tmp_path, "convert", {}).__enter__()
    assert (read_state(tmp_path, "convert") or {})["bytes"] == 0  # before its first line
    journal.add({"text": "lost"})
    journal._left.close()  # as a kill does
    with Journal(tmp_path, "convert", {}) as journal:
        journal.add({"text": "kept"})
    assert read_jsonl(tmp_path / "convert.jsonl") == [{"text": "kept"}]


def test_the_state_stays_small_however_much_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 pieces, at most 8 under way, done in another order than they were taken."""
    monkeypatch.setattr(journals, "EVERY", 1e9)
    with Journal(tmp_path, "filter", {}) as journal:
        under_way: list[Any] = []
        for position, _ in journal.take(((i,), None) for i in range(20_000)):
            under_way.append(position)
            if len(under_way) == 8:
                journal.done(under_way.pop(position[0] % 8))
        assert len(journal.open) == 7
    assert (tmp_path / "filter.state.json").stat().st_size < 1000
    with Journal(tmp_path, "filter", {}) as journal:
        again = [position for position, _ in journal.take(((i,), None) for i in range(20_001))]
    assert again == [*sorted(under_way), (20_000,)]
