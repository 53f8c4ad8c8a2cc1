"""Device names."""

from __future__ import annotations

import pytest

from privsyn_flower.text.models.devices import resolve_device


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
