"""What ids and dates mean, and those that are several people's or no date at all."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.data import DataError, load_samples, load_users
from privsyn_flower.data.values import (
    RoundedIds,
    date_problem,
    id_problem,
    shared_id,
    to_date,
    to_name,
)
from tests.rigs.users import write

LARGE = 1582218195625938945


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (7, "7"),
        (7.0, "7"),  # one gap in a column of integers makes all of them floats
        (Decimal(LARGE), str(LARGE)),
        (LARGE, str(LARGE)),
        (b"somebody", "somebody"),
        (b"\xff\x01", "ff01"),  # not two people as one character that could not be read
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (" 1e10 ", "1e10"),  # hexadecimal digits may look like that
        ("Nan", "Nan"),
        ("Na", "Na"),
        ("1.0", "1.0"),
    ],
)
def test_ids_that_are_one_persons(value: object, name: str) -> None:
    assert to_name(value) == name and shared_id(value) is None


@pytest.mark.parametrize(
    "value",
    [
        float(LARGE),
        -float(LARGE),
        f"{float(LARGE)}",
        "1.58222E+18",
        "1,58222E+18",
        "1E+18",
        f"{LARGE}.0",
        *("nan", "NaN", "None", "null", "NULL", "NA", "N/A", "<NA>", "NaT", "undefined", "\\N"),
        b"nan",
        " nan ",
        "#N/A",
        "[object Object]",
        "Jos\ufffd",
        "a\ud83d",
    ],
)
def test_ids_that_several_people_may_share(value: object, tmp_path: Path) -> None:
    assert to_name(value)
    problem, advice = shared_id(value) or ("", "")
    assert problem and advice
    rows = [{"user_id": "u1", "text": "one"}, {"user_id": value, "text": "two"}]
    if isinstance(value, bytes):
        return
    with pytest.raises(DataError, match="protected together as one") as caught:
        load_users(write(tmp_path, "jsonl", rows))
    assert "row 2" in str(caught.value) and advice in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "no user id"),
        ("  ", "no user id"),
        (float("nan"), "no user id"),
        (1.5, "a number with a fraction"),
        (Decimal("1.5"), "a number with a fraction"),
        (True, "true or false"),
        ({"$oid": "5f1"}, "an object"),
        ([1], "a list"),
        (datetime.date(2015, 1, 1), "a date or time"),
    ],
)
def test_ids_that_are_none_are_told_by_their_type(value: object, words: str) -> None:
    assert to_name(value) == "" and words in id_problem(value)[0]


@pytest.mark.parametrize(
    ("numbers", "possible", "sure"),
    [
        ([1582218195625930000, 1582218195625940000, 1582218195625950000], True, True),  # Excel
        ([int(Decimal(repr(float(LARGE + 256 * k)))) for k in range(3)], True, True),  # JavaScript
        ([int(float(LARGE)), int(float(LARGE)) + 256], True, False),  # pandas, or a snowflake
        ([LARGE, 1582218195625930000], False, False),
        ([7, 8000000000000000], False, False),
    ],
)
def test_rounded_integers(numbers: list[int], possible: bool, sure: bool, tmp_path: Path) -> None:
    found = RoundedIds()
    for number in numbers:
        found.add(to_name(number))
    assert (found.possible, found.sure) == (possible, sure)
    path = write(tmp_path, "csv", [{"user_id": number, "text": "x"} for number in numbers])
    if sure:
        with pytest.raises(DataError, match="may all be rounded"):
            load_users(path)
    else:
        assert len(load_users(path)) == len(numbers)


@pytest.mark.parametrize(
    ("value", "date"),
    [
        ("2015-03-01T10:00", "2015-03-01"),
        (20240201, "2024-02-01"),
        (20240201.0, "2024-02-01"),
        (1706659200, "2024-01-31"),
        ("1706659200.5", "2024-01-31"),
        (1420070400, "2015-01-01"),  # and not 1420-07-04
        ("1420070400.5", "2015-01-01"),
        (1112345678_901, "2005-04-01"),
        ("20150301123000", "2015-03-01"),
        ("20150301T123000Z", "2015-03-01"),
        (100_000_000_000, "1973-03-03"),  # milliseconds, and not the year 5138
        (1706659200_000, "2024-01-31"),
        (1706659200_000_000, "2024-01-31"),
        (1706659200_000_000_000, "2024-01-31"),
        (datetime.datetime(2024, 1, 31, 5), "2024-01-31"),
    ],
)
def test_dates(value: object, date: str) -> None:
    assert to_date(value) == date


@given(st.integers(10**8, 10**10 - 1), st.sampled_from([1, 10**3, 10**6, 10**9]))
def test_every_second_is_the_day_it_is_of(second: int, unit: int) -> None:
    day = datetime.datetime.fromtimestamp(second, datetime.UTC).date().isoformat()
    assert to_date(second * unit) == to_date(str(second * unit)) == day


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2015, "like a year"),
        ("2021", "like a year"),
        (2015.0, "like a year"),
        (201503, "like a month"),
        (43831, "the days of a spreadsheet"),
        (0, "no time since 1970"),
        (-5, "no time since 1970"),
        (5e10, "no time since 1970"),
        (1e300, "no time since 1970"),
        (None, "missing"),
        (float("nan"), "missing"),
        ("", "missing"),
        ("March", "unreadable"),
        (True, "unreadable"),
        ([1], "a list"),
    ],
)
def test_numbers_that_are_no_dates(value: object, words: str) -> None:
    assert to_date(value) == "" and words in date_problem(value)[0]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_window_that_leaves_nobody_is_refused(tmp_path: Path, kind: str) -> None:
    years = [{"user_id": f"u{n}", "text": "x", "when": 2010 + n} for n in range(12)]
    window: dict[str, Any] = {"date_column": "when", "date_from": "2012-01-01"}
    with pytest.raises(DataError, match=r"2012-01-01.*12 have no date.*like a year; write a year"):
        load_samples(write(tmp_path, kind, years), **window)
    late = [{"user_id": "u", "text": "x", "when": "2011-05-05"}]
    with pytest.raises(DataError, match=r"data.date-from = '2012-01-01': 1 are outside"):
        load_samples(write(tmp_path, kind, late), **window)
