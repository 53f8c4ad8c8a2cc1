"""`privsyn generate`: more text from a finished run's generator, without anything private."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from privsyn_flower.cli.display import Display
from privsyn_flower.config import ConfigError, RunConfig, load_config
from privsyn_flower.files import locked
from privsyn_flower.report.summaries import read_summary
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.strategies.synthesis.topic_texts import Written
from privsyn_flower.strategies.synthesis.topic_writing import kept_by, write

STAGE = "generate"


@dataclass(frozen=True)
class Generated:
    """What was written, and where. claim: of the run, in short; "" for one that never ended."""

    path: Path
    written: Written
    claim: str


def generate_command(run: Path, samples: int, out: Path | None, seed: int) -> Generated:
    """Write `samples` texts of a finished CTCL run; goes on where a call like it was killed.

    out: None: RUN/generated-SEED-SAMPLES.jsonl. Post-processing of what the run released: costs no
    privacy, and opens neither private data nor the ledger. Raises ConfigError for another method's
    run, one without a result, and a file that is there.
    """
    folder = run.expanduser().absolute()
    config = _config(folder)
    target = (out or folder / f"generated-{seed}-{samples}.jsonl").expanduser().absolute()
    kept = kept_by(folder, config.ctcl)
    lock = target.with_name(f".{target.name}.lock")
    _check_free(target)
    with locked(lock), Display() as display:
        _check_free(target)  # another call may have written it meanwhile

        def progress(stage: str, done: float, total: float, note: str = "") -> None:
            event = {"t": time.time(), "stage": stage, "done": done, "total": total, "note": note}
            display.show(event)

        written = write(
            config.ctcl,
            config.expand,
            config.models.device,
            kept,
            target,
            samples=samples,
            seed=seed,
            purpose=STAGE,
            progress=progress,
            stage=STAGE,
        )
        lock.unlink()  # whoever waits for it, or makes another, finds the text
    return Generated(target, written, _claim(folder))


def _check_free(target: Path) -> None:
    if target.exists():
        raise ConfigError(
            f"{target} is there already: name another file (--out), or other text (--seed)"
        )


def _claim(folder: Path) -> str:
    """The short statement of the run's summary."""
    if not (folder / "summary.json").is_file():
        return ""
    return str(read_summary(folder).get("privacy_short", ""))


def _config(folder: Path) -> RunConfig:
    """The run's own configuration. Raises ConfigError for a folder that is none of CTCL's."""
    path = folder / "config.toml"
    if not path.is_file():
        raise ConfigError(f"{folder} is no run folder: it has no config.toml")
    config = load_config(path)
    if not recipe_of(config).keeps_generator:
        raise ConfigError(
            f"{folder} is a run of method = {config.method!r}, which keeps no generator of text: "
            "`privsyn generate` goes on with runs of method = 'ctcl'"
        )
    if pool := config.ctcl.resample_pool:
        raise ConfigError(
            f"{folder} drew its text from a pool (ctcl.resample-pool = {pool}): what it did not "
            "draw is in synthetic-pool.jsonl; for more of it start a run with larger numbers"
        )
    return config
