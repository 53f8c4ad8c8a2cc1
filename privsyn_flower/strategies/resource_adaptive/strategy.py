"""Resource-adaptive synthesis: strong nodes train, weak nodes vote once (arXiv 2603.07027).

Only that paper's abstract was at hand: strong clients fine-tune a generator with DP, weak ones vote
once for its text, within topics. Decided here: the training is CTCL's, and so is the histogram of
topics, which strong nodes answer; no node is in both groups, so each has the whole budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from flwr.serverapp import Grid

from privsyn_flower.common.arrays import F64, I64, Ints
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.protocol.question import Query
from privsyn_flower.strategies.ctcl.strategy import BOUND, CTCL
from privsyn_flower.strategies.engine.cohort import Cohort
from privsyn_flower.strategies.engine.one_question import OneQuestion
from privsyn_flower.strategies.engine.session import Session
from privsyn_flower.strategies.resource_adaptive.config import STRONG, WEAK
from privsyn_flower.text.protocols import Embedder

VOTES = "votes"  # the phase of the weak nodes' vote, and the folder of its release


def by_groups(training: Sequence[Phase], spare_rounds: int = 1) -> list[Phase]:
    """CTCL's phases for strong nodes, and one vote of weak nodes. The budget covers one
    failed attempt at the vote if the rounds have spare ones."""
    strong = [replace(phase, group=STRONG) for phase in training]
    return [*strong, Phase(VOTES, spare=min(1, spare_rounds), group=WEAK)]


class ResourceAdaptive(CTCL):
    """A generator trained on strong nodes, and what weak nodes' users chose of its text.

    Parameters: as CTCL's.
    """

    method = "resource-adaptive"

    def phases(self, spare_rounds: int = 1, *, nodes: int = 0) -> list[Phase]:
        """CTCL's, and the vote; see `by_groups`."""
        return by_groups(super().phases(spare_rounds, nodes=nodes), spare_rounds)

    def start(self, grid: Grid, **options: Any) -> NoReturn:
        """Raises ValueError: the vote comes after the rounds, which a whole run sees to."""
        raise ValueError("method = 'resource-adaptive' needs a whole run: privsyn run")

    def greet(self, session: Session) -> None:
        """Wait for the weak nodes before strong ones pay. Raises TooFewNodes without enough."""
        if session.folder.load_value("weights") is None:  # nobody was asked yet
            plan = session.plan(session.privacy_plan[VOTES])
            Cohort(session.grid, plan, session.folder, session.progress).present()

    def ballot(self, texts: Sequence[str], numbers: Sequence[int], embedder: Embedder) -> Query:
        """Which of these texts, each of a topic, are nearest to yours? numbers (n,): their topics.

        A user's text votes among those of its own topic; all votes of a user have length 1. Answer:
        (n,).
        """
        asked = Query.votes(
            embedder.embed(list(texts)),
            bound=BOUND,
            model=embedder.fingerprint,
            samples_cap=self.samples_per_user,
        )
        return asked.within_topics(self._model.rows, numbers)

    def vote(
        self, session: Session, texts: Sequence[str], numbers: Sequence[int], embedder: Embedder
    ) -> F64:
        """Noisy votes (n,) for distinct texts, public; from disk when they were released. Inside
        `session.begun`; raises as `Session.ask`."""
        question = OneQuestion(self.ballot(texts, numbers, embedder), texts, embedded=True)
        session.ask(question, VOTES)
        return np.array(question.released)


def top_by_votes(votes: F64, numbers: Ints, wanted: I64) -> I64:
    """Places, in order, of each topic's `wanted` (m,) texts with most votes (n,), each once.

    Fewer where a topic has fewer; ties go to the first. A draw in proportion to votes would repeat
    texts, and one text's votes are mostly noise. numbers (n,): topics of the texts.
    """
    order = np.lexsort((-votes, numbers))  # (n,), stable
    topics = np.asarray(numbers)[order]
    rank = np.arange(len(order)) - np.searchsorted(topics, topics)
    chosen: I64 = np.sort(order[rank < wanted[topics]])
    return chosen
