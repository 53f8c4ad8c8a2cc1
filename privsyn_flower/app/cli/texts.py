"""What `privsyn public proximity` chooses from: a file of public text, or a corpus folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from privsyn_flower.app.public.source import USER, carried, check_chosen
from privsyn_flower.files import DataError

if TYPE_CHECKING:
    from privsyn_flower.app.public.proximity import Pool, Row
    from privsyn_flower.config.data import DataConfig

STAGE = "stage"  # column of a corpus folder's lines: which stage wrote them
OTHER = "other"  # what is told of a stage that `privsyn public` has not


def texts_at(path: Path, column: str, data: DataConfig, public: bool) -> Pool:
    """The public texts of a file or a corpus folder, which is read whole once for its digest.

    data: of the run, whose users' text is refused. public: whether a file is taken that has a
    column of users. Raises DataError for a file without the column or without text, for one that
    seems to be private, and for text that a model chose without a statement beside it; OSError.
    """
    from privsyn_flower.app.public.proximity import Pool
    from privsyn_flower.data.reading import column_names
    from privsyn_flower.data.values import quote_columns
    from privsyn_flower.files import file_digest

    path = _file(path)
    _check_not_the_users(path, data)
    plain = path.suffix.lower() == ".txt"
    names = [column] if plain else column_names(path)
    if column not in names:
        raise DataError(
            f"{path} has no column {column!r} but {quote_columns(names) or 'none'}: name its "
            "column with --text-column"
        )
    if not public:
        _check_users(path, names, data)
    claimed = bool(carried(path))
    if not claimed:
        check_chosen(path, names)
    by = STAGE if STAGE in names and column != STAGE else ""

    def rows() -> Iterator[Row]:
        if plain:
            return _lines(path)
        return _rows(path, column, by, None if public else data, claimed)

    count = sum(1 for _ in rows())
    if not count:
        raise DataError(f"{path} holds no text in column {column!r}: name it with --text-column")
    return Pool(rows, count, f"{file_digest(path)} {column}", by)


def carried_by(path: Path) -> str:
    """The statement beside the text, or in its corpus folder; "" for none."""
    return carried(_file(path))


def _file(path: Path) -> Path:
    """The file that a path names. Raises DataError for a folder without mixed text."""
    from privsyn_flower.data.reading import text_file

    found = text_file(path)
    if found.is_dir():
        raise DataError(
            f"--texts {path} is a folder without mixed text: run `privsyn public mix`, or name a "
            "file"
        )
    return found


def _check_not_the_users(path: Path, data: DataConfig) -> None:
    if _is(path, data.path):
        raise DataError(f"--texts {path} is data.path of the run: its users' own text")


def _is(path: Path, place: str) -> bool:
    """Whether a key of the run names that file."""
    from privsyn_flower.data.reading import text_file

    named = text_file(Path(place).expanduser())
    return bool(place) and named.exists() and named.samefile(path)


def _check_users(path: Path, names: Sequence[str], data: DataConfig, where: str = "") -> None:
    """Raises DataError for a file that says whose its texts are, as private ones do; the run's own
    public text may."""
    if _is(path, data.public_path):
        return
    found = [name for name in names if name in {USER, data.user_column}]
    if found:
        raise DataError(
            f"{path} has a column {found[0]!r}{where}, as users' own text has, and what is chosen "
            "here must be public: if these texts are, say so with --public"
        )


def _rows(
    path: Path, column: str, by: str, data: DataConfig | None, claimed: bool
) -> Iterator[Row]:
    """data: of the run, where whose texts they are is not known to be public; claimed: what they
    carry is said beside them. Rows of a jsonl file have columns of their own."""
    from privsyn_flower.config.public import STAGES
    from privsyn_flower.data.reading import read_rows

    wanted = (column, by) if by else (column,)
    for number, row in read_rows(path, lambda *_: None, wanted):
        if data is not None and not {USER, data.user_column}.isdisjoint(row):
            _check_users(path, tuple(row), data, f" in row {number}")
        if not claimed:
            check_chosen(path, row)
        if isinstance(text := row.get(column), str):
            # Half a pair of surrogates, which JSON can spell, could not be written again.
            own = {"text": text.encode("utf-8", "replace").decode("utf-8")}
            stage = row.get(by) if by else None
            yield own | ({by: stage if stage in STAGES else OTHER} if by else {})


def _lines(path: Path) -> Iterator[Row]:
    """A text a line; of one beyond the bound of every reader, what is before it."""
    from privsyn_flower.data.reading import MAX_LINE

    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(MAX_LINE):
            yield {"text": line.rstrip("\r\n")}
            while not line.endswith("\n") and (line := file.readline(MAX_LINE)):
                pass
