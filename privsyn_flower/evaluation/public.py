"""Fine-tuning on public text: the learning rate, and the model that private training starts from.

Everything here opens public text only. Server and simulated nodes find the same start: its folder
is named by what it is made of, and made once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from privsyn_flower.common.files import build_folder, file_digest
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.config import ConfigError, RunConfig, cache_folder, split_list
from privsyn_flower.data import Federation
from privsyn_flower.evaluation.classification import (
    Classifier,
    Examples,
    macro_f1,
)
from privsyn_flower.evaluation.downstream import (
    Adapter,
    Downstream,
    choose_learning_rate,
    trials,
)
from privsyn_flower.evaluation.process_pool import sums_after
from privsyn_flower.evaluation.rows import Rows, Work
from privsyn_flower.evaluation.tuning import Plateau, Tuning
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.lm_metrics import base_folder
from privsyn_flower.text.models.pretrained import classes_in

logger = logging.getLogger("privsyn_flower")

NO_REHEARSAL = (
    "evaluation.learning-rates = {0!r}: one is chosen on {1}public text, and there is none; name "
    "exactly one"
)
STAGE = "fine-tuning on public text"
RATE_FILE = "learning_rate.json"  # beside a start: how its learning rate was chosen
_MADE = 2  # raise it when a start is made in another way


def tuning_of(config: RunConfig, *, public: bool = False) -> Tuning:
    """What the configuration's fine-tunings share, without a rate.

    public: of the stage on public text before them: `training.public-steps` for a training,
    `evaluation.public-steps` or -epochs for methods that write text, and for all methods
    the most steps of `evaluation.start = "converged"`.
    """
    options = config.evaluation
    own = Tuning(
        steps=options.steps,
        batch_size=options.batch_size,
        length=options.sequence_length,
        learning_rate=0.0,
        seed=config.seed,
        epochs=options.epochs,
        texts=options.batch_of == "texts",
        micro_batch=options.micro_batch_size,
        schedule=options.schedule,
        warm_up=options.warm_up,
        weight_decay=options.weight_decay,
        clip=options.gradient_clip,
        precision=options.precision,
    )
    if not public:
        return own
    if options.start == "converged":
        # No schedule goes down when nobody knows the end. The rate rises as in the later steps.
        rise = min(1.0, options.warm_up * options.steps / max(1, options.public_steps))
        own = replace(own, schedule="constant", warm_up=rise)
    elif config.trains:
        return replace(own, steps=config.training.public_steps, epochs=0)
    return replace(
        own,
        steps=options.public_steps,
        epochs=options.public_epochs,
        batch_size=options.public_batch_size or options.batch_size,
    )


def downstream_of(config: RunConfig, folder: str | os.PathLike[str]) -> Downstream:
    """The causal LM in `folder` as the configuration has it tuned and measured."""
    options = config.evaluation
    rank = options.adapter_rank
    return Downstream(
        folder,
        length=options.sequence_length,
        device=config.models.device,
        special_tokens=options.special_tokens,
        adapter=Adapter(rank, options.adapter_alpha) if rank else None,
        base_dtype=options.precision,
        processes=options.processes,
    )


def rehearse(
    config: RunConfig,
    federation: Federation,
    model: Downstream,
    progress: Progress = silent,
    *,
    tuning: Tuning | None = None,
) -> tuple[float, dict[str, float]]:
    """The learning rate, chosen on public text: adapt to half of the minority's modules, test
    on the other half; without a minority, the pool and the public validation text.

    Found in the cache, or chosen as `public_start` makes its model: runs that differ in what they
    ask of users share it. A single rate is taken untested. Raises ConfigError without public text.
    """
    rates = [float(rate) for rate in split_list(config.evaluation.learning_rates)]
    tuning = tuning or tuning_of(config)
    if len(rates) == 1:
        return rates[0], {}

    def fill(folder: Path, work: Work) -> None:
        rows = _rehearsal_rows(config, federation, model)
        rate, tried = choose_learning_rate(model, rates, *rows, tuning, progress, work=work)
        (folder / RATE_FILE).write_text(json.dumps({"rate": rate, "tried": tried}), "utf-8")

    spec = model.load_spec()
    folder = base_folder(spec.pop("model"))  # a name of the hub may become another model
    content = [folder_fingerprint(folder), spec, vars(tuning), rates]
    told = start_figures(_made_once(config, "rate", federation, content, fill))
    return told["rate"], told["tried"]


def _rehearsal_rows(
    config: RunConfig, federation: Federation, model: Downstream
) -> tuple[Rows, Rows]:
    """Public rows to train on, and others to test on."""
    general = set(federation.public_general())
    minority = [group for group in federation.public_groups() if group[0] not in general]
    train = model.encode([text for group in minority[::2] for text in group])
    validation = model.encode([text for group in minority[1::2] for text in group][:512])
    if not train or not validation:
        train = model.encode(federation.public())
        validation = model.encode(federation.public_validation())
    if not train or not validation:
        raise ConfigError(NO_REHEARSAL.format(config.evaluation.learning_rates, ""))
    return train, validation


def rehearse_classes(
    config: RunConfig,
    model: Classifier,
    public: Examples,
    progress: Progress = silent,
    work: Work | None = None,
) -> tuple[float, dict[str, float]]:
    """The learning rate of the best macro-F1: half of the labelled public texts to train on, the
    others to test on. A single rate is taken untested. Raises ConfigError without
    such text."""
    options = config.evaluation
    rates = [float(rate) for rate in split_list(options.learning_rates)]
    if len(rates) == 1:
        return rates[0], {}
    if not rates or len(public) < 2:
        raise ConfigError(NO_REHEARSAL.format(options.learning_rates, "labelled "))

    wanted, users = trials(rates, public[::2], tuning_of(config)), {"public": public[1::2]}
    sums = sums_after(model, wanted, users, progress=progress, work=work)
    found = {rate: float(macro_f1(sums[f"rate {rate}"].sum(axis=0))) for rate in rates}
    best = max(found, key=lambda rate: found[rate])
    return best, {f"{rate:g}": round(value, 5) for rate, value in found.items()}


def public_start(
    config: RunConfig, federation: Federation, base: Path, progress: Progress = silent
) -> Path:
    """The folder of `base` fine-tuned on the public pool, as `tuning_of(public=True)` says.

    As the benchmark's model (a): same texts, order and choice of the rate; with
    `evaluation.start = "converged"` as long as the loss on public validation text falls, at a rate
    chosen for the later steps. `base` itself for 0 steps; of a classifier, `classifier_start`.
    Found in the cache, or made there; other processes wait for it, and one that was killed goes on
    from its last checkpoint. Raises ConfigError when there is no public text.
    """
    if config.training.classifies:
        return classifier_start(config, base)
    shared = tuning_of(config, public=True)
    if not shared.steps and not shared.epochs:
        return base
    options = config.evaluation
    tuning: list[Any] = [vars(shared), options.learning_rates, options.special_tokens]
    converges = options.start == "converged"
    rehearsed = tuning_of(config) if converges else shared
    if converges:
        own = vars(rehearsed) if len(split_list(options.learning_rates)) > 1 else {}
        tuning += [options.public_patience, own]

    def fill(folder: Path, work: Work) -> None:
        texts = federation.public()
        if not texts:
            by_steps = config.trains and not converges
            key = "training.public-steps" if by_steps else "evaluation.start"
            raise ConfigError(
                f"{key} = {config.training.public_steps if by_steps else options.start!r} and "
                "there is no public text (data.public-path): set it to "
                + ("0" if by_steps else "'base'")
            )
        model = downstream_of(config, base)
        rate, tried = rehearse(config, federation, model, progress, tuning=rehearsed)
        chosen = replace(shared, learning_rate=rate)
        told: dict[str, Any] = {"rate": rate, "tried": tried}
        if converges:
            told |= _converge(config, federation, model, chosen, progress, work)
        else:
            given = model.encode(texts), chosen, progress, STAGE
            model.fine_tune(*given, work=work.folder("training"))
        save_model(model.model, base, folder)
        (folder / RATE_FILE).write_text(json.dumps(told), "utf-8")

    return _made_once(config, "start", federation, [folder_fingerprint(base), tuning], fill)


def _made_once(
    config: RunConfig,
    kind: str,
    federation: Federation,
    content: Sequence[Any],
    fill: Callable[[Path, Work], None],
) -> Path:
    """The folder of the cache that is made of `content` and the public text, by `fill` if it is not
    there: other processes wait, and one that was killed goes on from what its Work has."""
    # Not the federation's folder, whose name is a digest of private text too.
    made_of = [_MADE, *content, *_public_digests(federation.folder)]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:24]
    target = cache_folder(config) / "models" / f"{kind}-{key}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Work(target.with_name(f"{target.name}.work"))
        build_folder(target, lambda folder: fill(folder, work))
        work.end()
    return target


def classifier_start(config: RunConfig, base: Path) -> Path:
    """The folder of `base` with a head for `training.labels`, the same wherever it is made; `base`
    itself where that is such a classifier."""
    labels = tuple(config.classes)
    if classes_in(base) == labels:
        return base
    content = json.dumps([folder_fingerprint(base), labels, config.seed])
    key = hashlib.sha256(content.encode()).hexdigest()[:24]
    target = cache_folder(config) / "models" / f"classifier-{key}"
    target.parent.mkdir(parents=True, exist_ok=True)
    return build_folder(target, lambda folder: save_classifier(base, labels, folder, config.seed))


def save_classifier(base: Path, labels: Sequence[str], folder: Path, seed: int = 0) -> None:
    """A language model's folder with a new head for PUBLIC `labels`, written into `folder`.

    What nodes of a deployment have as their `downstream`. Raises ModelUnavailableError, ValueError
    for fewer than two labels or a repeated one.
    """
    model = Classifier(base, labels, length=1, seed=seed).model
    model.config.id2label = dict(enumerate(labels))
    model.config.label2id = {name: number for number, name in enumerate(labels)}
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, base, folder)


def _converge(
    config: RunConfig,
    federation: Federation,
    model: Downstream,
    tuning: Tuning,
    progress: Progress,
    work: Work,
) -> dict[str, Any]:
    """Fine-tune `model` on public text until its loss on public validation text stops falling.

    Returns the figures of `start_figures`. Raises ConfigError without such text.
    """
    options, validation = config.evaluation, model.encode(federation.public_validation())
    if not validation:
        raise ConfigError(
            "evaluation.start = 'converged': no public validation text has a token to predict; "
            "raise data.public-validation"
        )
    plateau = Plateau.of(options.public_patience)
    given = model.encode(federation.public()), tuning, progress, STAGE
    checkpoints = work.folder("training")
    model.fine_tune(*given, work=checkpoints, choice=validation, plateau=plateau)
    last = max(plateau.losses)
    found = plateau.figures(last if plateau.reached(last) else tuning.steps)
    if not found["converged"]:
        logger.warning(
            "the loss on public validation text was still falling after evaluation.public-steps = "
            "%d: the start is not converged; raise it",
            options.public_steps,
        )
    return found


def start_figures(folder: Path) -> dict[str, Any]:
    """How a start in the cache was made: its rate, the rates tried, and for a converged one the
    steps and losses of `Plateau.figures`."""
    found: dict[str, Any] = json.loads((folder / RATE_FILE).read_text("utf-8"))
    return found


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

    All or nothing, with the modes of the umask; an existing `target` is left as it is.
    """
    from privsyn_flower.text.models.lm_metrics import Scorer

    def fill(folder: Path) -> None:
        scorer = Scorer(base, "cpu")
        with scorer.with_parameters(parameters):
            save_model(scorer.model, base, folder)

    target.parent.mkdir(parents=True, exist_ok=True)
    return build_folder(target, fill, result=True)
