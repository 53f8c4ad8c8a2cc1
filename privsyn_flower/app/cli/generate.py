"""`privsyn generate`: more text of what a run released, without anything private."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from privsyn_flower.app.cli.display import Display
from privsyn_flower.common.files import locked
from privsyn_flower.common.progress import Progress
from privsyn_flower.config import ConfigError, RunConfig, load_config, parse_override
from privsyn_flower.privacy.sentence import FILE as STATEMENT
from privsyn_flower.runs import write_jsonl
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.rewriting import rewrite, with_settings
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.synthesis.topic_writing import load_generation_inputs, write

STAGE = "generate"


@dataclass(frozen=True)
class Generated:
    """What was written, and where. short: why it is less than was asked for; "" when it is not.
    claim: of the run, in short; "" for one that never began."""

    path: Path
    texts: int
    short: str
    claim: str


def generate_command(
    run: Path, samples: int, out: Path | None, seed: int, settings: list[str] | None = None
) -> Generated:
    """Write `samples` texts of what a run released, finished or not, by its settings or others.

    out: None: RUN/generated-SEED-SAMPLES.jsonl. settings: "key=value" of keys that touch nothing
    that was asked. Post-processing of what the run released: costs no privacy, and opens neither
    private data nor the ledger. CTCL's goes on where a call like it was killed. Raises ConfigError
    for a run without anything to write of, and a file that is there.
    """
    folder = run.expanduser().absolute()
    config = _config(folder)
    config = with_settings(config, folder, dict(parse_override(text) for text in settings or []))
    target = (out or folder / f"generated-{seed}-{samples}.jsonl").expanduser().absolute()
    lock = target.with_name(f".{target.name}.lock")
    _check_free(target)
    with locked(lock), Display() as display:
        _check_free(target)  # another call may have written it meanwhile
        make = _by_topics if recipe_of(config).keeps_generator else _anew
        try:
            count, short = make(config, folder, target, samples, seed, display.report)
        finally:
            lock.unlink()  # whoever waits for it, or makes another, finds the text
    return Generated(target, count, short, _claim(folder))


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
    """By models.generator, of the seeds, or by what POPri made of it."""
    texts, short = rewrite(config, folder, samples=samples, seed=seed, progress=progress)
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
    path = folder / "config.toml"
    if not path.is_file():
        raise ConfigError(f"{folder} is no run folder: it has no config.toml")
    config = load_config(path)
    recipe = recipe_of(config)
    if not recipe.keeps_generator and not recipe.rewrites:
        raise ConfigError(
            f"{folder} is a run of method = {config.method!r}, which released nothing to write "
            "text of: `privsyn generate` is for pretext, pe, popri and ctcl"
        )
    if pool := config[CtclConfig].resample_pool:
        raise ConfigError(
            f"{folder} drew its text from a pool (ctcl.resample-pool = {pool}): what it did not "
            "draw is in synthetic-pool.jsonl; for more of it start a run with larger numbers"
        )
    return config
