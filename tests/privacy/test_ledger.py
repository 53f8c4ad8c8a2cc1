"""The ledger's rules: budget, states, identity of the file, repair of a torn line."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from privsyn_flower.privacy import (
    BudgetExceeded,
    DuplicateCharge,
    Ledger,
    LedgerError,
    LedgerInUse,
    calibrate,
    compose_gaussians,
    epsilon,
    gaussian_epsilon,
)
from privsyn_flower.privacy.renyi import plan_order

DELTA = 3e-6
numbers = count(1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledgers" / "phones.jsonl"


def make(path, total=7.58, **options):
    options.setdefault("population", "phones")
    return Ledger.open(
        path, total_epsilon=total, total_delta=None if total is None else DELTA, **options
    )


def reserve(ledger, z, run="a", **options):
    options = {"query": "votes", "round": next(numbers), "attempt": 1} | options
    return ledger.reserve(run=run, noise_multiplier=z, **options)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("rounds", [1, 9, 50])
def test_a_calibrated_plan_fits_exactly(path, rounds, accountant):
    ledger, z = make(path), calibrate(7.58, rounds, DELTA, accountant=accountant)
    assert ledger.is_guarantee
    first = ledger.remaining_rounds(z)
    assert first == rounds if accountant == "pld" else first >= rounds
    for done in range(1, rounds + 1):
        charge = reserve(ledger, z)
        if done % 2:
            ledger.commit(charge)
    assert epsilon(z, rounds, DELTA) == pytest.approx(ledger.spent_epsilon())
    assert ledger.spent_epsilon() <= 7.58
    if accountant == "pld":
        assert ledger.remaining_rounds(z) == 0
        size = path.stat().st_size
        with pytest.raises(BudgetExceeded, match=r"7\.58.*noise-multiplier"):
            reserve(ledger, z)
        assert path.stat().st_size == size


def test_the_refusal_names_spent_wanted_total_and_key(path):
    ledger = make(path, total=1.0)
    reserve(ledger, 6.0)
    with pytest.raises(BudgetExceeded) as refused:
        reserve(ledger, 5.0)
    spent, wanted = (
        gaussian_epsilon(6.0, DELTA),
        gaussian_epsilon(compose_gaussians([6.0, 5.0]), DELTA),
    )
    for words in (f"{spent:.6g}", f"{wanted:.6g}", "of 1 ", "key ledger"):
        assert words in str(refused.value)


def test_adaptive_noise_composes_by_sum_of_mu_squared(path):
    ledger = make(path)
    for z in (5.0, 3.0, 10.0):
        reserve(ledger, z, run="a")
    reserve(ledger, 4.0, run="b")
    assert ledger.spent_epsilon("a") == pytest.approx(
        gaussian_epsilon(compose_gaussians([5, 3, 10]), DELTA)
    )
    assert ledger.spent_epsilon(delta=1e-5) == pytest.approx(
        gaussian_epsilon(compose_gaussians([5, 3, 10, 4]), 1e-5)
    )
    left = calibrate(7.58, 1, DELTA) ** -2 - sum(z**-2.0 for z in (5, 3, 10, 4))
    assert ledger.remaining_rounds(6.0) == math.floor(left * 36)


def test_room_for_releases_of_different_noise(path):
    ledger = make(path)
    reserve(ledger, 5.0)
    wanted = [{"noise_multiplier": z} for z in (3.0, 1.0, 0.8, 0.4, 9.0)]
    content = path.read_bytes()
    room = ledger.room_for(wanted)
    assert path.read_bytes() == content and 0 < room < 5
    for noise in wanted[:room]:
        reserve(ledger, noise["noise_multiplier"])
    with pytest.raises(BudgetExceeded):
        reserve(ledger, wanted[room]["noise_multiplier"])
    assert ledger.room_for(wanted[room:]) == 0 and ledger.room_for([]) == 0
    assert make(path.with_name("open.jsonl"), total=None).room_for(wanted) is None


def test_a_resumed_run_has_room_for_what_it_gives_back(path):
    ledger, z = make(path), calibrate(7.58, 2, DELTA)
    wanted = [{"noise_multiplier": z}] * 2
    ledger.commit(reserve(ledger, z, run="killed"))
    charge = reserve(ledger, z, run="killed")
    assert ledger.room_for(wanted) == ledger.room_for(wanted, run="other") == 0
    assert ledger.room_for(wanted, run="killed") == 1
    ledger.mark_sent(charge)  # from here on it stays
    assert ledger.room_for(wanted, run="killed") == 0


def test_void_gives_back_and_states_go_one_way(path):
    ledger, z = make(path), calibrate(7.58, 1, DELTA)
    charge = reserve(ledger, z, round=1, attempt=1)
    assert ledger.charge(charge).state == "reserved" and ledger.remaining_rounds(z) == 0
    ledger.void(charge, "no node was asked")
    assert ledger.spent_epsilon() == 0.0 and ledger.remaining_rounds(z) == 1
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


def test_without_a_total_the_number_is_no_guarantee(path):
    ledger = make(path, total=None)
    reserve(ledger, 0.1)
    assert not ledger.is_guarantee and ledger.remaining_rounds(1.0) is None
    assert ledger.spent_epsilon(delta=DELTA) == gaussian_epsilon(0.1, DELTA)
    with pytest.raises(ValueError, match="delta = None"):
        ledger.spent_epsilon()
    with pytest.raises(LedgerError, match="total epsilon = None"):
        make(path, total=7.58)


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
    ledger.export("a", target)
    ledger.export("a", target)
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
        "ledger = Ledger.open(sys.argv[1], population='phones')\n"
        "with ledger.exclusive():\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        with pytest.raises(LedgerInUse, match=f"process {child.pid}:"), ledger.exclusive():
            pass
        reserve(ledger, 9.0)  # single operations stay open
    finally:
        child.kill()
        child.wait()
    refused = pytest.raises(LedgerInUse, match=f"process {os.getpid()}:")
    with ledger.exclusive(), refused, ledger.exclusive():
        pass
    with ledger.exclusive():
        pass


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: Ledger.open(p, population=""), "population = ''"),
        (lambda p: Ledger.open(p, population="x", total_epsilon=1.0), "both or neither"),
        (lambda p: reserve(make(p), 0.0), "noise_multiplier = 0.0"),
        (lambda p: reserve(make(p), math.inf), "noise_multiplier = inf"),
        (lambda p: reserve(make(p), 1.0, mechanism="skellam"), "mechanism = 'skellam'"),
        (lambda p: make(p).remaining_rounds(-1.0), "noise_multiplier = -1.0"),
    ],
)
def test_bad_values(path, call, words):
    with pytest.raises(ValueError, match=words):
        call(path)


def test_a_sampled_plan_fits_a_ledger_at_its_own_order(tmp_path: Path) -> None:
    """Sampled sums are cheapest at small orders, so the filter's order is the plan's."""
    plan = {"mechanism": "skellam", "sampling_rate": 0.1}
    noise = calibrate(2.0, 20, 1e-5, **plan)
    assert noise < 0.7 * calibrate(2.0, 20, 1e-5, mechanism="skellam")
    book = Ledger.open(
        tmp_path / "sampled.jsonl",
        population="p",
        total_epsilon=2.0,
        total_delta=1e-5,
        mechanism="skellam",
        order=plan_order(noise, 20, 1e-5, 0.1, 4096.0),
    )
    for rnd in range(1, 21):
        book.reserve(
            run="r", query="q", round=rnd, attempt=1, noise_multiplier=noise, sensitivity=4096.0,
            **plan,
        )  # fmt: skip
    assert 1.9 < book.spent_epsilon() <= 2.0
    with pytest.raises(BudgetExceeded):
        book.reserve(
            run="r", query="q", round=21, attempt=1, noise_multiplier=noise, sensitivity=4096.0,
            **plan,
        )  # fmt: skip
    with pytest.raises(ValueError, match="sampling_rate"):
        book.reserve(
            run="r", query="q", round=22, attempt=1, noise_multiplier=noise, sampling_rate=0.5
        )
