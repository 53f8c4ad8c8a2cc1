"""Topic models: assignment, files, the authors' format, and everything that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from privsyn_flower.common.arrays import F32
from privsyn_flower.text import topics
from privsyn_flower.text.topics import TopicModel, import_bertopic, load_topics, save_topics

WORDS = (("river", "stone"), ("cloud",), ("machine learning", "kernel"))


def unit_rows(count: int, dimension: int, seed: int = 0) -> F32:
    rows = np.random.default_rng(seed).normal(size=(count, dimension))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def model(**changes: Any) -> TopicModel:
    given = {"rows": unit_rows(3, 8), "keywords": WORDS, "embedder": "e" * 64, "sizes": (5, 3, 1)}
    return TopicModel(**{**given, **changes})


# --- assignment -------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 999))
def test_assign_is_argmax_of_the_cosine(texts: int, size: int, seed: int) -> None:
    made = model(rows=unit_rows(size, 16), keywords=(("word",),) * size, sizes=())
    rows = np.random.default_rng(seed).normal(size=(texts, 16)).astype(np.float32)
    expected = (rows.astype(np.float64) @ made.rows.T.astype(np.float64)).argmax(axis=1)
    assert np.array_equal(made.assign(rows), expected)
    assert np.array_equal(made.assign(rows * np.float32(1e-3)), expected)  # whatever the norm


def test_ties_go_to_the_lowest_index_and_no_row_to_no_topic() -> None:
    rows = np.eye(3, dtype=np.float32)[[0, 1, 1]]
    made = model(rows=rows)
    asked = np.array([[1, 1, 0], [0, 2, 0], [np.nan, 0, 0], [0, np.inf, 0], [0, 0, 5]], np.float32)
    assert made.assign(asked).tolist() == [0, 1, -1, -1, 0]
    assert made.assign(np.zeros((0, 3), np.float32)).shape == (0,)
    with pytest.raises(ValueError, match="dimension 4, candidates 3"):
        made.assign(np.ones((2, 4), np.float32))


def test_the_fingerprint_is_of_rows_words_and_embedder() -> None:
    first = model()
    assert first.fingerprint == model(sizes=()).fingerprint
    others = [
        model(rows=unit_rows(3, 8, seed=1)),
        model(keywords=(*WORDS[:2], ("machine learning", "kernels"))),
        model(embedder="f" * 64),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert len(first) == 3 and first.dimension == 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": np.zeros((0, 8), np.float32), "keywords": ()}, "must be float32 of 1 to 65,535"),
        ({"rows": unit_rows(3, 8).astype(np.float64)}, "float64"),
        ({"rows": unit_rows(3, 8) * np.float32(1.01)}, "row 0 has norm 1.01"),
        ({"rows": np.full((3, 8), np.nan, np.float32)}, "row 0 has norm nan"),
        ({"keywords": WORDS[:2]}, "2 lists of keywords for 3 topics"),
        ({"keywords": (*WORDS[:2], ())}, "topic 2 has 0 keywords, expected 1 to 10"),
        ({"keywords": (*WORDS[:2], ("w",) * 11)}, "11 keywords, expected 1 to 10"),
        ({"keywords": (*WORDS[:2], ("a, b",))}, "no comma"),
        ({"keywords": (*WORDS[:2], ("two\nlines",))}, "no new line"),
        ({"keywords": (*WORDS[:2], ("",))}, "1 to 64 characters"),
        ({"keywords": (*WORDS[:2], ("w" * 65,))}, "1 to 64 characters"),
        ({"embedder": ""}, "embedder"),
        ({"sizes": (1, 2)}, "2 sizes of 3 topics"),
        ({"sizes": (1, 2, -1)}, "sizes"),
    ],
)
def test_a_model_checks_itself(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        model(**changes)
    assert "ctcl.topics" in str(error.value)


# --- files ------------------------------------------------------------------------------------


def test_files_give_the_model_back(tmp_path: Path) -> None:
    made = model(keywords=(("naïve", "河"), *WORDS[1:]))
    save_topics(made, tmp_path / "new" / "folder")
    found = load_topics(tmp_path / "new" / "folder", made.embedder)
    assert np.array_equal(found.rows, made.rows) and found.keywords == made.keywords
    assert (found.sizes, found.fingerprint) == (made.sizes, made.fingerprint)
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "topics.json",
        "topics.safetensors",
    ]


def test_topics_of_another_embedder_are_refused(tmp_path: Path) -> None:
    save_topics(model(), tmp_path)
    with pytest.raises(ValueError, match=r"set models\.embedder to theirs, or make topics with it"):
        load_topics(tmp_path, "f" * 64)


def test_a_write_that_was_cut_short_is_seen(tmp_path: Path, monkeypatch: Any) -> None:
    save_topics(model(), tmp_path)
    written = []

    def fails(path: Path, data: bytes) -> None:
        if written:
            raise OSError("disk full")
        written.append(path)
        path.write_bytes(data)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(topics, "write_atomic", fails)
        save_topics(model(rows=unit_rows(3, 8, seed=1)), tmp_path)
    with pytest.raises(ValueError, match=r"is not the file that topics\.json names"):
        load_topics(tmp_path)


def rewritten(folder: Path, **changes: Any) -> None:
    path = folder / "topics.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "format 2, not 1: make the topics again"),
        ({"format": None, "topic_representations": {}}, "privsyn topics import"),
        ({"rows": None}, "is not the file"),
        ({"keywords": "river"}, "no lists of strings"),
        ({"keywords": [["river"], [1], ["cloud"]]}, "no lists of strings"),
        ({"keywords": [["river"], ["other"], ["cloud"]]}, "its words or its embedder have changed"),
        ({"embedder": "f" * 64}, "its words or its embedder have changed"),
        ({"sizes": [1.5, 2, 3]}, "sizes are no whole numbers"),
    ],
)
def test_damaged_words_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    save_topics(model(), tmp_path)
    rewritten(tmp_path, **changes)
    with pytest.raises(ValueError, match=said) as error:
        load_topics(tmp_path)
    assert "ctcl.topics" in str(error.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save_topics(model(), folder)
    return folder


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["topics.json", "topics.safetensors"]), st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(
    saved: Path, name: str, data: st.DataObject
) -> None:
    whole = (saved / name).read_bytes()
    content = bytearray(whole)
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        (saved / name).write_bytes(content)
        found = load_topics(saved)
    except ValueError:
        return
    finally:
        (saved / name).write_bytes(whole)
    assert found.fingerprint == model().fingerprint


@pytest.mark.parametrize("name", ["topics.json", "topics.safetensors"])
def test_a_missing_or_empty_file_is_named(tmp_path: Path, name: str) -> None:
    save_topics(model(), tmp_path)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=name):
        load_topics(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=rf"no topics \(ctcl.topics\): .*{name} is not there"):
        load_topics(tmp_path)


# --- BERTopic ---------------------------------------------------------------------------------


def bertopic(folder: Path, rows: F32, infos: Any) -> Path:
    save_file({"topic_embeddings": rows}, folder / "topic_embeddings.safetensors")
    (folder / "topic_infos.json").write_text(json.dumps(infos))
    return folder


def infos(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    words = [{"topic_idx": i, "topic_words": [f"word{i}", "more"]} for i in range(first, count)]
    return [{**one, "topic_words": None} if one["topic_idx"] == -1 else one for one in words]


@pytest.mark.parametrize("listed", [True, False])
def test_bertopic_without_its_outliers(tmp_path: Path, listed: bool) -> None:
    rows = unit_rows(4, 8) * np.float32(3)  # means of unit rows have other norms
    given = infos(3, first=-1 if listed else 0)
    found = import_bertopic(bertopic(tmp_path, rows, given[::-1]), "e" * 64)
    assert len(found) == 3 and found.keywords[2] == ("word2", "more") and found.sizes == ()
    np.testing.assert_allclose(found.rows, rows[1:] / 3, atol=1e-6)
    assert found.assign(rows[1:]).tolist() == [0, 1, 2]


def test_bertopic_that_kept_no_outliers(tmp_path: Path) -> None:
    rows = unit_rows(3, 8)
    found = import_bertopic(bertopic(tmp_path, rows, infos(3)), "e" * 64)
    np.testing.assert_allclose(found.rows, rows, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "given", "said"),
    [
        (unit_rows(5, 8), infos(3), "5 rows and topics 0..2"),
        (unit_rows(2, 8), infos(3), "2 rows and topics 0..2"),
        (unit_rows(3, 8), infos(4)[1:], "topics 1..3"),
        (unit_rows(3, 8), [], "lists no topics"),
        (unit_rows(3, 8), {"topics": 3}, "lists no topics"),
        (unit_rows(3, 8), infos(-1, first=-1) + infos(0, first=-1), "lists no topics"),
        (unit_rows(3, 8), infos(3) + infos(1), "there twice"),
        (unit_rows(3, 8), ["river"], "is no number"),
        (unit_rows(3, 8), [{"topic_idx": 0}], "no lists of strings"),
        (unit_rows(3, 8), [{"topic_idx": 0, "topic_words": [1]}], "no lists of strings"),
        (unit_rows(1, 8), [{"topic_idx": 0, "topic_words": []}], "topic 0 has 0 keywords"),
        (np.zeros((3, 8), np.float32), infos(3), "zero or not finite"),
        (np.full((3, 8), np.inf, np.float32), infos(3), "zero or not finite"),
        (np.zeros((3, 0), np.float32), infos(3), "expected a matrix of floats"),
        (np.ones(8, np.float32), infos(3), "expected a matrix of floats"),
    ],
)
def test_bertopic_that_does_not_fit(tmp_path: Path, rows: F32, given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        import_bertopic(bertopic(tmp_path, rows, given), "e" * 64)


@pytest.mark.parametrize("name", ["topic_infos.json", "topic_embeddings.safetensors"])
def test_bertopic_with_damaged_files(tmp_path: Path, name: str) -> None:
    path = bertopic(tmp_path, unit_rows(3, 8), infos(3)) / name
    path.write_bytes(b"{")
    with pytest.raises(ValueError, match=f"{name} .* is damaged"):
        import_bertopic(tmp_path, "e" * 64)
    path.unlink()
    with pytest.raises(ValueError, match=f"{name} is not there"):
        import_bertopic(tmp_path, "e" * 64)
