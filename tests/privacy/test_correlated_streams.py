"""Keys, Gaussian expansion and streams: bits, modes, kills, moments."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from privsyn_flower.privacy.correlated import (
    NoiseKey,
    NoiseKeyExposed,
    NoiseKeyMissing,
    Participation,
    factorization,
    stream,
)
from privsyn_flower.privacy.noise import gaussian
from privsyn_flower.privacy.noise.gaussian import CHUNK, KeyedGaussians

SHAPES = {
    "independent": {},
    "tree": {},
    "tree-honaker": {},
    "tree-restart": {"restart_every": 3, "completion": True},
    "banded": {"bands": 4},
    "blt": {"buffers": 2},
}


def make(name, rounds=9):
    participation = Participation(rounds, 4)
    return factorization(name, rounds, participation=participation, **SHAPES[name])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "keys"


# --- the key --------------------------------------------------------------------------------


def test_key_is_private_and_never_overwritten(folder):
    old = os.umask(0)
    try:
        key = NoiseKey.create(folder, "run-1")
    finally:
        os.umask(old)
    path = folder / "run-1" / "key"
    assert path.stat().st_mode & 0o7777 == 0o600
    assert path.stat().st_size == 32
    assert {p.stat().st_mode & 0o7777 for p in (folder, path.parent)} == {0o700}
    with pytest.raises(FileExistsError, match="run-1"):
        NoiseKey.create(folder, "run-1")
    assert NoiseKey.open(folder, "run-1") == key
    assert NoiseKey.create(folder, "run-2") != key
    secret = path.read_bytes()
    for text in (repr(key), str(vars(KeyedGaussians(secret)).keys()), repr(KeyedGaussians(secret))):
        assert str(secret) not in text and secret.hex() not in text


def test_missing_key_says_that_the_run_cannot_be_resumed(folder):
    with pytest.raises(NoiseKeyMissing, match="cannot be resumed"):
        NoiseKey.open(folder, "run-1")


@pytest.mark.parametrize("part", ["", "run-1", "run-1/key"])
@pytest.mark.parametrize("mode", [0o040, 0o004])
def test_exposed_key_is_not_used(folder, part, mode):
    NoiseKey.create(folder, "run-1")
    path = folder / part
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(NoiseKeyExposed, match="mode"):
        NoiseKey.open(folder, "run-1")


def test_key_of_another_size_or_behind_a_link_is_not_used(folder, tmp_path):
    NoiseKey.create(folder, "run-1")
    path = folder / "run-1" / "key"
    path.write_bytes(bytes(31))
    with pytest.raises(NoiseKeyExposed, match="32 bytes"):
        NoiseKey.open(folder, "run-1")
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(OSError):
        NoiseKey.open(folder, "run-1")


@pytest.mark.parametrize("run", ["", "..", "a/b", ".hidden", "x" * 101])
def test_run_names_are_plain(folder, run):
    with pytest.raises(ValueError, match="run ="):
        NoiseKey.create(folder, run)


def test_erase_overwrites_removes_and_can_be_repeated(folder, monkeypatch):
    from privsyn_flower.privacy.correlated import keys

    key = NoiseKey.create(folder, "run-1")
    make("blt").stream(key, 100).noise(1)
    seen = {}
    real = keys.os.fsync

    def synced(descriptor):
        real(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_file():
            seen[path.name] = path.read_bytes()

    monkeypatch.setattr(keys.os, "fsync", synced)
    key.erase()
    assert {"key", "mechanism", "record-00000001"} == set(seen)
    assert seen["key"] == bytes(32)
    assert len(seen["record-00000001"]) == 2 * 100 * 8 and not any(seen["record-00000001"])
    assert not (folder / "run-1").exists()
    key.erase()
    with pytest.raises(NoiseKeyMissing):
        NoiseKey.open(folder, "run-1")
    with pytest.raises(NoiseKeyMissing, match="erased"):
        make("blt").stream(key, 100)


def test_a_key_serves_one_mechanism_and_one_length(folder):
    key = NoiseKey.create(folder, "run-1")
    make("banded").stream(key, 100).noise(1)
    for other, length in ((make("banded"), 101), (make("blt"), 100), (make("banded", 8), 100)):
        with pytest.raises(ValueError, match="another mechanism"):
            other.stream(key, length)
    make("banded").stream(NoiseKey.open(folder, "run-1"), 100)
    # Subkeys differ even where the files that bind the key are lost.
    first = key.subkey(f"{make('banded').describe()} length 100")
    (folder / "run-1" / "mechanism").unlink()
    assert key.subkey(f"{make('blt').describe()} length 100") != first


# --- normal numbers -------------------------------------------------------------------------


def test_numbers_are_box_muller_of_the_chacha20_key_stream():
    drawn = KeyedGaussians(bytes(range(32)))(7, 3, 2 * CHUNK, 5)
    nonce = (2 * CHUNK // 8).to_bytes(4, "little") + bytes([7, *[0] * 7, 3, *[0] * 3])
    cipher = Cipher(algorithms.ChaCha20(bytes(range(32)), nonce), mode=None).encryptor()
    words = np.frombuffer(cipher.update(bytes(48)), dtype="<u8")
    expected = []
    for place in range(6):
        u, v = (int(words[place % 3]) + 0.5) / 2**64, int(words[3 + place % 3]) / 2**64
        turn = math.cos if place < 3 else math.sin
        expected.append(math.sqrt(-2 * math.log(u)) * turn(2 * math.pi * v))
    np.testing.assert_allclose(drawn, expected[:5], rtol=1e-12)


def test_coordinates_do_not_share_key_stream():
    """The next chunk starts at the block after the last one of this chunk."""
    draws = KeyedGaussians(bytes(32))
    seen = [draws(*where, CHUNK) for where in ((1, 0, 0), (1, 0, CHUNK), (1, 1, 0), (2, 0, 0))]
    values = np.sort(np.concatenate(seen))
    assert (np.diff(values) > 0).all()
    assert 8 * CHUNK % 64 == 0


def test_numbers_are_standard_normal():
    draws = KeyedGaussians(b"\x05" * 32)
    values = np.concatenate([draws(1, leaf, 0, CHUNK) for leaf in range(8)])
    assert stats.kstest(values, "norm").pvalue > 1e-4
    assert stats.kstest(values**2, "chi2", (1,)).pvalue > 1e-4
    halves = np.array([draws(2, leaf, 0, 4096) for leaf in range(64)])
    pairs = np.corrcoef(halves)
    np.fill_diagonal(pairs, 0.0)
    assert np.abs(pairs).max() < 6 / 64  # 4096 coordinates: std 1/64
    first, second = values.reshape(8, 2, -1)[:, 0].ravel(), values.reshape(8, 2, -1)[:, 1].ravel()
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / len(first) ** 0.5
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 6 / len(first) ** 0.5


def test_largest_number_is_the_one_of_the_smallest_word(monkeypatch):
    draws = KeyedGaussians(bytes(32))
    monkeypatch.setattr(draws, "_uniform", lambda *_: np.array([2.0**-65, 1.0, 0.0, 0.0]))
    found = draws(1, 0, 0, 4)
    assert found[0] == pytest.approx(math.sqrt(130 * math.log(2)))
    assert found[1] == 0.0


@pytest.mark.parametrize(("start", "count"), [(1, 4), (0, CHUNK + 1), (0, 0), (1 << 35, 4)])
def test_draws_stay_within_a_chunk(start, count):
    with pytest.raises(ValueError, match="chunk"):
        KeyedGaussians(bytes(32))(1, 0, start, count)


# --- streams --------------------------------------------------------------------------------


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(stream, "CHUNK", 64)
    monkeypatch.setattr(gaussian, "CHUNK", 64)
    monkeypatch.setattr(gaussian, "_ZEROS", bytes(8 * 64))


@pytest.mark.parametrize("name", SHAPES)
def test_same_bits_however_records_are_kept_and_after_every_restart(folder, name, small_chunks):
    length = 333  # six chunks, the last one odd
    mechanism = make(name)
    key = NoiseKey.create(folder, "run")
    kept = mechanism.stream(key, length, keep="memory")
    reference = [kept.noise(rnd) for rnd in range(1, 10)]
    drawn_again = mechanism.stream(key, length, keep="nothing")
    for rnd, expected in enumerate(reference, start=1):
        np.testing.assert_array_equal(drawn_again.noise(rnd), expected)
        # A process that starts in the middle of a run.
        files = mechanism.stream(NoiseKey.open(folder, "run"), length)
        np.testing.assert_array_equal(files.noise(rnd), expected)
        np.testing.assert_array_equal(files.noise(rnd), expected)
    for lost in sorted((folder / "run").glob("record-*"))[::2]:
        lost.unlink()
    files = mechanism.stream(key, length)
    np.testing.assert_array_equal(files.noise(9), reference[8])
    np.testing.assert_array_equal(files.noise(4), reference[3])  # a round long gone
    for rnd in (0, 10):
        with pytest.raises(ValueError, match="round"):
            files.noise(rnd)


@pytest.mark.parametrize(
    ("name", "most"), [("blt", 2), ("banded", 5), ("tree-honaker", 6), ("tree", 0)]
)
def test_records_are_few_private_and_whole(folder, name, most):
    rounds, length = 40, 50
    mechanism = make(name, rounds)
    key = NoiseKey.create(folder, "run")
    files = mechanism.stream(key, length)
    for rnd in range(1, rounds + 1):
        files.noise(rnd)
        records = list((folder / "run").glob("record-*"))
        assert len(records) <= most
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in records)
        assert {path.stat().st_size for path in records} <= {8 * length * files._recurrence.rows}


def test_broken_record_is_drawn_again(folder):
    mechanism = make("banded")
    key = NoiseKey.create(folder, "run")
    expected = [mechanism.stream(key, 100).noise(rnd) for rnd in range(1, 6)]
    record = folder / "run" / "record-00000004"
    record.write_bytes(record.read_bytes()[:-8])
    (folder / "run" / "record-00000006.new").write_bytes(b"half")
    files = mechanism.stream(key, 100)
    np.testing.assert_array_equal(files.noise(5), expected[4])
    files.noise(6)
    assert not list((folder / "run").glob("*.new"))


def test_unneeded_records_are_written_over_not_only_removed(folder):
    mechanism = make("blt", 20)
    key = NoiseKey.create(folder, "run")
    files = mechanism.stream(key, 1000)
    inodes = set()
    for rnd in range(1, 21):
        files.noise(rnd)
        inodes |= {path.stat().st_ino for path in (folder / "run").glob("record-*")}
    assert len(inodes) == 2


WORKER = """
import sys
from privsyn_flower.privacy.correlated import NoiseKey, factorization
folder, name, first = sys.argv[1:]
mechanism = factorization(name, 100, bands=6)
noise = mechanism.stream(NoiseKey.open(folder, "run"), 60_000)
for rnd in range(int(first), 101):
    value = noise.noise(rnd)
    print(rnd, value.sum().hex(), value[::997].tobytes().hex(), flush=True)
"""


@pytest.mark.parametrize("name", ["blt", "banded", "tree-honaker"])
def test_killed_at_any_moment_and_resumed(folder, name):
    """kill -9 at arbitrary times; the interrupted round, asked again, has the bits it had."""
    key = NoiseKey.create(folder, "run")
    mechanism = factorization(name, 100, bands=6)
    told: dict[int, str] = {}
    for attempt in range(2):
        first = max(told, default=1)
        command = [sys.executable, "-c", WORKER, str(folder), name, str(first)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines = [worker.stdout.readline()]
        time.sleep(0.05 + 0.03 * attempt)
        worker.send_signal(signal.SIGKILL)
        lines += worker.stdout.read().splitlines(keepends=True)
        worker.wait()
        for line in lines:
            if line.endswith("\n"):
                rnd, bits = line.strip().split(" ", 1)
                assert told.setdefault(int(rnd), bits) == bits
    last = max(told)
    assert 1 < last < 100
    straight = mechanism.stream(key, 60_000, keep="memory")
    for rnd in range(1, last + 1):
        value = straight.noise(rnd)
        assert told[rnd] == f"{float(value.sum()).hex()} {value[::997].tobytes().hex()}"
    resumed = mechanism.stream(key, 60_000)
    np.testing.assert_array_equal(resumed.noise(last + 1), straight.noise(last + 1))


@pytest.mark.parametrize("name", SHAPES)
def test_prefix_sums_have_the_variance_of_theory(folder, name):
    """By sampling: 40,000 coordinates under a key of the operating system."""
    mechanism = make(name, 16)
    noise = mechanism.stream(NoiseKey.create(folder, "run"), 40_000, keep="memory")
    releases = np.array([noise.noise(rnd) for rnd in range(1, 17)])
    # Six standard deviations of the variance of 40,000 draws.
    slack = 6 * (2 / 40_000) ** 0.5
    np.testing.assert_allclose(releases.var(axis=1), mechanism.release_std() ** 2, rtol=slack)
    prefixes = np.cumsum(releases, axis=0)
    np.testing.assert_allclose(prefixes.var(axis=1), mechanism.prefix_std() ** 2, rtol=slack)
    assert np.abs(prefixes.mean(axis=1)).max() < 6 * mechanism.prefix_std().max() / 200


def test_keep_and_length_are_checked(folder):
    key = NoiseKey.create(folder, "run")
    with pytest.raises(ValueError, match="keep = 'disk'"):
        make("tree").stream(key, 5, keep="disk")
    with pytest.raises(ValueError, match="length = 0"):
        make("tree").stream(key, 0)
