"""Fine-tuning on public text: the learning rate, and the model that private training starts from.

Everything here opens public text only. Server and simulated nodes find the same start: its folder
is named by what it is made of, and made once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from privsyn_flower.config import ConfigError, RunConfig, cache_folder, split_list
from privsyn_flower.data import Federation
from privsyn_flower.evaluation.classification import Classifier, Examples, macro_f1
from privsyn_flower.evaluation.downstream import Downstream, Rows, Tuning, choose_learning_rate
from privsyn_flower.files import build_folder, file_digest
from privsyn_flower.progress import Progress, silent
from privsyn_flower.text.fingerprints import folder_fingerprint

NO_REHEARSAL = (
    "evaluation.learning-rates = {0!r}: one is chosen on {1}public text, and there is none; name "
    "exactly one"
)
RATE_FILE = "learning_rate.json"  # beside a start: how its learning rate was chosen
_MADE = 1  # raise it when a start is made in another way


def tuning_of(config: RunConfig, steps: int = 0) -> Tuning:
    """What the configuration's fine-tunings share, without a rate; steps 0: evaluation.steps."""
    options = config.evaluation
    return Tuning(
        steps or options.steps, options.batch_size, options.sequence_length, 0.0, config.seed
    )


def rehearse(
    config: RunConfig,
    federation: Federation,
    model: Downstream,
    progress: Progress = silent,
    *,
    steps: int = 0,
) -> tuple[float, dict[str, float]]:
    """The learning rate, chosen on public text: adapt to half of the minority's modules, test
    on the other half; without a minority, the pool and the public validation text."""
    rates = [float(rate) for rate in split_list(config.evaluation.learning_rates)]
    train: Rows = []
    validation: Rows = []
    if len(rates) > 1:
        general = set(federation.public_general())
        minority = [group for group in federation.public_groups() if group[0] not in general]
        train = model.encode([text for group in minority[::2] for text in group])
        validation = model.encode([text for group in minority[1::2] for text in group][:512])
        if not train or not validation:
            train = model.encode(federation.public())
            validation = model.encode(federation.public_validation())
        if not train or not validation:
            raise ConfigError(NO_REHEARSAL.format(config.evaluation.learning_rates, ""))
    return choose_learning_rate(model, rates, train, validation, tuning_of(config, steps), progress)


def rehearse_classes(
    config: RunConfig, model: Classifier, public: Examples, progress: Progress = silent
) -> tuple[float, dict[str, float]]:
    """The learning rate of the best macro-F1: half of the labelled public texts to train on, the
    others to test on. A single rate is taken untested. Raises ConfigError without such text."""
    options = config.evaluation
    rates = [float(rate) for rate in split_list(options.learning_rates)]
    if len(rates) == 1:
        return rates[0], {}
    if not rates or len(public) < 2:
        raise ConfigError(NO_REHEARSAL.format(options.learning_rates, "labelled "))
    found: dict[float, float] = {}
    for rate in rates:
        trial = Tuning(
            options.steps, options.batch_size, options.sequence_length, rate, config.seed
        )
        stage = f"learning rate {rate:g} on public text"
        model.fine_tune(public[::2], trial, progress, stage)
        found[rate] = float(macro_f1(model.user_sums({"public": public[1::2]}).sum(axis=0)))
    best = max(found, key=lambda rate: found[rate])
    return best, {f"{rate:g}": round(value, 5) for rate, value in found.items()}


def public_start(
    config: RunConfig, federation: Federation, base: Path, progress: Progress = silent
) -> Path:
    """The folder of `base` fine-tuned on the public pool for `training.public-steps` steps.

    As the benchmark's model (a): same texts, order and choice of the rate. `base` itself for 0
    steps. Found in the cache, or made there; other processes wait for it. Raises ConfigError
    when there is no public text.
    """
    steps = config.training.public_steps
    if steps == 0:
        return base
    tuning = [steps, *vars(tuning_of(config)).values(), config.evaluation.learning_rates]
    # Not the folder's name, which is a digest of private text too.
    content = [_MADE, folder_fingerprint(base), tuning, *_public_digests(federation.folder)]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]
    target = cache_folder(config) / "models" / f"start-{key}"
    if target.is_dir():
        return target
    texts = federation.public()
    if not texts:
        raise ConfigError(
            f"training.public-steps = {steps} and there is no public text (data.public-path): "
            "set it to 0"
        )
    target.parent.mkdir(parents=True, exist_ok=True)

    def fill(folder: Path) -> None:
        model = Downstream(
            base, length=config.evaluation.sequence_length, device=config.models.device
        )
        rate, tried = rehearse(config, federation, model, progress, steps=steps)
        shared = tuning_of(config, steps)
        chosen = Tuning(shared.steps, shared.batch_size, shared.length, rate, shared.seed)
        model.fine_tune(model.encode(texts), chosen, progress, "fine-tuning on public text")
        save_model(model.model, base, folder)
        (folder / RATE_FILE).write_text(json.dumps({"rate": rate, "tried": tried}), "utf-8")

    return build_folder(target, fill)


@functools.lru_cache(maxsize=8)  # a prepared folder never changes
def _public_digests(folder: Path) -> list[str]:
    """Digests of a federation's public text, and of nothing else in its folder."""
    return [file_digest(folder / name) for name in ("public.arrow", "public_validation.arrow")]


def save_model(model: Any, base: Path, folder: Path) -> None:
    """A causal LM as a Hugging Face folder with the tokenizer of `base`, the folder it is made of.

    Files of the tokenizer are copied, not written anew, so that both read text alike.
    """
    for path in sorted(base.iterdir()):
        # Everything small that is no weights: an index would name files that are not there.
        plain = path.suffix in {".json", ".txt", ".model", ".jinja"}
        if plain and not path.name.endswith(".index.json") and path.name != RATE_FILE:
            shutil.copyfile(path, folder / path.name)
    model.save_pretrained(folder, safe_serialization=True)


def export_model(
    base: Path, parameters: Mapping[str, npt.NDArray[np.floating[Any]]], target: Path
) -> Path:
    """`base` with these public parameters on it (`text/models/parameters.py`), as a folder to load.

    All or nothing; an existing `target` is left as it is.
    """
    from privsyn_flower.text.models.lm_metrics import Scorer

    def fill(folder: Path) -> None:
        scorer = Scorer(base, "cpu")
        with scorer.wearing(parameters):
            save_model(scorer.model, base, folder)

    target.parent.mkdir(parents=True, exist_ok=True)
    return build_folder(target, fill)
