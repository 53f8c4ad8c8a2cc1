"""A run that `start` makes, as its trackers are told of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from privsyn_flower import __version__
from privsyn_flower.strategies.engine.run_ledger import run_id
from privsyn_flower.strategies.engine.session import Session


@contextmanager
def tracked(session: Session, method: str) -> Iterator[None]:
    """From the promise to the last round; in the folder's lock.

    method: the strategy's name. What ends the run otherwise is told as `failed` or `stopped`.
    """
    statement, planned = session.statement, session.promise.main.rounds
    facts = {
        "version": __version__,
        "method": method,
        "unit": statement.unit,
        "adjacency": statement.adjacency,
        "accountant": statement.accountant,
        "threat_model": statement.threat_model,
        "privacy_short": statement.short(),
        "users": session.terms.users,
        "nodes": session.terms.nodes,
        "rounds_planned": planned,
        "epsilon": statement.epsilon,
        "delta": statement.delta,
        "noise_multiplier": statement.noise_multiplier,
        "rho_zcdp": statement.rho_zcdp,
    }
    folder, before = session.folder, session.folder.last_checkpoint() or {"round": 0}
    with session.tracking:
        name = folder.path.absolute().name
        session.tracking.run_started(run_id(folder), name, facts, {}, int(before["round"]))
        yield
        done = len(folder.metrics())
        result = {"rounds": done, "privacy_short": session.statement.short()}
        session.tracking.ended("finished" if done >= planned else "ended early", result)
