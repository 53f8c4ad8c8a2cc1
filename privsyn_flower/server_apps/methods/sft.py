"""Fine-tuning of the generator on what evolution found, before it writes (PE+SFT).

POPri's baseline (Hou et al. 2025, section 3 and Table 1): the model learns the best texts by their
next words, as if they were perfect. The texts are differentially private, so it costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsyn_flower.common.randomness import seeded
from privsyn_flower.text.prompts import expand_prompt
from privsyn_flower.text.readiness import try_adapters

if TYPE_CHECKING:
    from privsyn_flower.server_apps.methods.recipe import Recipe
    from privsyn_flower.text.preference import PreferenceTrainer

FOLDER = "sft"  # of a run's folder


def imitations(
    seeds: Sequence[str], examples: int, rng: np.random.Generator
) -> list[dict[str, str]]:
    """n distinct seeds -> n pairs of `prompt` and `chosen`, in a random order.

    Each seed is what follows a prompt that shows `examples` others: the prompts are those that the
    tuned generator is given afterwards. Raises ValueError for fewer than examples + 1 seeds.
    """
    lines = list(dict.fromkeys(" ".join(seed.split()) for seed in seeds))
    if len(lines) <= examples:
        raise ValueError(
            f"{len(lines)} distinct texts to fine-tune on, and each is shown with "
            f"expand.seeds-per-prompt = {examples} others: lower it, or set sft.epochs = 0"
        )
    pairs = []
    for place in rng.permutation(len(lines)).tolist():
        others = rng.choice(len(lines) - 1, examples, replace=False)
        shown = [lines[i + (i >= place)] for i in others.tolist()]
        pairs.append({"prompt": expand_prompt(shown), "chosen": lines[place]})
    return pairs


def tuned_adapter(recipe: Recipe[Any], seeds: Sequence[str], purpose: str) -> Path | None:
    """The adapter that the seeds taught the run's generator; None with sft.epochs = 0.

    Trained once for each purpose (the result, its control), in a folder of its own: a training
    that was interrupted goes on where it was.
    """
    config = recipe.config
    if not config.sft.epochs:
        return None
    trainer = _trainer(recipe)
    recipe.models.generator().rest()
    rng = seeded(config.seed, purpose, "sft")
    trained = trainer.train(
        imitations(seeds, config.expand.seeds_per_prompt, rng),
        start=None,
        work=recipe.folder.path / FOLDER / purpose,
        seed=int(rng.integers(2**31)),
    )
    return trained[-1].adapter


def try_training(recipe: Recipe[Any]) -> None:
    """Raise, before anybody was asked, what `tuned_adapter` would raise for its model, its device,
    its libraries or a server that takes no adapters."""
    if not recipe.config.sft.epochs:
        return
    folder = recipe.folder.path / FOLDER
    folder.mkdir(exist_ok=True)
    prompt = expand_prompt(recipe.models.public.pool[:1])
    try_adapters(_trainer(recipe), recipe.models.generator(), folder, prompt)


def _trainer(recipe: Recipe[Any]) -> PreferenceTrainer:
    from privsyn_flower.text.preference import PreferenceTrainer

    config, options = recipe.config, recipe.config.sft
    return PreferenceTrainer(
        recipe.models.folder("generator"),
        method="sft",
        learning_rate=options.learning_rate,
        epochs=options.epochs,
        batch_size=options.batch_size,
        micro_batch_size=options.micro_batch_size,
        lora_rank=options.lora_rank,
        lora_alpha=options.lora_alpha,
        device=config.models.device,
        processes=config.models.training_processes,
        launch_arguments=config.models.accelerate_arguments,
        progress=recipe.run.progress,
        section="sft",
    )
