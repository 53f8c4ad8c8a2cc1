"""Embedded models: language models of one or seven million parameters that need no model hub.

Four kinds, as ordinary Hugging Face folders: `downstream`, a causal LM that has read the general
public text; `generator`, the same model trained on over all public text in the format of the
expand prompt; `conditional`, the same over pairs of a condition and a text; `infiller`, a masked
LM over all public text. A model comes from the package's
assets when they fit, else from the cache, else it is trained on the spot.

They are small enough for two cores and good enough to show an effect. The tiny ones write no good
prose; the small ones (all but downstream) write sentences, and are never trained on the spot.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import build_folder
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.config import ConfigError, RunConfig, cache_folder, split_list
from privsyn_flower.text.models.gguf import PackagedModel
from privsyn_flower.text.protocols import PublicText
from privsyn_flower.text.tiny.assets import (
    RECIPES,
    Groups,
    TuningRecipe,
    content_key,
    embedded,
    find_asset,
    recipe,
    tuning_recipe,
)

logger = logging.getLogger("privsyn_flower")

TUNING_SEED = 0

# The kind that comes before one: its tokenizer, and for the causal ones its weights, go over.
_AFTER = {kind: None if kind == "downstream" else "downstream" for kind in RECIPES}


def ensure_model(
    kind: str, federation: PublicText, config: RunConfig, progress: Progress = silent
) -> Path:
    """The folder of the embedded model `kind` for this run: shipped, cached, or made now.

    kind: downstream, generator, conditional or infiller. Raises ValueError for another kind or for
    too little public text to train on, AssetError for a damaged asset, ConfigError for a small
    model that has read what is private in the run.
    """
    if kind == "downstream" and config.models.downstream == "lstm":
        from privsyn_flower.text.models.lstm import ensure_lstm

        return ensure_lstm(federation, config, progress)
    root = Path(config.assets) if config.assets else None
    recipe(kind, config.models.train_steps)  # of a kind that there is
    name = str(getattr(config.models, kind))
    place = embedded(kind, name) or kind
    shipped = find_asset(place, root)
    if shipped is not None and not (known := shipped.knows(private_packages(config))):
        if shipped.is_of(package_sides(config)):
            return shipped.folder
        made_by = tuning_recipe(kind, config.models.train_steps)
        return tune(shipped.folder, shipped.digest, made_by, federation, config, progress)
    if place != kind:
        read = f"has read {', '.join(known)}, private in this run" if shipped else "is not there"
        raise ConfigError(
            f"models.{kind} = {name!r}: the shipped {place} {read}; use 'tiny', which is then "
            "trained by the run, or name a folder"
        )
    if shipped is not None:
        logger.info("the shipped %s has read %s, private in this run", kind, ", ".join(known))
    # Only docstrings know a minority; elsewhere the general text is all of it.
    corpora: dict[str, Groups] = {"downstream": [[text] for text in federation.public_general()]}
    corpora |= dict.fromkeys(RECIPES.keys() - corpora, federation.public_groups())
    cache, steps = cache_folder(config) / "models", config.models.train_steps
    seconds = config.models.train_seconds
    return train(corpora, kind, cache, steps=steps, budget_seconds=seconds, progress=progress)


def teach_conditions(
    model: PackagedModel,
    folder: Path,
    federation: PublicText,
    config: RunConfig,
    progress: Progress = silent,
) -> Path:
    """The folder of a packaged model that was imported into `folder`, tuned on conditions and texts
    of the run's public text, because nobody has taught it to write from keywords. `train_steps` is
    of tiny models; the seconds are of this one, too."""
    made_by = tuning_recipe("conditional", packaged=True)
    return tune(folder, model.identity, made_by, federation, config, progress)


def taught_folder(
    model: PackagedModel, folder: Path, federation: PublicText, config: RunConfig
) -> Path:
    """Where `teach_conditions` leaves the model, whether it is there or not."""
    made_by = tuning_recipe("conditional", packaged=True)
    return _tuned(folder, model.identity, made_by, federation, config)[1]


def tune(
    start: Path,
    digest: str,
    made_by: TuningRecipe,
    federation: PublicText,
    config: RunConfig,
    progress: Progress = silent,
) -> Path:
    """The folder of a model tuned on the run's public text, found in the cache or made.

    start: the model's folder. digest: its identity. The new folder's name is the hash of that, the
    texts, the recipe and the seed. Without public text it is `start` itself.
    """
    from privsyn_flower.text.tiny.tuning import tune_model

    groups, target = _tuned(start, digest, made_by, federation, config)
    if target == start:
        logger.info("no public text: the given %s is used as it is", made_by.kind)
        return start
    seconds, device = config.models.train_seconds, config.models.device

    def fill(folder: Path) -> None:
        tune_model(
            groups, start, folder, made_by,
            seed=TUNING_SEED, budget_seconds=seconds, device=device, progress=progress,
        )  # fmt: skip

    return build_folder(target, fill)


def _tuned(
    start: Path, digest: str, made_by: TuningRecipe, federation: PublicText, config: RunConfig
) -> tuple[Groups, Path]:
    """What `tune` reads, and where it leaves the model."""
    groups = federation.public_groups()
    if made_by.kind == "downstream":  # a minority is for the benchmark to adapt to
        general = set(federation.public_general())
        groups = [own for group in groups if (own := [text for text in group if text in general])]
    key = content_key(groups, [made_by], TUNING_SEED, digest)
    made = cache_folder(config) / "models" / f"{made_by.kind}-tuned-{key[:24]}"
    return groups, made if groups else start


def private_packages(config: RunConfig) -> list[str]:
    """Whose text is private; none are known of other sources than docstrings."""
    return split_list(config.data.private_packages) if config.data.source == "docstrings" else []


def package_sides(config: RunConfig) -> dict[str, Sequence[str]]:
    """The run's public packages: general and minority; both empty for other sources."""
    if config.data.source != "docstrings":
        return {"general": [], "minority": []}
    return {
        "general": split_list(config.data.public_packages),
        "minority": split_list(config.data.minority_packages),
    }


def train(
    corpora: Mapping[str, Groups],
    kind: str,
    cache: Path,
    *,
    steps: int = 0,
    seed: int = 0,
    budget_seconds: float = float("inf"),
    progress: Progress = silent,
) -> Path:
    """The folder of a model trained on `corpora[kind]`, found in `cache` or made there.

    corpora: groups of public texts (a group: texts of one module or author) for `kind` and for
    the kinds it builds upon. The folder's name is the hash of texts, recipes and seed; it
    appears at once, complete, and two processes do not make it twice.
    """
    lineage = [kind]
    while (before := _AFTER[lineage[-1]]) is not None:
        lineage.append(before)
    made_by = [recipe(name, steps) for name in lineage]
    groups: list[Any] = [group for name in lineage for group in corpora[name]]
    target = cache / f"{kind}-{content_key(groups, made_by, seed)[:24]}"
    if target.is_dir():
        return target
    limits: dict[str, Any] = {"seed": seed, "budget_seconds": budget_seconds, "progress": progress}
    init = train(corpora, lineage[1], cache, steps=steps, **limits) if lineage[1:] else None
    logger.info("training the tiny %s model (once; at most %g s)", kind, budget_seconds)
    cache.mkdir(parents=True, exist_ok=True)

    def fill(folder: Path) -> None:
        from privsyn_flower.text.tiny.training import train_model

        train_model(corpora[kind], made_by[0], folder, init=init, **limits)

    return build_folder(target, fill)
