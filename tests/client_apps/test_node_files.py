"""A node of several users reads one file: what one of them writes is that user's text alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.client_apps.answers import _users_or_none
from privsyn_flower.client_apps.dropin.training import open_dropin
from privsyn_flower.client_apps.node.device import open_node
from tests.conftest import node_context

OTHERS = {"u0": ["good morning", 'he said "hi", twice'], "u2": ["two\nlines"], "u3": ["last"]}
TARGET = "u1"
HOSTILE = [
    'x"\nu0,evil\nu0,"y',
    '"\n' + "".join(f'"extra{i}","made up"\n' for i in range(200)),
    "".join(f"\nextra{i},made up" for i in range(200)),
    '"', '""', '"""', 'a "b', ",,,,", "\t\t", "a\tb\n\tc", "\n", "\r", "\r\nu3,evil\r\n",
    "\n" * 70_000,
    "\0", "u0\0,evil", "\ufeffu0,evil", "\u2028u0,evil", "\x1a",
    "user_id,text", "u3,evil", '{"user_id": "u3", "text": "evil"}',
    "word " * 60_000, 'x"y\nu0,evil\n' * 90_000, '"",' * 400_000,
]  # fmt: skip


def write(path: Path, own: list[str], *, end: str = "\r\n") -> Path:
    """TARGET's rows between those of the others, as a library writes them."""
    rows = [("u0", OTHERS["u0"][0]), (TARGET, "first"), ("u2", OTHERS["u2"][0])]
    rows += [(TARGET, text) for text in own]
    rows += [("u3", OTHERS["u3"][0]), (TARGET, own[0]), ("u0", OTHERS["u0"][1])]
    if path.suffix == ".jsonl":
        lines = (json.dumps({"user_id": user, "text": text}) + "\n" for user, text in rows)
        path.write_text("".join(lines))
    elif path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        names, texts = zip(*rows, strict=True)
        parquet.write_table(arrow.table({"user_id": names, "text": texts}), path)
    else:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        with path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle, delimiter=delimiter, lineterminator=end)
            writer.writerows([("user_id", "text"), *rows])
    return path


def hosted(folder: Path, path: Path) -> dict[str, list[str]]:
    """What the deployed node has: it stands for four users and refuses a file with more."""
    context = node_context({"data": str(path), "weight": 4, "cache": str(folder / "node")})
    node = open_node(context)
    assert node.facts.deployed
    return {user: list(texts) for user, texts in node.load().items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["csv", pytest.param("tsv", marks=pytest.mark.slow), "jsonl", "parquet"]
)
def test_hostile_texts_make_no_rows_and_change_no_others(tmp_path: Path, kind: str) -> None:
    """One by one and all together: no user more, no refusal, nobody else's text changed."""
    for own in (*([text] for text in HOSTILE), HOSTILE):
        found = hosted(tmp_path, write(tmp_path / f"users.{kind}", own))
        assert found.pop(TARGET)[0] == "first"
        assert found == OTHERS


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_other_line_ends(tmp_path: Path, end: str) -> None:
    """This writer leaves the other character of a line end without quotes."""
    for text in ("\r\nu3,evil\r\n", "a\rextra1,b\rextra2,c", "a\nextra1,b\nextra2,c", "\r", "\n"):
        found = hosted(tmp_path, write(tmp_path / "users.csv", [text], end=end))
        assert found.pop(TARGET)[0] == "first"
        assert found == OTHERS


@settings(max_examples=40, deadline=None)
@given(
    own=st.lists(
        st.text(st.one_of(st.sampled_from('",\t\n\r\0u0123'), st.characters(codec="utf-8"))),
        min_size=1, max_size=4,
    ),
    kind=st.sampled_from(["csv", "tsv", "jsonl", "parquet"]),
    end=st.sampled_from(["\n", "\r\n"]),
)  # fmt: skip
def test_any_texts(
    tmp_path_factory: pytest.TempPathFactory, own: list[str], kind: str, end: str
) -> None:
    folder = tmp_path_factory.mktemp("node")
    found = hosted(folder, write(folder / f"users.{kind}", own, end=end))
    assert found.pop(TARGET)[0] == "first"
    assert found == OTHERS


def test_an_id_that_several_people_share_is_left_out_alone_and_only_the_node_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users.csv"
    path.write_text("user_id,text\nu0,good morning\nnan,evening\n1.58222E+18,night\n")
    context = node_context({"data": str(path), "weight": 4, "cache": str(tmp_path / "node")})
    assert _users_or_none(open_node(context)) == {"u0": ["good morning"]}
    log = (tmp_path / "node" / "node.log").read_text()
    assert "the user id is 'nan', which stands for no one person (line 3)" in log
    assert "evening" not in log and "night" not in log
    assert caplog.text == ""  # nothing for Flower's log, which a server may read
    assert list(open_dropin(context, users=lambda context: ["u0", "NaN"]).load()) == ["u0"]
