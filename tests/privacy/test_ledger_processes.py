"""The ledger under real processes: killed while writing, and racing for the last budget."""

from __future__ import annotations

import random
import signal
import subprocess
import sys

import pytest

from privsyn_flower.privacy import Ledger, calibrate
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from tests.rigs.ledger import remaining_rounds

DELTA = 3e-6

# Reserves and commits for ever, and prints each charge only after the ledger acknowledged it.
# With a number it writes a few bytes at a time, and is killed after so many writes, or, where that
# is odd, in the place of the last.
WRITER = """
import itertools, os, signal, sys
left, pwrite = int(sys.argv[4]), os.pwrite
def piecewise(fd, data, at):
    global left
    left -= 1
    if left or int(sys.argv[4]) % 2 == 0:
        written = pwrite(fd, data[:9], at)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return written
if left:
    os.pwrite = piecewise
from privsyn_flower.privacy import BudgetExceeded, Ledger
path, run, z = sys.argv[1], sys.argv[2], float(sys.argv[3])
ledger = Ledger.open(path, population="phones")
print("ready", flush=True)
sys.stdin.readline()
for number in itertools.count(1):
    try:
        charge = ledger.reserve(run=run, query="votes", round=number, attempt=1, noise_multiplier=z)
    except BudgetExceeded:
        break
    print("reserved", charge, flush=True)
    ledger.commit(charge)
    print("committed", charge, flush=True)
"""


def start(path, run, z, killed_at=0):
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), run, repr(z), str(killed_at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def go(child):
    child.stdin.write("go\n")
    child.stdin.flush()


@pytest.mark.slow
def test_kill_while_writing_loses_nothing_acknowledged(tmp_path):
    path, rng = tmp_path / "ledger.jsonl", random.Random(0)
    ledger = Ledger.open(path, population="phones")
    torn = 0
    for attempt in range(8):
        child = start(path, f"run-{attempt}", 5.0, rng.randint(1, 200))
        go(child)
        out, _ = child.communicate()
        assert child.returncode == -signal.SIGKILL
        torn += not path.read_bytes().endswith(b"\n")
        states = {c.id: c.state for c in ledger.charges()}
        said = [line.split() for line in out.splitlines(keepends=True) if line.endswith("\n")]
        for word, charge in said:
            assert states[charge] in (
                ("committed",) if word == "committed" else ("committed", "reserved")
            )
        # At most the operation under way is unknown to the parent.
        mine = ledger.charges(f"run-{attempt}")
        assert len(mine) - len([w for w, _ in said if w == "reserved"]) in (0, 1)
        assert [c.state for c in mine].count("reserved") <= 1
        ledger.reserve(run="parent", query="votes", round=attempt, attempt=1, noise_multiplier=5.0)
    assert torn > 0, "no kill hit a half-written line: the test shows nothing"
    assert path.read_bytes().endswith(b"\n")
    assert len({c.id for c in ledger.charges()}) == len(ledger.charges())


@pytest.mark.slow
def test_two_processes_never_exceed_the_budget(tmp_path):
    path, rounds = tmp_path / "ledger.jsonl", 40
    ledger = Ledger.open(path, population="phones", total_epsilon=7.58, total_delta=DELTA)
    z = calibrate(7.58, rounds, gaussian_delta(DELTA))
    children = [start(path, run, z) for run in ("a", "b")]
    for child in children:
        go(child)
    outputs = [child.communicate()[0].splitlines() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    charges = ledger.charges()
    assert len(charges) == rounds and {c.state for c in charges} == {"committed"}
    assert remaining_rounds(ledger, z) == 0 and ledger.spent_epsilon() <= 7.58
    for run, output in zip("ab", outputs, strict=True):
        acknowledged = [line.split()[1] for line in output if line.startswith("committed")]
        assert [c.id for c in charges if c.run == run] == acknowledged
