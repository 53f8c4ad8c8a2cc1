"""What surrounds a training run of transformers or TRL: checkpoints, silence, global state."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers

from privsyn_flower.common.files import sync_folder, write_atomic

COMPLETE = "complete"  # a file in a checkpoint, written when all else in it is on disk
LIBRARIES = ("transformers", "trl", "peft", "accelerate", "datasets")


def seal(checkpoint: Path, note: bytes = b"") -> None:
    """Mark a checkpoint as complete, with all its files on disk, and remove the others beside it.

    note: what COMPLETE holds.
    """
    for path in checkpoint.iterdir():
        sync_folder(path)  # fsync is the same for a file
    write_atomic(checkpoint / COMPLETE, note)
    sync_folder(checkpoint.parent)
    for other in checkpoint.parent.iterdir():
        if other != checkpoint:
            shutil.rmtree(other)


def latest_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint of most steps; what a kill left half written is removed."""
    if not folder.is_dir():
        return None
    for path in folder.iterdir():
        if not (path / COMPLETE).is_file():
            shutil.rmtree(path)
    kept = sorted(folder.iterdir(), key=steps_done)
    return kept[-1] if kept else None


def steps_done(checkpoint: Path) -> int:
    """Optimiser steps before a checkpoint, of which the library names it."""
    return int(checkpoint.name.rpartition("-")[2])


def one_device(config: Any) -> Any:
    """Other GPUs of the machine stay free: the library would copy the model to all of them."""
    if config.n_gpu > 1:
        config._n_gpu = 1
    return config


@contextmanager
def without_bars() -> Iterator[None]:
    """No progress bars of transformers, which write over ours; put back as they were."""
    bars = transformers.logging.is_progress_bar_enabled()
    try:
        transformers.logging.disable_progress_bar()
        yield
    finally:
        if bars:
            transformers.logging.enable_progress_bar()


@contextmanager
def quiet() -> Iterator[None]:
    """Errors only from the model libraries; their settings are put back."""
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    levels = [logger.level for logger in loggers]
    verbosity = transformers.logging.get_verbosity()
    with warnings.catch_warnings(), without_bars():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            transformers.logging.set_verbosity_error()
            yield
        finally:
            transformers.logging.set_verbosity(verbosity)
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
