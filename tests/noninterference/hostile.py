"""One user's rows before and after: ordinary ones, and what somebody hostile would write."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conftest import sentences

Row = dict[str, Any]  # {"user_id", "text", "label"}
Rows = list[Row]

TARGET = "u04"  # whose texts change
RAISES = "\N{SNOWMAN} raises"  # an embedder, a tokenizer or a training that meets it fails
FORMATS = ("jsonl", "csv", "parquet")
LABELS = ("red", "green")


def ordinary(users: int, seed: int = 1, per_user: int = 3) -> dict[str, Rows]:
    """user -> rows of texts that are long enough to be near duplicates of their copies."""
    halves = iter(sentences(2 * users * per_user, seed))
    return {
        f"u{u:02}": [
            {
                "user_id": f"u{u:02}",
                "text": f"{next(halves)} {next(halves)}",
                "label": LABELS[i % 2],
            }
            for i in range(per_user)
        ]
        for u in range(users)
    }


def public_texts() -> list[str]:
    """What the server has."""
    halves = sentences(120, seed=2)
    return [f"{a} {b}" for a, b in zip(halves[::2], halves[1::2], strict=True)]


def _rows(texts: Sequence[str], labels: Sequence[Any] = LABELS) -> Rows:
    return [
        {"user_id": TARGET, "text": text, "label": labels[i % len(labels)]}
        for i, text in enumerate(texts)
    ]


def _many(others: Mapping[str, Rows]) -> Rows:
    return _rows([f"text number {i} of very many" for i in range(1500)])


def _long(others: Mapping[str, Rows]) -> Rows:
    return _rows(["word " * 30_000, "x" * 200_000, "\U0001f600" * 3000])


def _empty(others: Mapping[str, Rows]) -> Rows:
    return _rows([""])


def _blank(others: Mapping[str, Rows]) -> Rows:
    return _rows(["   ", "\t\n\r\n", " "])


def _public(others: Mapping[str, Rows]) -> Rows:
    return _rows(public_texts())


def _copies(others: Mapping[str, Rows]) -> Rows:
    return _rows([row["text"] for rows in others.values() for row in rows])


def _breaks(others: Mapping[str, Rows]) -> Rows:
    """Texts that look like rows, of every format, with ids that exist and ids that do not."""
    known = next(iter(others))
    return _rows(
        [
            f'a text\n{known},red,"one more of another user"\nnew-user,red,hello\n',
            f'quoted "\n"{known}","green","another text of theirs"\r\n',
            f'"}}\n{{"user_id": "{known}", "text": "put into their mouth"}}\n',
            *(f'"\n"invented-{i}","red","one of very many users' for i in range(40)),
            'open quote "', '""', '"', ",", ",,,", "\r", "\r\r\n", "\n" * 50, "tab\tand\tmore",
            "\x00 null", "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029 other line ends", "\x1a end",
            known, TARGET, "user_id,label,text", "\\N", "\\", "\\\n", "'", "'\"'", "#", "NA",
        ]
    )  # fmt: skip


def _unicode(others: Mapping[str, Rows]) -> Rows:
    return _rows(
        [
            "\ufeff a mark of byte order", "e" + "\u0301" * 500, "\u202e from right to left \u202c",
            "\U000e0001\U000e0020 tags", "\ufffe\uffff", "\ue000 private use", "a\u200db\u200cc",
            "\u0130\u0131\u1e9e\ufb03 case", "漢字かな交じり文" * 20, "\U0001f468\u200d\U0001f469",
            "half \ud800 a character", "\udcff", "\udfff\ud800 turned round",
        ]
    )  # fmt: skip


def _labels(others: Mapping[str, Rows]) -> Rows:
    odd = ["", "no class of ours", "RED", " red ", "x" * 10_000, "red,green", 'r"ed\n', "\ud800",
           "0", "nan", "\x00", "null"]  # fmt: skip
    return _rows([f"a text with an odd label {i} in it" for i in range(len(odd))], odd)


def _raising(others: Mapping[str, Rows]) -> Rows:
    return _rows([f"{RAISES} on this one", "an ordinary text behind it"])


HOSTILE: dict[str, Callable[[Mapping[str, Rows]], Rows]] = {
    "empty": _empty,
    "blank": _blank,
    "many": _many,
    "long": _long,
    "public": _public,
    "copies": _copies,
    "breaks": _breaks,
    "unicode": _unicode,
    "labels": _labels,
    "raising": _raising,
}
# Whatever still reaches the models, at once: a raise or no text would hide the rest.
TOGETHER = ("copies", "public", "breaks", "unicode", "labels", "long", "many")


def neighbour(population: Mapping[str, Rows], kind: str) -> dict[str, Rows]:
    """The population with the target's rows replaced; `kind` of HOSTILE, or "together"."""
    others = {user: rows for user, rows in population.items() if user != TARGET}
    kinds = TOGETHER if kind == "together" else (kind,)
    rows = [row for one in kinds for row in HOSTILE[one](others)]
    return {user: rows if user == TARGET else own for user, own in population.items()}


def write(path: Path, population: Mapping[str, Rows], columns: Sequence[str]) -> None:
    """A data file in the format of its suffix, as a correct writer of that format makes it."""
    rows = [{name: row[name] for name in columns} for own in population.values() for row in own]
    {"jsonl": _write_jsonl, "csv": _write_csv, "parquet": _write_parquet}[path.suffix[1:]](
        path, rows
    )


def _write_jsonl(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_csv(path: Path, rows: Rows) -> None:
    # Half a character is three bytes that are not UTF-8.
    with path.open("w", encoding="utf-8", errors="surrogatepass", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(path: Path, rows: Rows) -> None:
    import pyarrow
    from pyarrow import parquet

    def valid(value: str) -> str:  # the format knows no half characters
        return value.encode("utf-8", "replace").decode("utf-8")

    whole = [{name: valid(value) for name, value in row.items()} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(whole), path)
