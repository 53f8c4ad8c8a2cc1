"""A training measured on the nodes while it goes on: accuracy against rounds.

Figure 4 of Wu et al. 2024 ("Prompt public LLMs to synthesize data for private on-device
applications"), whose points are not accounted for. Here each is a release of its own: it is in the
privacy plan before the first round, charged once, and noisy. It measures the model after a round
beside the public start, in one answer of each user, so that what was gained has a narrower interval
than the two accuracies. All users are queried, whoever is eligible: the privacy plan counts every
evaluation for everybody, beside the rounds that a user takes part in.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.plan import EVALUATIONS
from privsyn_flower.queries.metrics import TooNoisyError
from privsyn_flower.server_apps.selection import evaluation_caps, figures
from privsyn_flower.strategies.engine.cohort import Cohort
from privsyn_flower.strategies.engine.rounds import NoRelease
from privsyn_flower.strategies.engine.session import Session
from privsyn_flower.strategies.evaluation.strategy import Estimate, better, evaluate

logger = logging.getLogger("privsyn_flower")

START, FINAL = "start", "final"
UNREACHED = "the rounds ended before"

Arrays = Mapping[str, NDArray[Any]]
Point = dict[str, Any]


class Curve:
    """The evaluations of `training.evaluate-rounds`, each made when its round comes.

    start: folder of the model that the training begins with, which the nodes have. cohort: of the
    rounds, once they begin: nobody else is waited for between two of them.
    """

    cohort: Cohort | None = None

    def __init__(self, config: RunConfig, session: Session, start: Path) -> None:
        self.config, self.session, self.start = config, session, start
        self.rounds = config.training.evaluated_rounds

    def before(self) -> None:
        """Measure the start alone, where the configuration asks for round 0. Raises as
        `Session.ask`: nothing is lost yet."""
        if 0 in self.rounds:
            self._measured(0, {START: {}})

    def after(self, rnd: int, arrays: Arrays, *, last: bool = False) -> dict[str, float]:
        """The figures of the model after round `rnd`; {} when none are due, or on failure.

        One that was made before is read from disk. What goes wrong on the nodes ends here: the
        training has been paid for, and goes on.
        """
        if rnd not in self.rounds:
            return {}
        found = self._measured(rnd, {START: {}, _name(rnd): arrays}, last=last)
        return {key: value for key, value in found.items() if isinstance(value, float)}

    def points(self, done: int, final: Mapping[str, Any] | None) -> list[Point]:
        """The curve, by rounds; public. A point that has no figures says why: `failed`.

        done: rounds that the model is of. final: what `facts` says of it, where it was measured.
        The start of an evaluation is the first point where it was not measured alone.
        """
        kept = [self._load(rnd) or {"round": rnd, "failed": UNREACHED} for rnd in self.rounds]
        found: list[Point] = [dict(point) for point in kept]
        if final is not None:
            found.append({"round": done, **_of_final(final)})
        starts = [(point["round"], point.pop("start")) for point in found if "start" in point]
        if 0 not in self.rounds and starts:
            rnd, start = starts[0]
            found.insert(0, {"round": 0, **start, "measured_after": rnd})
        return found

    def _measured(
        self, rnd: int, models: Mapping[str, Mapping[str, Any]], *, last: bool = False
    ) -> Point:
        point = self._load(rnd)
        if point is None:
            point = {"round": rnd, **self._query(rnd, models, last)}
            self.session.folder.save_value(_name(rnd), point)
        return point

    def _query(self, rnd: int, models: Mapping[str, Mapping[str, Any]], last: bool) -> Point:
        try:
            found = evaluate(
                models,
                base=self.start,
                session=self.session,
                caps=evaluation_caps(self.config),
                name=f"{EVALUATIONS}-{rnd:04d}",
                last=last,
                cohort=self.cohort,
            )
        except (NoRelease, TooNoisyError) as error:
            logger.warning("the evaluation after round %d gave nothing: %s", rnd, error)
            return {"failed": str(error)}
        if rnd == 0:
            return figures(found[START])
        return {
            **figures(found[_name(rnd)]),
            **gains(found[_name(rnd)], found[START]),
            "start": figures(found[START]),
        }

    def _load(self, rnd: int) -> Point | None:
        found: Point | None = self.session.folder.load_value(_name(rnd))
        return found


def _name(rnd: int) -> str:
    """Of a model in its question, and of its figures in the run folder."""
    return f"round-{rnd:04d}-evaluated"


def gains(model: Estimate, start: Estimate) -> dict[str, list[float]]:
    """What a model is better by, [value, low, high] each."""
    found = better(model, start)
    return {
        "accuracy_gained": list(asdict(found.accuracy).values()),
        "loss_saved": list(asdict(found.loss).values()),
    }


def facts(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    """The figures of the final model's evaluation against the start, as the summary has them."""
    by_model = {name: figures(estimate) for name, estimate in estimates.items()}
    return {"estimates": by_model, **gains(estimates[FINAL], estimates[START])}


def _of_final(final: Mapping[str, Any]) -> Point:
    if "estimates" not in final:
        return {"failed": final["failed"]}
    own = {key: final[key] for key in ("accuracy_gained", "loss_saved")}
    return {**final["estimates"][FINAL], **own, "start": final["estimates"][START]}


def drawable(points: Sequence[Point]) -> dict[str, list[list[float]]]:
    """What `draw_curve` takes of the points that have figures: [round, value, low, high]."""
    whole = [p for p in points if "failed" not in p]
    gained = [p for p in whole if "accuracy_gained" in p]
    return {
        "accuracy": [
            [p["round"], p["accuracy"], p["accuracy_low"], p["accuracy_high"]] for p in whole
        ],
        "gained": [[p["round"], *p["accuracy_gained"]] for p in gained],
    }
