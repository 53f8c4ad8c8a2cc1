"""Membership: can private users be told from people whom the run never asked, or canaries guessed?

Every attack scores users, higher for those more likely asked. Its AUC of private against held-out
users is 0.5 where nothing is revealed; guesses by it bound epsilon from below (`best_bound`), to be
compared with the claim.

The bound of one run: Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), theorem 5.2. Let m
independent fair draws each change the input of a mechanism that is (epsilon, delta)-DP in each.
Then nobody guesses r of them, v of these correctly, more often than `p_value` says. Which are
guessed may depend on the mechanism's output, but on the draws only through it.

- Canaries: a draw each decides whether one user is there, so epsilon and delta are the run's.
- People: one who was asked and one who was not are paired at random, and the draw is which of both
  was asked. That exchanges two users, so a run's (epsilon, delta) allows
  (2 epsilon, (1 + e^epsilon) delta). It holds where the people were asked at random, and is the
  test of Amin et al. 2026 (arXiv 2606.16952), of true against phantom disclosures, for a guarantee
  of add-or-remove.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from privsyn_flower.app.inspect.attacks import BY_TEXT, NotMeasured, Scores, releases
from privsyn_flower.app.inspect.texts import NO_HELD_OUT, Texts, Users, texts_of_several
from privsyn_flower.common.arrays import F64, Bools
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.evaluation.intervals import Interval

LEVEL, POWER = 1.6449, 0.8416  # normal quantiles: a one-sided test at 5 %, and 80 % power
RESAMPLES = 2000
CONFIDENCE = 0.95

# Attacks that are slow, because they make each user's vector -> most people of a side.
SLOW = {"releases": 200, "update": 200}


def measure(texts: Texts, progress: Progress = silent) -> dict[str, Any]:
    """Of each attack on people (a slow one on a draw of them): the AUC over users, its interval
    (bootstrap over the users of both sides), the one-sided p-value of Mann and Whitney (1947), and
    `guesses`, from which a lower bound on epsilon comes where the sides were drawn at random. Of
    canaries, where there are some: AUC and guesses. PRIVATE.

    "epsilon_at_least": the largest bound of all attacks, of people and of canaries, 95 % together.
    "smallest_auc": what a test at 5 % would find in 80 of 100 cases with so many users. Texts that
    several people have are left out. What is not measured has its reason under "missing".
    """
    epsilon, delta = texts.claim
    figures: dict[str, Any] = {"claim": {"epsilon": epsilon, "delta": delta}}
    people, canaries = _people(texts, figures), _canaries(texts, figures)
    if not people and not canaries:
        return figures
    attacks = _attacks(texts, progress)
    found: dict[str, Any] = {}
    for name, attack in attacks.items():
        progress("guessing who was asked", len(found), len(attacks), name)
        try:
            score, own = attack(), dict[str, Any]()
            if people:
                drawn = _drawn(people, SLOW.get(name))
                own |= _of_people(_scores(score, drawn), drawn, texts)
            if canaries:
                own["canaries"] = _of_canaries(_scores(score, canaries), canaries, texts)
            found[name] = own
        except NotMeasured as error:
            found[name] = {"missing": str(error)}
    progress("guessing who was asked", len(attacks), len(attacks), "")
    figures["attacks"] = found
    figures["epsilon_at_least"] = _bounds(found, delta)
    return figures


@dataclass(frozen=True)
class Sample:
    """People or canaries, in an order that tells nothing of their sides. members (n,): whether each
    was asked, which no score is given."""

    users: Users
    members: Bools

    def __len__(self) -> int:
        return len(self.users)


def _attacks(texts: Texts, progress: Progress) -> dict[str, Callable[[], Scores]]:
    from privsyn_flower.app.inspect.models import auxiliary, loss, update

    others = {"releases": releases, "auxiliary model": auxiliary, "loss": loss, "update": update}
    by_text = BY_TEXT if texts.published else {}
    return {name: partial(attack, texts) for name, attack in by_text.items()} | {
        name: partial(attack, texts, progress) for name, attack in others.items()
    }


def _scores(score: Scores, sample: Sample) -> F64:
    """Of the whole sample at once. Raises NotMeasured where they tell nothing."""
    found = score(sample.users)
    if not np.isfinite(found).all():
        raise NotMeasured("a score is no number: did the model's training diverge?")
    if np.ptp(found) == 0:
        raise NotMeasured("all have the same score")
    return found


def _canaries(texts: Texts, figures: dict[str, Any]) -> Sample | None:
    members = np.array([one.present for one in texts.canaries], dtype=np.bool_)
    if not len(members):
        return None
    if not 0 < members.sum() < len(members):
        figures["missing_canaries"] = "all canaries are on one side: there are too few"
        return None
    return Sample({one.name: [one.text] for one in texts.canaries}, members)


def _people(texts: Texts, figures: dict[str, Any]) -> Sample | None:
    """Both sides without the texts that several people have; None, with the reason, where no test
    is possible. Otherwise a text of two people would more often stay on the larger side alone."""
    if not texts.held_out:
        figures["missing"] = NO_HELD_OUT
        return None
    several = texts_of_several([*texts.private.values(), *texts.held_out.values()])
    private, others = (_without(several, users) for users in (texts.private, texts.held_out))
    figures["users"] = {"private": len(private), "held_out": len(others)}
    figures["texts_of_several_left_out"] = len(several)
    least = smallest_auc(len(private), len(others))
    if least >= 1:
        figures["missing"] = (
            f"{len(private):,} private and {len(others):,} held-out users are too few for a test: "
            "even an AUC of 1 would be missed in more than 20 of 100 cases"
        )
        return None
    figures["smallest_auc"] = round(least, 4)
    figures["no_bound"] = texts.no_bound
    everybody = {**private, **others}
    order = sorted(everybody, key=lambda user: (list(everybody[user]), user))
    members = np.array([user in private for user in order])
    return Sample({user: everybody[user] for user in order}, members)


def _drawn(people: Sample, most: int | None) -> Sample:
    """At most so many of each side, by a fixed draw."""
    if most is None:
        return people
    rng = seeded(0, "inspect draw")
    sides = [np.flatnonzero(people.members == side) for side in (True, False)]
    chosen = np.sort(np.concatenate(
        [rng.choice(side, min(most, len(side)), replace=False) for side in sides]
    ))  # fmt: skip
    names = list(people.users)
    users = {names[place]: people.users[names[place]] for place in chosen.tolist()}
    return Sample(users, people.members[chosen])


def _without(texts: set[str], users: Users) -> Users:
    kept = {user: [text for text in own if text not in texts] for user, own in users.items()}
    return {user: own for user, own in kept.items() if own}


def smallest_auc(first: int, second: int) -> float:
    """The AUC that a one-sided test at 5 % finds with 80 % power, by the normal approximation with
    the variance of no difference; infinite without users."""
    if not first or not second:
        return math.inf
    return 0.5 + (LEVEL + POWER) * math.sqrt((first + second + 1) / (12 * first * second))


def _of_people(scores: F64, people: Sample, texts: Texts) -> dict[str, Any]:
    from scipy.stats import mannwhitneyu

    members, others = scores[people.members], scores[~people.members]
    rng = seeded(0, f"inspect people {texts.digest}")
    found = {
        "users": {"private": len(members), "held_out": len(others)},
        "auc": auc_interval(members, others, rng).as_list(),
        "p_value": float(mannwhitneyu(members, others, alternative="greater").pvalue),
        "disclosed": {"private": int((members > 0).sum()), "held_out": int((others > 0).sum())},
    }
    if not texts.no_bound:
        found["guesses"] = [vars(one) for one in pair_guesses(members, others, rng)]
    return found


def _of_canaries(scores: F64, canaries: Sample, texts: Texts) -> dict[str, Any]:
    guesses = canary_guesses(scores, canaries.members, seeded(0, f"inspect {texts.digest}"))
    found = auc(scores[canaries.members], scores[~canaries.members])
    return {"auc": round(found, 4), "guesses": [vars(one) for one in guesses]}


def _bounds(attacks: dict[str, Any], delta: float) -> dict[str, float]:
    """The best of all attacks' bounds, each at its share of the level: one statement in all."""
    measured = [one for one in attacks.values() if "missing" not in one]
    tries = {
        kind: [[Guesses(**each) for each in own["guesses"]] for own in parts if "guesses" in own]
        for kind, parts in (
            ("people", measured),
            ("canaries", [one.get("canaries", {}) for one in measured]),
        )
    }
    level = (1 - CONFIDENCE) / max(1, sum(map(len, tries.values())))
    users = {"people": 2, "canaries": 1}
    return {
        kind: max(best_bound(one, delta, level, users=users[kind]) for one in own)
        for kind, own in tries.items()
        if own
    }


def auc(members: F64, others: F64) -> float:
    """The share of pairs in which the first is larger; a tie is half a pair."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(members, others).statistic) / (len(members) * len(others))


def auc_interval(
    members: F64, others: F64, rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> Interval:
    """The AUC with its percentile interval: users of both sides are drawn anew, side by side."""
    levels, ranks = np.unique(np.concatenate([members, others]), return_inverse=True)
    sides = ranks[: len(members)], ranks[len(members) :]
    draws = []
    for _ in range(resamples):
        mine, theirs = (
            np.bincount(side[rng.integers(0, len(side), len(side))], minlength=len(levels))
            for side in sides
        )
        # Of each level: how many of the others are below it, and half of those within.
        draws.append(mine @ (np.cumsum(theirs) - theirs / 2) / (len(members) * len(others)))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(draws, [tail, 100 - tail])
    return Interval(auc(members, others), float(low), float(high))


def contradiction(figures: dict[str, Any]) -> str:
    """What contradicts the claim, with 95 % confidence; "" where nothing does."""
    claim = figures["claim"]
    for kind, bound in figures.get("epsilon_at_least", {}).items():
        if claim["epsilon"] is not None and bound > claim["epsilon"]:
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
            f" 95 % interval; detectable: {figures['smallest_auc']:.3f} (80 % power, test at 5 %)"
        )
    lines += [line for name, own in figures.get("attacks", {}).items() for line in _line(name, own)]
    if figures.get("texts_of_several_left_out"):
        lines.append(
            f"  {figures['texts_of_several_left_out']:,} texts of several people are left out"
        )
    if "missing_canaries" in figures:
        lines.append(f"  of canaries not measured: {figures['missing_canaries']}")
    if figures.get("no_bound"):
        lines.append(f"  people bound no epsilon: {figures['no_bound']}")
    claim = figures["claim"]
    beside = f" (95 %, delta {claim['delta']:g})"
    beside += "" if claim["epsilon"] is None else f"; claimed: at most {claim['epsilon']:g}"
    for kind, bound in figures.get("epsilon_at_least", {}).items():
        lines.append(f"  by guessing {kind}, epsilon is at least {bound:.2f}{beside}")
    if found := contradiction(figures):
        lines.append(f"  THE CLAIM IS CONTRADICTED: {found}; publish nothing of this run")
    return lines


def _line(name: str, own: dict[str, Any]) -> Iterator[str]:
    if "missing" in own:
        yield f"  {name}: not measured: {own['missing']}"
    if "auc" in own:
        value, low, high = own["auc"]
        drawn = f" (of {sum(own['users'].values()):,} drawn)" if name in SLOW else ""
        line = f"  {name}{drawn}: {value:.3f} [{low:.3f}, {high:.3f}], p = {own['p_value']:.2g}"
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


SHARES = (8, 4, 2)  # the surest eighth, quarter and half of all are guessed; and all
MOST = 60.0  # an epsilon beyond which no test of so few guesses goes


@dataclass(frozen=True)
class Guesses:
    """memberships: how many there are to guess. number: how many were guessed, the surest. correct:
    of these."""

    memberships: int
    number: int
    correct: int

    def __add__(self, other: Guesses) -> Guesses:
        """Of two runs, whose draws are independent, by the same rule."""
        return Guesses(
            self.memberships + other.memberships,
            self.number + other.number,
            self.correct + other.correct,
        )


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """The most that chance gives to so many correct guesses of an (epsilon, delta)-DP run.

    Theorem 5.2: the tail of a binomial of e^epsilon / (1 + e^epsilon), and for delta
    2 m delta max over i of P[v - i <= binomial < v] / i.
    """
    from scipy.stats import binom

    number, correct = guesses.number, guesses.correct
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, number, rate))
    if not delta:
        return tail
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), number, rate))  # i = 1 .. v
    worst = float((below / np.arange(1, correct + 1)).max(initial=0.0))
    return min(1.0, tail + 2 * guesses.memberships * delta * worst)


def epsilon_bound(guesses: Guesses, delta: float, level: float, *, users: int = 1) -> float:
    """Epsilon is more than this, or something happened whose probability is `level` at most.

    users: how many one draw exchanges, 1 (canaries) or 2 (pairs). Rounded down to 1e-4; 0: nothing
    is shown.
    """

    def shown(epsilon: float) -> bool:
        lost = delta if users == 1 else delta * (1 + math.exp(epsilon))
        return p_value(guesses, users * epsilon, min(1.0, lost)) <= level

    if not shown(0.0):
        return 0.0
    low, high = 0.0, MOST
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if shown(middle) else (low, middle)
    return math.floor(low * 1e4) / 1e4


def best_bound(tries: Sequence[Guesses], delta: float, level: float, *, users: int = 1) -> float:
    """The largest bound of several ways to guess, at a share of the level each (Bonferroni)."""
    bounds = (epsilon_bound(one, delta, level / len(tries), users=users) for one in tries)
    return max(bounds, default=0.0)


def pooled(runs: Iterable[Sequence[Guesses]]) -> list[Guesses]:
    """The guesses of independent runs together, by the ways to guess."""
    return [sum(same[1:], start=same[0]) for same in zip(*runs, strict=True)]


def canary_guesses(scores: F64, members: Bools, rng: np.random.Generator) -> list[Guesses]:
    """Of canaries by their scores (n,), larger where one was there: the highest eighth, quarter and
    half are guessed there; and once the upper half there, the lower one not. members (n,): the
    truth. Their order must not depend on it: equal scores are ranked by rng's permutation."""
    order = _descending(scores, rng)
    count, half = len(scores), len(scores) // 2
    tops = [count // share for share in SHARES]
    found = [Guesses(count, top, int(members[order[:top]].sum())) for top in tops if top]
    both = int(members[order[:half]].sum() + (~members[order[count - half :]]).sum())
    return [*found, Guesses(count, 2 * half, both)] if half else found


def pair_guesses(members: F64, others: F64, rng: np.random.Generator) -> list[Guesses]:
    """Of pairs of a person who was asked and one who was not, at random: in those that differ most
    the one with the higher score is guessed. Equal ones are left out."""
    size = min(len(members), len(others))
    mine, theirs = (rng.choice(side, size, replace=False) for side in (members, others))
    apart = mine - theirs
    known: Bools = apart != 0
    order = _descending(np.abs(apart[known]), rng)
    right = (apart[known] > 0)[order]
    tops = [len(right) // share for share in (*SHARES, 1)]
    return [Guesses(size, top, int(right[:top].sum())) for top in tops]


def _descending(scores: F64, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The order of scores from the highest; equal ones at random."""
    mixed = rng.permutation(len(scores))
    return mixed[np.argsort(-scores[mixed], kind="stable")]
