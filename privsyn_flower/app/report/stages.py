"""What the stages of a run do, in words: names of progress events are for files."""

from __future__ import annotations

import re
from typing import NamedTuple


class Stage(NamedTuple):
    """what: is being done. unit: of what is counted, "" where a count says nothing."""

    what: str
    unit: str


TEXTS, ROUNDS, STEPS, NODES = "texts", "rounds", "steps", "nodes"
CAPPED = "steps at most"  # unit of a stage that may stop early, so no speed tells its end
STAGES = {
    "data": Stage("preparing the data", ""),
    "models": Stage("loading models", ""),
    "public": Stage("preparing public text", ""),
    "nodes": Stage("greeting the nodes", NODES),
    "rounds": Stage("asking the users", ROUNDS),
    "topics": Stage("asking the users for their topics", ""),
    "votes": Stage("asking the users for their votes", ""),
    "topics: embedding": Stage("embedding public text for topics", TEXTS),
    "topics: clustering": Stage("finding topics in public text", "passes"),
    "evaluation": Stage("measuring models on the nodes", ""),
    "expansion": Stage("writing synthetic text", TEXTS),
    "generate": Stage("writing synthetic text", TEXTS),
    "generating": Stage("generating text", TEXTS),
    "expanding": Stage("writing text from seeds", TEXTS),
    "embedding": Stage("embedding texts", TEXTS),
    "varying": Stage("varying texts", TEXTS),
    "describing public text": Stage("describing public text", TEXTS),
    "preference training": Stage("training on preferences", STEPS),
    "training on pairs": Stage("training on pairs", STEPS),
    "proximity": Stage("scoring public text", TEXTS),
    "benchmark": Stage("benchmark, not covered by epsilon", "parts"),
    "control": Stage("to compare: text from noise", TEXTS),
    "control rounds": Stage("to compare: rounds on noise", ROUNDS),
    "no_private_step": Stage("to compare: text before private steps", TEXTS),
    "histogram_only": Stage("to compare: text by topics alone", TEXTS),
    "training_only": Stage("to compare: text by training alone", TEXTS),
    "unaligned": Stage("to compare: text before alignment", TEXTS),
    "rival": Stage("to compare: text of the rival", TEXTS),
    "rival rounds": Stage("to compare: rounds of the rival", ROUNDS),
}
IN_ROUND = {
    "nodes": Stage("answers", NODES),
    "candidates": Stage("making candidates", STEPS),
    "pairs": Stage("preference pairs", "pairs"),
}
TRAINING = ("fine-tuning", "training")
MAY_STOP = ("tuning the shipped", "training the")  # by a held-out loss or models.train-seconds
_ROUND = re.compile(r"round (\d+): (.+)")


def stage_in_words(stage: str) -> Stage:
    """A stage of progress.jsonl in words; one that nobody named keeps its own name."""
    if found := _ROUND.fullmatch(stage):
        what, unit = IN_ROUND.get(found[2], Stage(found[2], ""))
        return Stage(f"round {found[1]}: {what}", unit)
    if stage in STAGES:
        return STAGES[stage]
    plain = stage.replace("_", " ")
    if plain.startswith(MAY_STOP):
        return Stage(plain, CAPPED)
    return Stage(plain, STEPS if plain.startswith(TRAINING) else "")


def kind_of(stage: str) -> str:
    """A stage of progress.jsonl without the number of its round."""
    return _ROUND.sub(r"round: \2", stage)


def progress_text(done: float, total: float, unit: str) -> str:
    """How far a stage is: "3 of 8 rounds"; "" where there is nothing to count."""
    if total <= 0 or (total <= 1 and not unit):
        return ""
    if unit == CAPPED:  # how it ended is in its note
        return f"{done:,.10g} of at most {total:,.10g} steps" if done < total else ""
    return f"{done:,.10g} of {total:,.10g} {unit}".rstrip()
