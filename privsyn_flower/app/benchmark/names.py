"""What a benchmark compares, in names: the rows of its table, their pairs, and its progress."""

from __future__ import annotations

from collections.abc import Sequence

from privsyn_flower.common.progress import BENCHMARK, Progress, Steps
from privsyn_flower.config import RunConfig, split_list

RANDOM_PUBLIC, MINORITY_PUBLIC = "random-public", "minority-public"  # in `evaluation.controls`
PUBLIC_CONTROLS = (RANDOM_PUBLIC, MINORITY_PUBLIC)
NOTE = "measured with private and held-out text; not covered by epsilon"
CHOSEN = {
    "last": "",
    "public": "; each fine-tuning's epoch was chosen by public text",
    "development": "; each fine-tuning's epoch was chosen by development users' text, which "
    "epsilon does not cover either",
}
METHODS = {
    "pretrained": "the downstream model as it is",
    "start": "the start of all fine-tunings: trained on public text to convergence",
    "majority": "always the private texts' most frequent class",
    "random_public": "(a) fine-tuned on random public text",
    "minority_public": "(m) on the minority of the public text, which is like the users'",
    "unaligned": "(a1) on the generator's text before alignment",
    "noise_votes": "(a2) on the same pipeline's text, its votes replaced by noise",
    "noise_scores": "(a2) on the same pipeline's text, its scores replaced by noise",
    "pretext": "(a3) on PrE-Text's synthetic text at the same noise and rounds, simulated",
    "no_private_step": "(a1) on the conditional generator's text before any private step",
    "histogram_only": "(h) on text of that generator by the noisy shares of topics",
    "training_only": "(f) on text of the trained generator, every topic alike",
    "noise_answers": "(a2) on the same pipeline's text, both answers replaced by noise",
    "noise_updates": "(a2) trained in the same way, users' updates replaced by noise",
    "scratch_random": "(s1) trained anew on a random subset of the public text, as large as (s)",
    "scratch_noise": "(s2) anew on the public text that a training on noise alone would keep",
    "scratch_filtered": "(s) anew on the public text that the private training keeps",
    "synthetic": "(b) on the synthetic text",
    "trained": "(b) trained privately on the nodes",
    "private": "(c) on the private text, without privacy",
}
PAIRS = (
    ("synthetic", "start"),
    ("trained", "start"),
    ("random_public", "start"),
    ("synthetic", "random_public"),
    ("synthetic", "minority_public"),
    ("synthetic", "unaligned"),
    ("synthetic", "noise_votes"),
    ("synthetic", "noise_scores"),
    ("synthetic", "pretext"),
    ("synthetic", "no_private_step"),
    ("synthetic", "histogram_only"),
    ("synthetic", "training_only"),
    ("synthetic", "noise_answers"),
    ("histogram_only", "no_private_step"),
    ("training_only", "no_private_step"),
    ("synthetic", "majority"),
    ("trained", "pretrained"),
    ("trained", "random_public"),
    ("trained", "minority_public"),
    ("trained", "noise_updates"),
    ("trained", "majority"),
    ("scratch_filtered", "pretrained"),
    ("scratch_filtered", "scratch_random"),
    ("scratch_filtered", "scratch_noise"),
    ("private", "random_public"),
    ("private", "synthetic"),
    ("private", "trained"),
)


def note(config: RunConfig) -> str:
    """What the figures rest on."""
    return NOTE + CHOSEN[config.evaluation.checkpoint]


def knows_minority(config: RunConfig) -> bool:
    """Whether there is public text that is like the users', of which a language model may learn."""
    data = config.data
    return data.has_minority and data.minority_share > 0 and config.evaluation.task == "next-token"


def public_controls(config: RunConfig) -> list[str]:
    """The chosen controls on public text, by their names in METHODS."""
    options = config.evaluation
    minority = knows_minority(config) and options.compares(MINORITY_PUBLIC)
    found = [("random_public", options.compares(RANDOM_PUBLIC)), ("minority_public", minority)]
    return [name for name, chosen in found if chosen]


def steps_of(
    config: RunConfig, progress: Progress, comparisons: Sequence[str], models: Sequence[str] = ()
) -> Steps:
    """The benchmark's line of progress: the `comparisons` (names in METHODS), what is
    measured, and a fine-tuning for each set of texts. models: made, too, and not fine-tuned."""
    own = ["trained"] if config.trains else ["synthetic"]
    tuned = {*public_controls(config), *own, *comparisons, "private"} - {*models, "trained"}
    if config.evaluation.start == "public":
        tuned -= {"random_public"}
    rate = len(split_list(config.evaluation.learning_rates)) > 1
    measured = 0 if config.trains else 2
    return Steps(progress, BENCHMARK, len(comparisons) + measured + rate + len(tuned))
