"""The ledger's rules: budget, states, identity of the file, repair of a torn line."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

from privsyn_flower.privacy import (
    DuplicateCharge,
    Ledger,
    LedgerError,
    LedgerInUse,
    calibrate,
)
from privsyn_flower.privacy.ledger.usage import exclusive, export
from tests.rigs.ledger import (
    DELTA,
    LEFT,
    make,
    path,  # noqa: F401
    remaining_rounds,
    reserve,
)


def test_sent_is_never_void(path):
    ledger = make(path)
    charge = reserve(ledger, 9.0)
    ledger.mark_sent(charge)
    with pytest.raises(LedgerError, match="was sent"):
        ledger.void(charge, "too few")
    ledger.commit(charge)


def test_void_gives_back_and_states_go_one_way(path):
    ledger, z = make(path), calibrate(7.58, 1, LEFT)
    charge = reserve(ledger, z, round=1, attempt=1)
    assert ledger.charge(charge).state == "reserved" and remaining_rounds(ledger, z) == 0
    ledger.void(charge, "no node was asked")
    assert ledger.spent_epsilon() == 0.0 and remaining_rounds(ledger, z) == 1
    with pytest.raises(DuplicateCharge, match="attempt 1"):
        reserve(ledger, z, round=1, attempt=1)
    again = reserve(ledger, z, round=1, attempt=2)
    ledger.commit(again)
    for charge_id, state in ((charge, "void"), (again, "committed")):
        for close in (ledger.commit, lambda c: ledger.void(c, "x")):
            with pytest.raises(LedgerError, match=state):
                close(charge_id)
    with pytest.raises(LedgerError, match="no charge 'zz'"):
        ledger.commit("zz")
    assert [c.state for c in ledger.charges("a")] == ["void", "committed"]
    assert ledger.charges("other") == []


def test_the_file_keeps_what_it_is_about(path):
    make(path)
    assert make(path).charges() == []
    assert Ledger.open(path, population="phones").header.total_epsilon == 7.58
    with pytest.raises(LedgerError, match=r"'phones'.*'tablets'"):
        make(path, population="tablets")
    with pytest.raises(LedgerError, match=r"7\.58.*1\.29"):
        make(path, total=1.29)
    with pytest.raises(LedgerError, match=r"total delta = 3e-06.*1e-05"):
        Ledger.open(path, population="phones", total_epsilon=7.58, total_delta=1e-5)


@pytest.mark.parametrize("simulation", [True, False])
def test_simulation_and_real_use_never_mix(path, simulation):
    make(path, simulation=simulation)
    with pytest.raises(LedgerError, match=f"simulation = {simulation}.*{not simulation}"):
        make(path, simulation=not simulation)


@pytest.mark.parametrize("cut", [1, 7, -1])
def test_a_torn_line_is_skipped_then_cut_off(path, cut):
    ledger = make(path)
    reserve(ledger, 9.0)
    whole = path.read_bytes()
    reserve(ledger, 9.0)
    torn = path.read_bytes()[len(whole) :][:cut]
    path.write_bytes(whole + torn)
    assert len(ledger.charges()) == 1 and path.read_bytes() == whole + torn
    assert reserve(ledger, 9.0) == "2"
    assert path.read_bytes().startswith(whole) and len(make(path).charges()) == 2
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_torn_header_is_a_ledger_that_was_never_made(path):
    make(path)
    path.write_bytes(path.read_bytes()[:20])
    assert make(path, population="tablets").header.population == "tablets"


@pytest.mark.parametrize(
    "line", [b"\x00\x00\n", b"{}\n", b'{"kind": "commit", "id": "9"}\n', b"3\n"]
)
def test_a_damaged_row_is_never_guessed(path, line):
    ledger = make(path)
    with path.open("ab") as file:
        file.write(line)
    with pytest.raises(LedgerError, match="line 2"):
        ledger.charges()
    with pytest.raises(LedgerError, match="line 2"):
        reserve(ledger, 9.0)


def test_a_ledger_that_vanished_does_not_start_again(path):
    ledger = make(path)
    header = path.read_bytes()
    path.unlink()
    with pytest.raises(LedgerError, match="no ledger"):
        reserve(ledger, 9.0)
    path.write_bytes(header.replace(b"phones", b"tablet"))
    with pytest.raises(LedgerError, match="replaced"):
        reserve(ledger, 9.0)


def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch):
    ledger = make(path)
    before = path.read_bytes()
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:9], at))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        reserve(ledger, 9.0)
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_export_copies_one_run(path, tmp_path):
    ledger = make(path)
    ledger.commit(reserve(ledger, 9.0, run="a"))
    reserve(ledger, 9.0, run="b")
    target = tmp_path / "runs" / "ledger.jsonl"
    export(ledger, "a", target)
    export(ledger, "a", target)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["copy", "reserve", "commit"] and rows[1]["run"] == "a"
    with pytest.raises(LedgerError, match="the copy in a run folder is no ledger"):
        make(target)
    assert [p.name for p in target.parent.iterdir()] == ["ledger.jsonl"]


def test_private_file_modes(path):
    make(path)
    assert path.stat().st_mode & 0o077 == 0


def test_exclusive_names_the_other_process_and_dies_with_it(path):
    ledger = make(path)
    code = (
        "import sys, time\nfrom privsyn_flower.privacy import Ledger\n"
        "from privsyn_flower.privacy.ledger.usage import exclusive\n"
        "ledger = Ledger.open(sys.argv[1], population='phones')\n"
        "with exclusive(ledger):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        with pytest.raises(LedgerInUse, match=f"process {child.pid}:"), exclusive(ledger):
            pass
        reserve(ledger, 9.0)  # single operations stay open
    finally:
        child.kill()
        child.wait()
    refused = pytest.raises(LedgerInUse, match=f"process {os.getpid()}:")
    with exclusive(ledger), refused, exclusive(ledger):
        pass
    with exclusive(ledger):
        pass


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: Ledger.open(p, population=""), "population = ''"),
        (lambda p: Ledger.open(p, population="x", total_epsilon=1.0), "both or neither"),
        (lambda p: reserve(make(p), 0.0), "noise_multiplier = 0.0"),
        (lambda p: reserve(make(p), math.inf), "noise_multiplier = inf"),
        (lambda p: reserve(make(p), math.nan), "noise_multiplier = nan"),
        (lambda p: reserve(make(p), 1.0, total_variation=1.0), r"total_variation = 1\.0"),
        (lambda p: reserve(make(p), 1.0, total_variation=-1e-9), "total_variation = -1e-09"),
        (lambda p: reserve(make(p), 1.0, sampling_rate=0.0), r"sampling_rate = 0\.0"),
        (lambda p: make(p, total=0.0), r"epsilon = 0\.0"),
        (lambda p: remaining_rounds(make(p), -1.0), "noise_multiplier = -1.0"),
    ],
)
def test_bad_values(path, call, words):
    with pytest.raises(ValueError, match=words):
        call(path)
    assert not path.exists() or len(path.read_text().splitlines()) <= 1


def header_of_version(version, total=7.58, mechanism="skellam"):
    """As that version wrote it."""
    row = {"kind": "ledger", "population": "phones", "total_epsilon": total}
    row |= {"total_delta": None if total is None else DELTA, "simulation": False}
    row |= {"mu_squared": None if total is None else 1.7, "unit": "user", "adjacency": "zero-out"}
    row |= {"filter": "sum of mu^2 (Smith and Thakurta 2022)", "version": version}
    if version > 1:
        row |= {"mechanism": mechanism, "order": 9, "rdp": 3.1, "total_variation": 0.0}
    if version > 2:
        row |= {"id": "0123"}
    return row


@pytest.mark.parametrize("total", [7.58, None])
@pytest.mark.parametrize("mechanism", ["gaussian", "skellam"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_of_other_versions_are_refused_and_left_as_they_are(path, version, mechanism, total):
    path.parent.mkdir()
    header = header_of_version(version, total, mechanism)
    path.write_text(json.dumps(header) + "\n")
    content = path.read_bytes()
    for call in (lambda: make(path, total), lambda: make(path, total, identity="0123")):
        with pytest.raises(LedgerError) as refused:
            call()
        for words in (str(path), "ledger header of version 4", "key ledger"):
            assert words in str(refused.value), words
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"filter": "sum of rho"}, "filter .* sum of rho"),
        ({"filter": None}, "filter"),
        ({"version": 5}, "header of version 4"),
        ({"version": "4"}, "header of version 4"),
        ({"version": 0}, "header of version 4"),
        ({"kind": "copy"}, "the copy in a run folder is no ledger"),
        ({"budget": None}, "a total without its budget"),
        ({"total_epsilon": None}, "a total without its budget"),
        ({"color": "red"}, "unreadable header"),
        ({"budget": 1e6}, "contradicts itself: total epsilon"),
        ({"budget": "much"}, "unreadable header"),
        ({"total_epsilon": 1e3}, "contradicts itself"),
        ({"total_delta": 0.5}, "contradicts itself"),
        ({"noise_multiplier": 3.0, "sampling_rate": 0.1}, "unreadable header"),
        ({"unit": "sample"}, "unit = 'sample'"),
        ({"adjacency": "replace-one"}, "adjacency = 'replace-one'"),
    ],
)
def test_an_unknown_header_is_not_guessed(path, change, words):
    make(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(LedgerError, match=words):
        make(path)


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": "9"},
        {"noise_multiplier": 0.0},
        {"total_variation": -1.0},
        {"total_variation": 1.0},
        {"sampling_rate": 0},
        {"sampling_rate": 1.5},
    ],
)
def test_a_charge_that_no_writer_makes_is_never_guessed(path, change):
    ledger = make(path)
    reserve(ledger, 9.0)
    header, row = path.read_text().splitlines()
    path.write_text(header + "\n" + json.dumps(json.loads(row) | change) + "\n")
    with pytest.raises(LedgerError, match="line 2"):
        ledger.charges()
