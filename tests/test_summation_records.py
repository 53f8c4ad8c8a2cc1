"""What a node must not forget: one answer a stage whatever runs at once, one key a peer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from privsyn_flower.secagg import Code, Cohort, SecaggError
from privsyn_flower.summation import REPLAYS_FILE, mark, pin
from tests.rigs.session import members
from tests.secagg.rig import a_session


def code_of(folder: Path, stage: str, **session: object) -> Code | None:
    try:
        mark(folder, stage, a_session(**session))
    except SecaggError as error:
        return error.code
    return None


def test_rounds_and_attempts_ascend(tmp_path: Path) -> None:
    asked = [(1, 1), (1, 1), (1, 2), (1, 1), (3, 1), (2, 9), (3, 2)]
    got = [code_of(tmp_path, "mask", round=r, attempt=a) for r, a in asked]
    assert [code is None for code in got] == [True, False, True, False, True, False, True]
    assert set(got) == {None, Code.REPEATED}
    assert code_of(tmp_path, "unmask") is None  # stages, runs and queries count apart
    assert code_of(tmp_path, "mask", run="other") is None
    assert code_of(tmp_path, "mask", query="other") is None
    assert code_of(tmp_path / "other", "mask") is None


def test_of_many_at_once_one_answers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: code_of(tmp_path, "unmask"), range(24)))
    assert got.count(None) == 1
    assert got.count(Code.REPEATED) == 23


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    assert code_of(tmp_path, "mask", run="r" * 257) is Code.MALFORMED
    assert code_of(tmp_path, "mask", round=2**63) is Code.MALFORMED
    (tmp_path / REPLAYS_FILE).write_bytes(b"no database" * 200)
    assert code_of(tmp_path, "mask") is Code.SETUP


def test_a_peers_first_weight_stays(tmp_path: Path) -> None:
    cohort = Cohort.of(a_session(), members(4))
    grown = replace(cohort.members[0], weight=2**64 - 1)
    changed = Cohort(a_session(), (grown, *cohort.members[1:]))
    pin(tmp_path, cohort)
    with pytest.raises(SecaggError, match="shows another weight") as caught:
        pin(tmp_path, changed)
    assert caught.value.code == Code.PEER
    pin(tmp_path / "other", changed)
    pin(tmp_path / "other", changed)


def test_a_peers_first_key_stays(tmp_path: Path) -> None:
    cohort = Cohort.of(a_session(), members(4))
    pin(tmp_path, cohort)
    pin(tmp_path, Cohort.of(a_session(), members(5)))
    first = replace(cohort.members[0], identity=b"x" * 32)
    changed = Cohort(a_session(), (first, *cohort.members[1:]))
    with pytest.raises(SecaggError, match="shows another key") as caught:
        pin(tmp_path, changed)
    assert caught.value.code == Code.PEER
    pin(tmp_path, cohort)
