"""What several tests share about training."""

from __future__ import annotations

from pathlib import Path

from tests.rigs.end_to_end_popri import private_texts


def check_nothing_private(folder: Path, mini: Path) -> None:
    private = private_texts(mini)
    for file in (path for path in folder.rglob("*") if path.is_file()):
        data = file.read_bytes()
        assert not any(text in data for text in private), file
