"""Which code made a run: its version, its commit if it is a checkout, and a digest of its files.

Flower runs a copy of an app's files that has no history, so the commit is often unknown; the digest
never is, and anybody who has the files can compare it.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
from pathlib import Path
from typing import Any

from privsyn_flower import __version__

PACKAGE = Path(__file__).resolve().parents[2]
# What Flower's copy of the app has.
FILES = ("**/*.py", "privacy/coefficients/*.json", "app/report/templates/*.md")


def code() -> dict[str, Any]:
    """For a summary: version, commit (None if unknown), code_sha256."""
    return {"version": __version__, "commit": commit(), "code_sha256": digest()}


@functools.lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit of the checkout that this package lies in, and whether its files were changed
    since; None if it lies in none, or git is not there."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", PACKAGE.name)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}, with changes" if changed else head


def _git(root: Path, *words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


@functools.lru_cache(maxsize=1)
def digest(package: Path = PACKAGE) -> str:
    """SHA-256 over the names and contents of the package's code, in the order of the names."""
    found = sorted(path for pattern in FILES for path in package.glob(pattern))
    total = hashlib.sha256()
    for path in found:
        name, content = path.relative_to(package).as_posix().encode(), path.read_bytes()
        for part in (name, content):
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()
