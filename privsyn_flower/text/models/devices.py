"""The device a model runs on; `cpu` is answered without importing torch."""

from __future__ import annotations


def resolve_device(name: str = "auto") -> str:
    """`auto`, `cpu`, `cuda`, `cuda:N` or `mps` -> a device that this machine has.

    `auto` prefers CUDA, then MPS, then the CPU. Raises ValueError for a name that is not a
    device and RuntimeError for a device that this machine lacks; nothing falls back silently.
    """
    if name == "cpu":
        return name
    kind, colon, index = name.partition(":")
    if kind not in {"auto", "cuda", "mps"} or (colon and not (kind == "cuda" and index.isdigit())):
        raise ValueError(f"models.device = {name!r}: use auto, cpu, cuda, cuda:N or mps")

    import torch

    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    if name == "auto":
        return "cuda" if cuda else "mps" if mps else "cpu"
    if kind == "cuda" and int(index or 0) >= cuda:
        raise RuntimeError(f"models.device = {name!r}, but torch sees {cuda} CUDA device(s)")
    if kind == "mps" and not mps:
        raise RuntimeError("models.device = 'mps', but torch has no MPS backend here")
    return name


def empty_cache(device: str) -> None:
    """Give memory that torch holds but no longer uses back to the accelerator."""
    if device == "cpu":
        return
    import gc

    import torch

    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    elif device == "mps":
        torch.mps.empty_cache()
