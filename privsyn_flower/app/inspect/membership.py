"""Membership: can private users be told from people whom the run never asked, or canaries guessed?

Every attack scores users, larger where one was more likely asked. The AUC of private against
held-out users by it is 0.5 where nothing is told; guesses by it bound epsilon from below
(`one_run.py`), beside which the claim stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from privsyn_flower.app.inspect.attacks import BY_TEXT, NotMeasured, Scores
from privsyn_flower.app.inspect.one_run import (
    Guesses,
    best_bound,
    canary_guesses,
    pair_guesses,
)
from privsyn_flower.app.inspect.texts import NO_HELD_OUT, Texts, Users, shared_texts
from privsyn_flower.common.arrays import F64
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.evaluation.intervals import Interval

LEVEL, POWER = 1.6449, 0.8416  # normal quantiles: a one-sided test at 5 %, and 80 % power
RESAMPLES = 2000
CONFIDENCE = 0.95

SLOW = {"update": 200}  # attacks that train on each user's texts -> most people of a side
Attack = Callable[[], Scores]


def measure(texts: Texts, progress: Progress = silent) -> dict[str, Any]:
    """Of each attack on people (a slow one on a draw of them): the AUC over users, its interval
    (bootstrap over the users of both sides), the one-sided p-value of Mann and Whitney (1947), and
    `guesses`, from which a lower bound on epsilon comes. Of canaries, where there are some: AUC and
    guesses. PRIVATE.

    "epsilon_at_least": the largest bound of all attacks, of people and of canaries each at 95 %
    together. "disclosed": users with a score above 0, of attacks that count. "smallest_auc": what a
    test at 5 % would find in 80 of 100 cases with so many users. Texts that both sides have are
    left out of both. What is not measured has its reason under "missing".
    """
    claim = texts.claim
    figures: dict[str, Any] = {"claim": claim and {"epsilon": claim[0], "delta": claim[1]}}
    sides = _people(texts, figures)
    if sides is None and not any(texts.canaries):
        return figures
    attacks = dict(_attacks(texts, progress))
    found: dict[str, Any] = {}
    for name, attack in attacks.items():
        progress("inspecting", len(found), len(attacks), name)
        try:
            score = attack()
        except NotMeasured as error:
            found[name] = {"missing": str(error)}
            continue
        people = [_drawn(users, SLOW.get(name)) for users in sides or ()]
        found[name] = _of_people(score, *people) if people else {}
        if all(texts.canaries):
            found[name]["canaries"] = _of_canaries(score, *texts.canaries)
    figures["attacks"] = found
    figures["epsilon_at_least"] = _bounds(found, claim[1] if claim else 0.0)
    return figures


def _attacks(texts: Texts, progress: Progress) -> Iterator[tuple[str, Attack]]:
    from privsyn_flower.app.inspect import auxiliary, trained

    if texts.published:
        for name, by_text in BY_TEXT.items():
            yield name, lambda by_text=by_text: by_text(texts)  # type: ignore[misc]
    yield "auxiliary model", lambda: auxiliary.auxiliary(texts, progress)
    yield "loss", lambda: trained.loss(texts, progress)
    yield "update", lambda: trained.update(texts, progress)


def _people(texts: Texts, figures: dict[str, Any]) -> tuple[Users, Users] | None:
    """Both sides without the texts that both have; None, with the reason, where no test is."""
    if not texts.held_out:
        figures["missing"] = NO_HELD_OUT
        return None
    shared = shared_texts(texts.private, texts.held_out)
    private, others = (_without(shared, users) for users in (texts.private, texts.held_out))
    figures["users"] = {"private": len(private), "held_out": len(others)}
    figures["texts_of_both_left_out"] = len(shared)
    least = smallest_auc(len(private), len(others))
    if least >= 1:
        figures["missing"] = (
            f"{len(private):,} private and {len(others):,} held-out users are too few for a test: "
            "even an AUC of 1 would be missed in more than 20 of 100 cases"
        )
        return None
    figures["smallest_auc"] = round(least, 4)
    return private, others


def _drawn(users: Users, most: int | None) -> Users:
    """At most so many of them, by a fixed draw."""
    if most is None or len(users) <= most:
        return users
    names = sorted(seeded(0, "inspect draw").choice(len(users), most, replace=False).tolist())
    every = list(users)
    return {every[place]: users[every[place]] for place in names}


def _without(texts: set[str], users: Users) -> Users:
    kept = {user: [text for text in own if text not in texts] for user, own in users.items()}
    return {user: own for user, own in kept.items() if own}


def smallest_auc(first: int, second: int) -> float:
    """The AUC that a one-sided test at 5 % finds with 80 % power, by the normal approximation with
    the variance of no difference; infinite without users."""
    if not first or not second:
        return math.inf
    return 0.5 + (LEVEL + POWER) * math.sqrt((first + second + 1) / (12 * first * second))


def _of_people(score: Scores, private: Users, held_out: Users) -> dict[str, Any]:
    from scipy.stats import mannwhitneyu

    members, others = score(private), score(held_out)
    rng = seeded(0, "inspect people")
    return {
        "auc": auc_interval(members, others, rng).as_list(),
        "p_value": float(mannwhitneyu(members, others, alternative="greater").pvalue),
        "disclosed": {"private": int((members > 0).sum()), "held_out": int((others > 0).sum())},
        "guesses": [vars(one) for one in pair_guesses(members, others, rng)],
    }


def _of_canaries(score: Scores, present: Users, absent: Users) -> dict[str, Any]:
    there, others = score(present), score(absent)
    guesses = canary_guesses(there, others, seeded(0, "inspect canaries"))
    return {"auc": round(auc(there, others), 4), "guesses": [vars(one) for one in guesses]}


def _bounds(attacks: dict[str, Any], delta: float) -> dict[str, float]:
    """The best of all attacks' bounds, each at its share of the level: one statement a kind."""
    measured = [one for one in attacks.values() if "missing" not in one]
    found = {}
    for kind, users in (("people", 2), ("canaries", 1)):
        given = [one if kind == "people" else one.get(kind, {}) for one in measured]
        tries = [[Guesses(**each) for each in one["guesses"]] for one in given if "guesses" in one]
        level = (1 - CONFIDENCE) / max(1, len(tries))
        if tries:
            found[kind] = max(best_bound(one, delta, level, users=users) for one in tries)
    return found


def auc(members: F64, others: F64) -> float:
    """The share of pairs in which the first is larger; a tie is half a pair."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, side="left")
    within = np.searchsorted(ordered, members, side="right") - below
    return float((below + within / 2).mean() / len(others))


def auc_interval(
    members: F64, others: F64, rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> Interval:
    """The AUC with its percentile interval: users of both sides are drawn anew, side by side."""
    draws = [
        auc(rng.choice(members, len(members)), rng.choice(others, len(others)))
        for _ in range(resamples)
    ]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(draws, [tail, 100 - tail])
    return Interval(auc(members, others), float(low), float(high))


def contradiction(figures: dict[str, Any]) -> str:
    """What contradicts the claim, with 95 % confidence; "" where nothing does."""
    claim = figures.get("claim") or {"epsilon": math.inf}
    for kind, bound in figures.get("epsilon_at_least", {}).items():
        if bound > claim["epsilon"]:
            return (
                f"by guessing {kind} epsilon is at least {bound:.2f} with 95 % confidence, and "
                f"{claim['epsilon']:g} is claimed"
            )
    return ""


def described(figures: dict[str, Any]) -> list[str]:
    """Lines for the terminal; PRIVATE."""
    lines = ["membership: whom did the run ask?"]
    if "missing" in figures:
        lines.append(f"  of people not measured: {figures['missing']}")
    else:
        users = figures["users"]
        lines.append(
            f"  {users['private']:,} private against {users['held_out']:,} held-out users, AUC with"
            f" 95 % interval; so many show {figures['smallest_auc']:.3f} (80 % power, test at 5 %)"
        )
    lines += [line for name, own in figures.get("attacks", {}).items() for line in _line(name, own)]
    if figures.get("texts_of_both_left_out"):
        lines.append(
            f"  {figures['texts_of_both_left_out']:,} texts that both sides have are left out"
        )
    claim = figures["claim"]
    beside = f"; claimed: at most {claim['epsilon']:g} (delta {claim['delta']:g})" if claim else ""
    for kind, bound in figures.get("epsilon_at_least", {}).items():
        lines.append(f"  by guessing {kind}, epsilon is at least {bound:.2f} (95 %){beside}")
    if found := contradiction(figures):
        lines.append(f"  THE CLAIM IS WRONG: {found}; publish nothing of this run")
    return lines


def _line(name: str, own: dict[str, Any]) -> Iterator[str]:
    if "missing" in own:
        yield f"  {name}: not measured: {own['missing']}"
    if "auc" in own:
        value, low, high = own["auc"]
        line = f"  {name}: {value:.3f} [{low:.3f}, {high:.3f}], p = {own['p_value']:.2g}"
        if name in ("spans", "values"):
            counts = own["disclosed"]
            line += f"; {counts['private']:,} private users disclosed, {counts['held_out']:,} of "
            line += "the held-out by chance"
        yield line
        if high < 0.5:
            yield f"    held-out users score higher by {name}: is it one population?"
    if "canaries" in own:
        tops = own["canaries"]["guesses"]
        best = max(tops, key=lambda one: one["correct"] / one["number"])
        yield (
            f"  {name}, canaries: AUC {own['canaries']['auc']:.3f}; {best['correct']:,} of the "
            f"{best['number']:,} surest guesses right"
        )
