"""Long JSON lines keep their columns: what is short in them is read as it stands."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privsyn_flower.data import delimited
from privsyn_flower.data.delimited import shorten_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NESTED = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)


def pieces(line: str, size: int) -> list[str]:
    return [line[at : at + size] for at in range(0, len(line), size)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(
    row=st.dictionaries(st.text(st.sampled_from('ab"\\{[]}\n\u2028'), max_size=4), NESTED),
    size=st.integers(1, 40),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_what_is_short_stays(row: Any, size: int, ascii_only: bool, indent: Any) -> None:
    line = json.dumps(row, ensure_ascii=ascii_only, indent=indent)
    expected = {k: None if isinstance(v, list | dict) else v for k, v in row.items()}
    assert json.loads(shorten_json(pieces(line, size))) == expected


@given(
    text=st.text(st.sampled_from('ab"\\\n\0é{['), min_size=9, max_size=60),
    size=st.integers(1, 40),
    ascii_only=st.booleans(),
)
def test_long_strings_are_cut_and_the_rest_is_there(text: str, size: int, ascii_only: bool) -> None:
    line = json.dumps({"text": text * 3, "user_id": "m"}, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "MAX_STRING", 30)
        found = json.loads(shorten_json(pieces(line, size)))
    assert found["user_id"] == "m"
    assert (text * 3).startswith(found["text"]) and len(found["text"]) >= 4


def test_a_text_that_looks_like_columns_is_text() -> None:
    text = '", "user_id": "other", "x": {"' * 5
    line = json.dumps({"text": text, "user_id": "m", "more": [{"user_id": "other"}]})
    assert json.loads(shorten_json(pieces(line, 7))) == {"text": text, "user_id": "m", "more": None}


@pytest.mark.parametrize(
    "line", ["[" * 99_999, "{" * 99_999, '{"a":[' * 9_999, '"\\', "\\", "}" * 99, '{"a": 1', ""]
)
def test_no_object(line: str) -> None:
    with pytest.raises(ValueError):
        json.loads(shorten_json(pieces(line, 1000)))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "MAX_STRING", 2**12)
    monkeypatch.setattr(delimited, "MAX_COPY", 2**14)
    for unit in ("x", "\\\\", "[", '""', "1,"):
        tracemalloc.start()
        with contextlib.suppress(ValueError):
            shorten_json(unit * 1000 for _ in range(200))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**18, unit
