"""The claim that public text carries is found, and that it is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from privsyn_flower.app.public.proximity import TextScores
from privsyn_flower.app.public.source import (
    SCORES,
    STATEMENT,
    Source,
    carried,
    check_chosen,
    hand_on,
    statement_of_file,
)
from privsyn_flower.common.files import DataError
from privsyn_flower.privacy import sentence


def test_names_are_those_of_who_writes_them() -> None:
    assert STATEMENT == sentence.FILE and TextScores._fields == SCORES


def test_a_statement_lies_beside_a_file_or_in_its_folder(tmp_path: Path) -> None:
    file, said = tmp_path / "texts.jsonl", tmp_path / STATEMENT
    file.touch()
    assert carried(file) == carried(tmp_path) == ""
    said.write_text("# Privacy of this run\n\nEpsilon = 3\n")
    assert carried(file) == carried(tmp_path) == "# Privacy of this run\n\nEpsilon = 3"
    (tmp_path / "data").mkdir()  # as it is published, and as a run has its model
    assert carried(tmp_path / "data") == carried(f"hub:{tmp_path}#train:9") == carried(file)
    assert carried("hub:a/b") == ""
    links = tmp_path / "links" / "deeper"
    links.mkdir(parents=True)
    for name in (file.name, "data"):
        (links / name).symlink_to(tmp_path / name)
        assert carried(links / name) == carried(file)
    (links / STATEMENT).write_text("# Privacy of this run\n\nEpsilon = 4\n")
    assert carried(links / file.name) == f"{carried(links)}\n\n{carried(file)}"
    said.write_text("# Privacy\n\nOf a web site.")
    assert carried(file) == ""


def test_files_of_a_folder_have_their_own_statements(tmp_path: Path) -> None:
    """As `privsyn generate --out` writes them, and a data set with a folder for each epsilon."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "hi"}\n')
        said = f"# Privacy of this run\n\nEpsilon of {name}\n"
        statement_of_file(tmp_path / f"{name}.jsonl").write_text(said)
    own = [carried(tmp_path / f"{name}.jsonl") for name in ("one", "two")]
    assert all(own) and Source(str(tmp_path), "text").carried == "\n\n".join(own)
    assert carried(f"hub:{tmp_path}") == "\n\n".join(own)
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / STATEMENT).write_text("# Privacy of this run\n\nEpsilon of three\n")
    assert "\n\nEpsilon of three" in carried(f"hub:{tmp_path}")


@pytest.mark.parametrize("above", ["\ufeff", "**NO PRIVACY IS CLAIMED**: some went.\n\n", "\n\n"])
def test_what_stands_above_a_statements_title_hides_it_from_nobody(
    tmp_path: Path, above: str
) -> None:
    text = "# Privacy of this run\n\nEpsilon = 3"
    (tmp_path / STATEMENT).write_text(above + text)
    assert (
        carried(tmp_path / "texts.jsonl")
        == above.strip("\ufeff\n") + "\n\n" * ("CLAIMED" in above) + text
    )
    hand_on("# Privacy of this run\n\nEpsilon = 4", tmp_path)
    hand_on("# Privacy of this run\n\nEpsilon = 4", tmp_path)
    assert carried(tmp_path).count("Epsilon") == 2
    hand_on("", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_chosen_text_without_a_statement_is_refused(tmp_path: Path) -> None:
    columns = ("text", *SCORES)
    check_chosen(tmp_path, columns[:-1])
    with pytest.raises(DataError, match="a trained model chose its texts"):
        check_chosen(tmp_path, columns)
