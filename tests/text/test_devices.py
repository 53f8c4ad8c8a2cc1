"""Device names, and the threads of a worker."""

from __future__ import annotations

import os

import pytest

from privsyn_flower.text.models.devices import (
    MOST_WORKERS,
    cpu_workers,
    map_batches,
    one_worker,
    resolve_device,
)


def test_known_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == "cuda"
    assert resolve_device("cuda:1") == "cuda:1"
    with pytest.raises(RuntimeError, match=r"'cuda:2'.*2 CUDA"):
        resolve_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == "cpu"
    with pytest.raises(RuntimeError, match="0 CUDA"):
        resolve_device("cuda")
    with pytest.raises(RuntimeError, match="MPS"):
        resolve_device("mps")


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", "mps:1", "", "auto:1", "CPU"])
def test_unknown_devices(name: str) -> None:
    with pytest.raises(ValueError, match=r"models\.device"):
        resolve_device(name)


def test_workers_are_the_cores_that_a_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert cpu_workers() == 2
    for told in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert cpu_workers() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert cpu_workers() == MOST_WORKERS
    for told, workers in (("1", 1), ("3,2", 3), ("64", MOST_WORKERS)):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert cpu_workers() == workers


@pytest.mark.parametrize(("threads", "each"), [(1, 1), (2, 1), (MOST_WORKERS * 3, 3)])
def test_a_worker_has_one_thread_or_its_share_of_many(
    monkeypatch: pytest.MonkeyPatch, threads: int, each: int
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with one_worker():
            assert torch.get_num_threads() == each
        assert torch.get_num_threads() == threads
        for batches in (1, 3):  # one batch alone is no reason for more
            told = map_batches(lambda _: torch.get_num_threads(), list(range(batches)), "cpu")
            assert list(told) == [each] * batches
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
