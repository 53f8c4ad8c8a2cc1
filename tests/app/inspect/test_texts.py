"""Where an inspection's texts come from, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.inspect.texts import InspectError, Texts, read_texts
from privsyn_flower.common.files import DataError, file_digest
from privsyn_flower.config import ConfigError
from privsyn_flower.text import load_embedder
from tests.app.inspect.rigs import make_run, people, sentence, write_users

SIMULATED: dict[str, Any] = {
    "benchmark": True, "data.users": 20, "data.held-out-users": 8, "data.development-users": 2,
    "data.samples-per-user": 2, "data.public-pool": 20, "data.public-validation": 5, "nodes": 3,
}  # fmt: skip


def read(run: Path, **options: Any) -> Texts:
    return read_texts(run, load_embedder, **options)


@pytest.fixture
def users(tmp_path: Path) -> tuple[Path, Path]:
    """Files of private and of held-out users."""
    rng = np.random.default_rng(0)
    files = [(name, people(name, 9, rng)) for name in ("private", "others")]
    first, second = (write_users(tmp_path / f"{name}.jsonl", made) for name, made in files)
    return first, second


def test_users_of_files(tmp_path: Path, users: tuple[Path, Path]) -> None:
    run = make_run(tmp_path / "run", ["one \u2028 text", "half \ud800"])
    found = read(run, against=users[0], held_out=users[1], embedder="ngram-64")
    assert found.synthetic == ["one \u2028 text", "half ?"]
    assert len(found.private) == len(found.held_out) == 9 and "private0" in found.private
    assert found.digest == file_digest(run / "synthetic.jsonl")
    assert found.load_embedder().embed(["a"]).shape == (1, 64)
    assert any("no public text" in note for note in found.notes)


def test_users_and_public_text_of_a_simulated_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    private = write_users(tmp_path / "private.jsonl", people("u", 30, rng))
    public = write_users(tmp_path / "public.jsonl", people("x", 10, rng))
    places = {"data.path": str(private), "data.public-path": str(public)}
    run = make_run(tmp_path / "run", [sentence(rng)], **SIMULATED, **places)
    found = read(run)
    assert len(found.private) == 20 and len(found.held_out) == 8
    assert {len(own) for own in found.private.values()} == {2}, "as much as a node reads"
    assert not set(found.private) & set(found.held_out) and 30 < len(found.public) <= 40
    assert [note for note in found.notes if "built again" in note]
    assert not [note for note in read(run).notes if "built again" in note], "it is there by now"
    assert read(run, held_out=write_users(tmp_path / "h.jsonl", people("h", 3, rng))).held_out


def test_held_out_users_must_be_others(tmp_path: Path, users: tuple[Path, Path]) -> None:
    run, rng = make_run(tmp_path / "run", ["text"]), np.random.default_rng(2)
    with pytest.raises(InspectError, match=r"9 of 9 held-out users are among .* by\s+their id"):
        read(run, against=users[0], held_out=users[0])
    one = people("p", 4, rng)
    same = {"h0": [one["p0"][0], "ok"], "h1": [one["p3"][2]], "h2": ["thank you all"]}
    one["p1"].append("thank you all")
    files = [write_users(tmp_path / f"{i}.jsonl", each) for i, each in enumerate((one, same))]
    with pytest.raises(InspectError, match=r"2 of 3 held-out users have a text .* \(2 texts\)"):
        read(run, against=files[0], held_out=files[1])
    short = write_users(tmp_path / "short.jsonl", {"h2": ["thank you all", "another"]})
    assert read(run, against=files[0], held_out=short).held_out, "short texts are so by chance"


def test_rows_without_a_column_of_users_are_users(tmp_path: Path, users: tuple[Path, Path]) -> None:
    run = make_run(tmp_path / "run", ["text"])
    found = read(run, against=users[0], held_out=users[1], columns=("", None))
    assert len(found.private) == len(found.held_out) == 36


def test_long_texts_are_cut_where_the_runs_were(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["text"], **{"data.chunk": True, "data.sample-words": 5})
    file = write_users(tmp_path / "u.jsonl", {"u": ["a b c d e f g h i j k"]})
    found = read(run, against=file)
    assert found.private == {"u": ["a b c d e", "f g h i j"]}
    assert "--against: left out: 1 x the rest" in found.notes[0]


@pytest.mark.parametrize(
    ("synthetic", "wanted"),
    [(None, r"has no synthetic\.jsonl: its method = 'pretext' wrote no text"),
     ([], "holds no text")],
)  # fmt: skip
def test_a_run_without_text(tmp_path: Path, synthetic: list[str] | None, wanted: str) -> None:
    with pytest.raises(InspectError, match=wanted):
        read(make_run(tmp_path / "run", synthetic))


def test_what_is_no_run_or_damaged(tmp_path: Path, users: tuple[Path, Path]) -> None:
    with pytest.raises(InspectError, match=r"no config\.toml"):
        read(tmp_path)
    run = make_run(tmp_path / "run", ["a"])
    for line in ('{"text": 3}', '{"label": "x"}', "[]", "{"):
        (run / "synthetic.jsonl").write_text(f"{line}\n")
        with pytest.raises(InspectError, match="damaged, or a row has no text"):
            read(run, against=users[0])


def test_files_without_users(tmp_path: Path, users: tuple[Path, Path]) -> None:
    run = make_run(tmp_path / "run", ["a"])
    with pytest.raises(InspectError, match=r"name their file with --against FILE"):
        read(run)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises((InspectError, DataError), match="holds no user with a text"):
        read(run, against=empty)
    with pytest.raises(DataError, match="user"):
        read(run, against=users[0], columns=("nobody", None))
    with pytest.raises(FileNotFoundError):
        read(run, against=tmp_path / "none.jsonl")
    (run / "config.toml").write_text("method = 3")
    with pytest.raises(ConfigError):
        read(run, against=users[0])
