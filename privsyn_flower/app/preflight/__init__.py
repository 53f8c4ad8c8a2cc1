"""What can be told wrong about a run before Flower starts: all of it at once, in about a second.

Nothing is written, no model library is imported, and of long files only the beginning is read.
What only the run itself can find is not repeated here. A private file's counts go to the
terminal of whoever simulates, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from privsyn_flower.app.local.federation import LocalFederation
from privsyn_flower.app.local.simulation import FlowerError
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.ledger import LedgerError
from privsyn_flower.server_apps.privacy_plan import baseline
from privsyn_flower.server_apps.readiness import faults, notes

from .data import docstring_packages, language, messages, private_file, public_file, split_files
from .findings import Finding, Findings, NotReady
from .machine import federation_nodes, models, places, simulated_groups, trackers
from .numbers import budget, candidates, check_privacy, everybody, integers, keys

__all__ = ["Finding", "NotReady", "check_ready"]

Check = Callable[[RunConfig], Findings]


def check_ready(
    config: RunConfig,
    folder: Path,
    federation: LocalFederation | None = None,
    *,
    resumed: bool = False,
) -> list[Finding]:
    """Everything that can be told wrong about a run in `folder`; never raises for it.

    In the order in which a reader would mend things. config: with absolute paths. federation:
    where it runs; None simulates. resumed: the run has begun, so its numbers stand.
    """
    checks: list[Check] = [keys, _data, _needs, trackers, models, language, candidates]
    checks += [partial(places, folder=folder), _notes, everybody]
    asks = baseline(config) is None  # else there is neither noise nor a ledger
    if asks:
        checks.append(partial(budget, folder=folder, resumed=resumed))
    if asks and not resumed:
        checks += [check_privacy, integers]
    if federation is None:
        checks.append(simulated_groups)
    else:
        checks.append(partial(federation_nodes, federation=federation))
    return list(dict.fromkeys(finding for check in checks for finding in _run(check, config)))


def _needs(config: RunConfig) -> Findings:
    """What the ServerApp looks for again, before its first question."""
    return map(Finding, faults(config))


def _notes(config: RunConfig) -> Findings:
    """Whether the result is less than a reader may expect."""
    return (Finding(text, fatal=False) for text in notes(config))


def _data(config: RunConfig) -> Findings:
    """The text; its split where nothing is wrong with the files themselves."""
    files = (private_file, public_file, docstring_packages, messages)
    found = [finding for look in files for finding in _run(look, config)]
    yield from found
    if not any(finding.fatal for finding in found):
        yield from split_files(config)


def _run(check: Check, config: RunConfig) -> Findings:
    """What a check finds; what it raises is one more finding."""
    try:
        yield from check(config)
    except OSError as error:
        yield Finding(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (ValueError, LedgerError, FlowerError) as error:
        yield Finding(" ".join(str(error).split()))
