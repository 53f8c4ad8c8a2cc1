"""What only its owner may read is made so, also when it was there before."""

from __future__ import annotations

import stat
from pathlib import Path

from privsyn_flower.files import make_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_make_private_creates_and_tightens(tmp_path: Path) -> None:
    assert mode(make_private(tmp_path / "new" / "folder")) == 0o700
    (tmp_path / "old").mkdir(mode=0o755)
    assert mode(make_private(tmp_path / "old")) == 0o700
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o644)
    assert mode(make_private(tmp_path / "file")) == 0o600
    assert (tmp_path / "file").read_text() == "x"
