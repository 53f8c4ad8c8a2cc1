"""What several tests share about run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest


def finish(process: Any, seconds: float = 1500) -> tuple[int, list[str], list[str]]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out.strip().splitlines(), err.strip().splitlines()


def wait_for(path: Path, process: Any, text: str = "", seconds: float = 1500) -> None:
    """Until `text` is in the file, or the file or folder is there, by what `process` does.

    What does not come in time takes no processor any more.
    """
    deadline = time.monotonic() + seconds
    while not path.exists() or (text and text not in path.read_text()):
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            pytest.fail(f"{text or path} did not appear: {process.communicate(timeout=1500)[1]}")
        time.sleep(0.01)
