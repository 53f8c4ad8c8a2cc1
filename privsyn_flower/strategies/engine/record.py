"""A run's record: its claim as plain values, and which code made it.

The code is known by its version, its commit if it is a checkout, and a digest of its files. Flower
runs a copy of an app's files that has no history, so the commit is often unknown; the digest never
is, and anybody who has the files can compare it.
"""

from __future__ import annotations

import functools
import hashlib
import math
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from privsyn_flower import __version__
from privsyn_flower.common.files import write_atomic
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.baseline import Baseline
from privsyn_flower.privacy.sentence import FILE as STATEMENT

PACKAGE = Path(__file__).resolve().parents[2]
FORMS = "privsyn_flower.app"  # where it is installed, its report renders privacy.yaml
# What Flower's copy of the app has.
FILES = (
    "**/*.py",
    "privacy/coefficients/*.json",
    "app/report/templates/*.md",
    "app/public/*.json",
)


def claim_record(statement: PrivacyStatement | Baseline) -> dict[str, Any]:
    """The part of a summary that is the claim; known before anything is asked."""
    rho, asks = statement.rho_zcdp, isinstance(statement, PrivacyStatement)
    return {
        "unit": statement.unit,
        "adjacency": statement.adjacency,
        "threat_model": statement.threat_model,
        # JSON has no infinity: null is that.
        "epsilon": statement.epsilon if math.isfinite(statement.epsilon) else None,
        "delta": statement.delta,
        "accountant": statement.accountant,
        "rho_zcdp": rho,
        "mu_gdp": None if rho is None else math.sqrt(2 * rho),
        "noise_multiplier": statement.noise_multiplier,
        "claim": asdict(statement) if asks else None,
        "carries": statement.carries,
        "privacy": statement.sentence(),
        "privacy_short": statement.short(),
    }


def write_statement(
    folder: Path, statement: PrivacyStatement | Baseline, summary: Mapping[str, Any]
) -> None:
    """The statement of a run that begins, in words and as a record. summary: what is known of it,
    with `claim_record`."""
    write_atomic(folder / STATEMENT, statement.page().encode())
    write_form(folder, summary)


def write_form(folder: Path, summary: Mapping[str, Any]) -> None:
    """The standard form made of a summary, privacy.yaml, where the application is installed.

    By its name and without an import, because no run needs it and the engine knows no report.
    """
    if find_spec(FORMS) is not None:
        import_module(f"{FORMS}.report.registry").write_record(folder, summary)


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
