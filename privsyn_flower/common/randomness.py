"""Seeded choices: one explicit generator per purpose, never a global seed and never noise.

Code of others, libraries and functions of an app's author, draws from the global generators of its
process; here is what keeps them apart.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def seeded(seed: int, *purpose: int | str) -> np.random.Generator:
    """A generator for one purpose, for example seeded(seed, 3, "survivors")."""
    words = [int.from_bytes(str(part).encode(), "big") for part in purpose]
    return np.random.default_rng([seed, *words])


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Python's, numpy's and torch's global generators, which code of others seeds, are put back."""
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    bits = np.random.get_bit_generator()  # type: ignore[attr-defined]
    try:
        if torch is None:
            yield
        else:
            gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
            with torch.random.fork_rng(devices=range(gpus)):
                yield
    finally:
        random.setstate(python)
        np.random.set_bit_generator(bits)  # type: ignore[attr-defined]
        np.random.set_state(numpy)
        if torch is None and "torch" in sys.modules:  # it came inside, seeded by the system
            sys.modules["torch"].seed()


@contextmanager
def own_randomness(*purpose: int | str) -> Iterator[None]:
    """The global generators for one call of somebody else's code: what it draws is its own.

    They begin from their state here mixed with the purpose, and are put back: so a call draws by
    the app's own seeds, if it set any, and by its purpose; not by which calls came before, in this
    process or another, nor by what those drew or seeded. Put back alone they would let each call
    draw the same, round after round; and generators of GPUs that a call is the first to use cannot
    be put back, only seeded anew.
    """
    with untouched_randomness():
        random.seed(_mixed(random.getrandbits(63), purpose))
        np.random.seed(_mixed(np.random.randint(2**31), purpose) % 2**32)
        if torch := sys.modules.get("torch"):
            torch.manual_seed(_mixed(torch.randint(2**62, (), device="cpu").item(), purpose))
        yield


def _mixed(drawn: int, purpose: tuple[int | str, ...]) -> int:
    return int(seeded(drawn, *purpose).integers(2**62))
