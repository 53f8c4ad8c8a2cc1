"""One user's texts never change another user's embeddings, whatever goes wrong with them."""

from __future__ import annotations

import logging
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from privsyn_flower.data import EmbeddingCache, caches
from privsyn_flower.data.vectors import VectorFile
from privsyn_flower.text import ModelUnavailableError
from tests.rigs.caches import USERS, Embedder

Rows = npt.NDArray[np.float32]
FILE = "embeddings.sqlite"


class Panic(BaseException):
    """What a panic in a tokenizer's Rust code looks like from Python."""


@pytest.fixture(autouse=True)
def fresh_process() -> None:
    caches._memo.clear()


@pytest.fixture
def node_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logger = logging.getLogger("privsyn_flower.node")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def by_user(
    folder: Path,
    users: dict[str, list[str]],
    embed: Callable[[list[str]], npt.NDArray[np.floating]],
) -> dict[str, Rows]:
    """user -> rows as a fresh process gets them, for users who have any."""
    caches._memo.clear()
    rows, owner = EmbeddingCache(folder, "m").get(users, embed)
    names = list(users)
    return {names[i]: rows[owner == i] for i in np.unique(owner)}


def failing(error: BaseException | float) -> Callable[[list[str]], npt.NDArray[np.floating]]:
    """Embeds everything but `vier`, the one text of user ü."""

    def embed(texts: list[str]) -> npt.NDArray[np.floating]:
        rows = Embedder()(texts)
        if "vier" in texts:
            if isinstance(error, BaseException):
                raise error
            rows[texts.index("vier")] = error
        return rows

    return embed


FAULTS = [ValueError("vier"), MemoryError(), Panic("vier"), RuntimeError("vier"), np.nan, np.inf]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_a_user_who_fails_costs_nobody_else(
    tmp_path: Path,
    fault: BaseException | float,
    node_log: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = by_user(tmp_path, USERS, failing(fault))
    assert list(found) == ["a", "c"]
    np.testing.assert_array_equal(found["a"], Embedder()(["one", "two"]))
    np.testing.assert_array_equal(found["c"], Embedder()(["three", "one"]))
    assert "user 3 of this node has no embeddings" in node_log.text
    assert "vier" not in node_log.text + "".join(capfd.readouterr())
    with sqlite3.connect(tmp_path / FILE) as database:
        assert database.execute("SELECT user FROM embeddings").fetchall() == [("a",), ("c",)]
    again = Embedder()  # a failure that passes is no loss for good, in this process or the next
    assert EmbeddingCache(tmp_path, "m").get(USERS, again)[0].shape == (5, 16)
    assert again.asked == ["vier"]


def test_everybody_fails(tmp_path: Path) -> None:
    def never(_: list[str]) -> Rows:
        raise ValueError("secret")

    rows, owner = EmbeddingCache(tmp_path, "m").get(USERS, never)
    assert (len(rows), len(owner)) == (0, 0)
    rows, owner = EmbeddingCache(tmp_path, "m").get({"ü": ["vier"]}, failing(Panic()))
    assert (rows.shape, len(owner)) == ((0, 16), 0)


@pytest.mark.parametrize("shape", [(4, 3), (5,), (5, 0)])
def test_an_embedder_of_the_wrong_shape_gives_no_rows(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    assert by_user(tmp_path, USERS, lambda _: np.zeros(shape)) == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()], ids=repr)
def test_what_ends_the_process_is_raised(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        by_user(tmp_path, USERS, failing(error))
    assert caught.value is error


@pytest.mark.parametrize(
    "error", [ModelUnavailableError("no model"), ImportError("torch")], ids=repr
)
def test_without_an_embedder_a_changed_text_takes_nobody_along(
    tmp_path: Path, error: BaseException
) -> None:
    """The embedder is asked for only where rows are missing."""

    def absent(texts: list[str]) -> npt.NDArray[np.floating]:
        raise error

    kept = by_user(tmp_path, USERS, Embedder())
    assert "ü" in kept and len(kept) > 1
    found = by_user(tmp_path, {**USERS, "ü": ["another text"]}, absent)
    assert found.keys() == kept.keys() - {"ü"}
    for user, rows in found.items():
        np.testing.assert_array_equal(rows, kept[user])
    assert by_user(tmp_path / "fresh", USERS, absent) == {}


@pytest.mark.parametrize(
    "error", [ModelUnavailableError("no model"), ImportError("a normaliser")], ids=repr
)
def test_a_text_for_which_the_embedder_lacks_a_part_takes_nobody_along(
    tmp_path: Path, error: BaseException
) -> None:
    embedder = Embedder()

    def lacking(texts: list[str]) -> npt.NDArray[np.floating]:
        if "rare script" in texts:
            raise error
        return embedder(texts)

    users = {"first": ["rare script"], **USERS}
    found = by_user(tmp_path, users, lacking)
    alone = by_user(tmp_path / "without", USERS, embedder)
    assert found.keys() == alone.keys() and len(alone) > 1
    for user, rows in found.items():
        np.testing.assert_array_equal(rows, alone[user])


def test_an_embedder_that_mixes_its_texts_mixes_no_users(tmp_path: Path) -> None:
    """Padding and block sizes tie the rows of one call together; users never share one."""

    def mixing(texts: list[str]) -> npt.NDArray[np.floating]:
        return Embedder()(texts) + sum(map(len, texts)) * 1e-7

    alone = by_user(tmp_path / "a", {"a": USERS["a"]}, mixing)["a"]
    crowd = {"z": ["long " * 500], **USERS, "y": [""]}
    np.testing.assert_array_equal(by_user(tmp_path / "b", crowd, mixing)["a"], alone)


def damage(kind: str, path: Path) -> None:
    if kind == "no database":
        path.write_bytes(b"nonsense " * 999)
        return
    width = {"width": 3, "another user's": 16}.get(kind)
    block = np.ones((1, width), np.float32) if width else np.full((1, 16), np.nan, np.float32)
    values: dict[str, object] = {"not bytes": "text", "torn": b"123"}
    with sqlite3.connect(path) as database:
        database.execute(
            "UPDATE embeddings SET vectors = ? WHERE user = 'ü'",
            (values.get(kind, block.tobytes()),),
        )


@pytest.mark.parametrize(
    "kind", ["no database", "width", "another user's", "not finite", "not bytes", "torn"]
)
def test_a_damaged_cache_is_done_without(
    tmp_path: Path, kind: str, node_log: pytest.LogCaptureFixture
) -> None:
    whole = by_user(tmp_path, USERS, Embedder())
    damage(kind, tmp_path / FILE)
    found = by_user(tmp_path, USERS, Embedder())
    assert list(found) == list(whole)
    for user, rows in whole.items():
        np.testing.assert_array_equal(found[user], rows)
    by_user(tmp_path, USERS, Embedder())  # a file that is no database was replaced meanwhile
    again = Embedder()
    by_user(tmp_path, USERS, again)
    assert again.asked == []
    assert ("cannot be read" in node_log.text) == (kind == "no database")


def test_one_fingerprint_with_two_widths(tmp_path: Path) -> None:
    """Rows kept by a model that changed under its fingerprint: all are computed again."""
    by_user(tmp_path, USERS, Embedder())

    def narrow(texts: list[str]) -> npt.NDArray[np.floating]:
        return np.ones((len(texts), 3))

    found = by_user(tmp_path, {**USERS, "d": ["x"]}, narrow)
    assert {user: rows.shape for user, rows in found.items()} == {
        "a": (2, 3), "c": (2, 3), "ü": (1, 3), "d": (1, 3)
    }  # fmt: skip


@pytest.mark.parametrize("method", ["read", "write", "keep_only"])
@pytest.mark.parametrize("error", [sqlite3.OperationalError("locked"), OSError("disk full")])
def test_a_cache_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(VectorFile, method, broken)
    found = by_user(tmp_path, USERS, Embedder())
    assert list(found) == ["a", "c", "ü"]


def test_a_cache_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("")
    assert len(by_user(tmp_path / "node", USERS, Embedder())) == 3


def test_rows_of_users_and_texts_that_are_gone_are_erased(tmp_path: Path) -> None:
    by_user(tmp_path, USERS, Embedder())
    caches._memo.clear()
    EmbeddingCache(tmp_path, "other").get(USERS, Embedder())
    gone = Embedder()(["three", "vier"])
    assert all(row.tobytes() in (tmp_path / FILE).read_bytes() for row in gone)
    by_user(tmp_path, {"a": USERS["a"], "c": []}, Embedder())  # c has no text, ü is no user now
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(row.tobytes() in stored for row in gone)
    with sqlite3.connect(tmp_path / FILE) as database:
        kept = database.execute("SELECT user, model FROM embeddings ORDER BY model").fetchall()
    assert kept == [("a", "m"), ("a", "other")]


def test_no_journal_keeps_old_pages(tmp_path: Path) -> None:
    """While a change is under way, the pages it replaces are nowhere but in memory."""
    by_user(tmp_path, USERS, Embedder())
    file = VectorFile(tmp_path, "m")
    with file._open() as database:
        database.execute("DELETE FROM embeddings WHERE user = 'c'")
        assert [path.name for path in tmp_path.iterdir()] == [FILE]
        database.commit()


def test_rows_of_another_layout_are_erased(tmp_path: Path) -> None:
    """Rows that an earlier version computed in mixed batches are not used, nor left there."""
    old = Embedder()(["one", "two"])
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute(
            "CREATE TABLE embeddings (user TEXT NOT NULL, model TEXT NOT NULL, texts BLOB NOT "
            "NULL, rows INTEGER NOT NULL, vectors BLOB NOT NULL, PRIMARY KEY (user, model))"
        )
        hashed = caches.texts_hash(["one", "two"])
        values = ("a", "m", hashed, 2, (old + 1).tobytes())
        database.execute("INSERT INTO embeddings VALUES (?, ?, ?, ?, ?)", values)
    (tmp_path / FILE).chmod(0o644)
    found = by_user(tmp_path, {"a": ["one", "two"]}, Embedder())
    np.testing.assert_array_equal(found["a"], old)
    assert (old + 1).tobytes() not in (tmp_path / FILE).read_bytes()
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
