"""`privsyn generate`: more text of what a run released, without anything private.

Other settings open no private text and send no query either.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from privsyn_flower.app.cli.display import Display
from privsyn_flower.app.cli.errors import stored_config
from privsyn_flower.app.public.source import carried, statement_of_file
from privsyn_flower.common.files import locked, write_atomic
from privsyn_flower.common.progress import Progress
from privsyn_flower.config import (
    ConfigError,
    RunConfig,
    absolute_paths,
    cache_folder,
    parse_override,
)
from privsyn_flower.config.section import Scalar
from privsyn_flower.data.federation import prepared_key
from privsyn_flower.privacy.sentence import FILE as STATEMENT
from privsyn_flower.runs import RunFolder, write_jsonl
from privsyn_flower.server_apps.changes import changeable, entry_of
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.methods.synthesis import Writing, state_of
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.public_text import (
    PublicText,
    carried_by,
    is_deployment,
    public_text,
)
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.synthesis.topic_texts import load_generation_inputs, write
from privsyn_flower.text.prompts import TooFewTextsError
from privsyn_flower.text.tiny.assets import embedded

STAGE = "generate"  # of the progress, and the purpose of the randomness
# What text is written by: of the run's own model/, and of models.generator.
TOPIC_KEYS = ("expand", "models.device")
KEYS = (
    *TOPIC_KEYS, "generation", "sft", "models.generator", "models.training-processes",
    "models.accelerate-arguments",
)  # fmt: skip


def generate_command(
    run: Path, samples: int, out: Path | None, seed: int, settings: list[str] | None
) -> tuple[Path, list[str]]:
    """Write `samples` texts of what a run released, finished or not, by its settings or others; the
    file, and what to tell of it: why it has fewer, and what the run claims.

    out: None: RUN/generated-SEED-SAMPLES.jsonl; outside of RUN the run's statement is put beside it
    (`statement_of_file`). settings: "key=value" of keys that touch nothing
    that was asked. Post-processing of what the run released: costs no privacy, and opens neither
    private data nor the ledger. CTCL's and resource-adaptive's go on where a call like it was
    killed. Raises ConfigError for a run without anything to write of, and a file that is there.
    """
    folder = run.expanduser().absolute()
    given = dict(parse_override(text) for text in settings or [])
    config = _with_settings(_config(folder), folder, given)
    target = (out or folder / f"generated-{seed}-{samples}.jsonl").expanduser().absolute()
    lock = target.with_name(f".{target.name}.lock")
    _check_free(target)
    with locked(lock), Display() as display:
        _check_free(target)  # another call may have written it meanwhile
        _write_statement(target, folder, config)  # before the text: that is never without it
        make = _by_topics if recipe_of(config).keeps_generator else _anew
        try:
            count, short = make(config, folder, target, samples, seed, display.report)
        finally:
            lock.unlink()  # whoever waits for it, or makes another, finds the text
    notes = [f"{count} texts: {short}"] if short else []
    if claim := _claim(folder):
        notes.append(f"what holds for the run holds for them: {claim}")
    if (own := statement_of_file(target)).is_file():
        notes.append(f"{own} has the whole statement of what they carry")
    return target, notes


def _write_statement(target: Path, folder: Path, config: RunConfig) -> None:
    """What the run in `folder` claims, and what a model or public text carries that it writes with
    now, beside `target` where nothing there says so."""
    claim, more = carried(folder), carried_by(config)
    if more not in claim:
        claim = f"{claim}\n\n{more}".strip()
    if claim and carried(target) != claim:
        write_atomic(statement_of_file(target), f"{claim}\n".encode())


def _by_topics(
    config: RunConfig, folder: Path, target: Path, samples: int, seed: int, progress: Progress
) -> tuple[int, str]:
    """By the generator in the run's model/ and its shares of topics."""
    written = write(
        config[CtclConfig],
        config.expand,
        config.models.device,
        load_generation_inputs(folder, config[CtclConfig]),
        target,
        samples=samples,
        seed=seed,
        purpose=STAGE,
        progress=progress,
        stage=STAGE,
    )
    degenerate = f"{written.dropped} texts were degenerate and are left out"
    return written.texts, degenerate if written.dropped else ""


def _anew(
    config: RunConfig, folder: Path, target: Path, samples: int, seed: int, progress: Progress
) -> tuple[int, str]:
    """By models.generator, of the seeds, or by what POPri made of it. Raises ConfigError for a
    method that has nothing to write of, and where it needs public text that is here no more."""
    state_of(RunFolder(folder))  # there is something
    flat = {"expand.samples": samples, "expand.include-seeds": False, "seed": seed}
    config, short = RunConfig.from_flat({**config.flat(), **flat}), ""
    with _recipe(config, progress) as recipe:
        try:
            texts = recipe.rewritten(RunFolder(folder), STAGE)
        except TooFewTextsError as error:
            texts, short = error.texts, str(error)
    if not texts:
        raise RuntimeError(short)
    write_jsonl(target, (asdict(one) if one.label else {"text": one.text} for one in texts))
    return len(texts), short


def _check_free(target: Path) -> None:
    if target.exists():
        raise ConfigError(
            f"{target} is there already: name another file (--out), or other text (--seed)"
        )


def _claim(folder: Path) -> str:
    """The run's short statement, which it has from its start: the first paragraph under a title,
    whose rest is named by the file."""
    path = folder / STATEMENT
    text = path.read_text("utf-8") if path.is_file() else ""
    found = next((part.strip() for part in text.split("\n\n") if not part.startswith("#")), "")
    return re.sub(r"(see)? below\.$", lambda end: f"{end[1] or ' in'} {path}.", found)


def _config(folder: Path) -> RunConfig:
    """The run's own configuration. Raises ConfigError for a folder without anything to write of."""
    config = stored_config(folder)
    recipe = recipe_of(config)
    if not recipe.keeps_generator and not recipe.rewrites:
        raise ConfigError(
            f"{folder} is a run of method = {config.method!r}, which released nothing to write "
            "text of: `privsyn generate` is for pretext, pe, popri, dp-rft, ctcl and "
            "resource-adaptive"
        )
    if pool := config[CtclConfig].resample_pool:
        raise ConfigError(
            f"{folder} drew its text from a pool (ctcl.resample-pool = {pool}): what it did not "
            "draw is in synthetic-pool.jsonl; for more of it start a run with larger numbers"
        )
    return config


def _with_settings(config: RunConfig, folder: Path, settings: Mapping[str, Scalar]) -> RunConfig:
    """A run's configuration with others for its text. Raises ConfigError for keys by which it was
    asked."""
    recipe = recipe_of(config)
    held = recipe.asks_with(config, released=True)
    used = TOPIC_KEYS if recipe.keeps_generator else KEYS
    for key in settings:
        if not changeable(key) or entry_of(key, held):
            raise ConfigError(
                f"--set {key}: the run's queries depend on it; only keys applied after the "
                "releases may differ (generation, expand, models.generator and others, "
                "docs/runs.md)"
            )
        if not entry_of(key, used) or key in ("expand.samples", "expand.include-seeds"):
            raise ConfigError(
                f"--set {key}: `privsyn generate` of a run of method = {config.method!r} does not "
                f"go by it, but by {', '.join(used)}, and writes --samples texts without seeds"
            )
    return absolute_paths(RunConfig.from_flat({**config.flat(), **settings}), folder)


@contextmanager
def _recipe(config: RunConfig, progress: Progress) -> Iterator[Writing[Any]]:
    """The method over a folder that is gone afterwards: nothing of the run is changed."""
    public = _public(config, progress)
    with tempfile.TemporaryDirectory(prefix="privsyn-") as name:
        folder = RunFolder(Path(name))
        retrieves = recipe_of(config).retrieves(config)
        models = Models(config, public, folder, progress, retrieves=retrieves)
        run = SimpleNamespace(config=config, folder=folder, progress=progress)
        try:
            yield cast(Any, recipe_of(config))(run, models)
        finally:
            models.close()


def _public(config: RunConfig, progress: Progress) -> PublicText:
    """Public text, where the method or a tiny generator needs any: a simulation's only from its
    cache, since it would be made anew beside the users' text."""
    tiny = embedded("generator", config.models.generator) is not None
    if not tiny and not config.uses("popri"):
        return PublicText([], None)
    if not is_deployment(config):
        folder = cache_folder(config) / "data" / prepared_key(config.data)[:24]
        if not folder.is_dir():
            raise ConfigError(
                f"{folder} is gone, where the run's public text was, and to make it again would "
                "read the users' text: `privsyn run --resume` does that, or name a "
                "models.generator that is not tiny"
            )
    return public_text(config, progress)
