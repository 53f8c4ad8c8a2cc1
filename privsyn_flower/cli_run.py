"""`privsyn run`: prepare paths, start Flower, draw progress, tell the truth at the end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from privsyn_flower.config import ConfigError, RunConfig, cache_folder
from privsyn_flower.config_file import load_config, parse_override, to_toml
from privsyn_flower.data import DataError, prepare
from privsyn_flower.display import Display, result_table
from privsyn_flower.launch import FlowerError, LocalFlower
from privsyn_flower.local_federation import FederationRun, LocalFederation, find_run
from privsyn_flower.progress import read_events
from privsyn_flower.runs import RunLocked, lock_holder, write_atomic

STATUS_EVERY = 20.0  # seconds between looks at Flower's own status, each a process start
GRACE = 5.0  # seconds a ServerApp that let go of its folder has to leave a result


class RunFailed(RuntimeError):
    """The ServerApp failed; the text is its own error."""


def run_command(
    config: Path | None,
    settings: list[str],
    resume: Path | None,
    federation: Path | None = None,
) -> Path:
    """Run (or resume, or attach to) one run; returns its folder.

    federation: the folder of a running federation; None simulates one for this run.
    """
    there = None if federation is None else LocalFederation(federation)
    if resume is not None:
        if config is not None or settings:
            raise ConfigError("--resume takes the run's own config.toml: drop CONFIG and --set")
        return _resume(resume.expanduser().absolute(), there)
    overrides = dict(parse_override(text) for text in settings)
    loaded = load_config(config or default_config(), overrides)
    folder = Path(loaded.run_folder or _fresh_folder(loaded)).expanduser().absolute()
    if (folder / "config.toml").exists():
        raise RunFailed(
            f"run folder {folder} already holds a run: continue it with "
            f"`privsyn run --resume {folder}` or choose another run-folder"
        )
    _check_place(loaded, there)
    final = absolute_paths(loaded, folder)
    if there is None:
        _prepare(final)
    write_atomic(folder / "config.toml", to_toml(final, comments=True).encode())
    return _start(folder, final, there)


def _check_place(config: RunConfig, federation: LocalFederation | None) -> None:
    """A federation's users are on its nodes; a simulation's are named here."""
    deployed = config.data.source == "files" and not config.data.path
    if federation is not None and not deployed:
        raise ConfigError(
            f"data.source = {config.data.source!r}, data.path = {config.data.path!r}: the users of "
            "a federation are on its nodes; set data.source = 'files', data.path = '' and "
            "data.public-path (dp-fedavg and dp-ftrl need none)"
        )
    if federation is None and deployed:
        raise ConfigError(
            "data.path is empty, so the users are on real nodes: name their --federation, or "
            "a file of users in data.path to simulate"
        )


def default_config() -> Path | None:
    """configs/demo.toml beside the package (a clone); None: the built-in defaults."""
    demo = Path(__file__).resolve().parent.parent / "configs" / "demo.toml"
    return demo if demo.exists() else None


def _fresh_folder(config: RunConfig) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{config.method}-eps{config.epsilon:g}-{stamp}"


def absolute_paths(config: RunConfig, folder: Path) -> RunConfig:
    """Every path absolute: Flower's processes have another working directory."""

    def absolute(path: str) -> str:
        return str(Path(path).expanduser().absolute()) if path else ""

    def model(name: str) -> str:
        return absolute(name) if name and Path(name).expanduser().is_dir() else name

    def place(path: str) -> str:
        return path if path.startswith("hub:") else absolute(path)

    data = config.data.model_copy(
        update={"path": place(config.data.path), "public_path": place(config.data.public_path)}
    )
    names = ("embedder", "infiller", "generator", "downstream")
    models = config.models.model_copy(
        update={name: model(getattr(config.models, name)) for name in names}
    )
    generation = config.generation.model_copy(
        update={"vllm_python": absolute(config.generation.vllm_python)}
    )
    return config.model_copy(
        update={
            "run_folder": str(folder),
            "generation": generation,
            "cache": absolute(config.cache or "~/.cache/privsyn-flower"),
            "assets": absolute(config.assets),
            "ledger": absolute(config.ledger),
            "data": data,
            "models": models,
        }
    )


def _resume(folder: Path, federation: LocalFederation | None) -> Path:
    path = folder / "config.toml"
    if not path.exists():
        raise ConfigError(f"{folder} holds no run: config.toml is missing")
    config = load_config(path)
    _check_place(config, federation)
    flower = find_run(folder)
    if (folder / "summary.json").exists() and lock_holder(folder) is None:
        if flower is not None:  # the command that started it was killed
            flower.close()
        _finish(folder)
        return folder
    if lock_holder(folder) is not None:
        if flower is None:
            raise RunLocked(
                f"run folder {folder} is held by a process whose SuperLink does not answer; "
                f"end the process named in {folder / '.lock'} first"
            )
        print(f"attached to the run in {folder}", file=sys.stderr)
        with _stoppable():
            return _watch(folder, flower)
    if flower is not None:
        flower.close()
    if federation is None:
        _prepare(config)
    return _start(folder, config, federation)


def _start(folder: Path, config: RunConfig, federation: LocalFederation | None) -> Path:
    (folder / "error.txt").unlink(missing_ok=True)
    flower = LocalFlower(folder) if federation is None else FederationRun(folder, federation)
    with _stoppable():
        try:
            flower.start()
            flower.submit(config)
        except BaseException:
            flower.close()
            raise
        return _watch(folder, flower)


def _prepare(config: RunConfig) -> None:
    """Read a simulation's files here, where what they lack is told to their owner alone: how many
    private rows were skipped is for this terminal, not for the run folder."""
    if config.data.source == "docstrings":
        return

    def tell(line: str) -> None:
        print(line, file=sys.stderr)

    try:
        prepare(config.data, cache_folder(config), tell, tell)
    except (DataError, OSError) as error:
        raise RunFailed(str(error)) from None


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _watch(folder: Path, flower: LocalFlower) -> Path:
    """Draw progress until the run ends; stop it on Ctrl-C; raise RunFailed with its error."""
    offset, checked, seen_alive, gone = 0, time.monotonic(), False, 0.0
    try:
        with Display() as display:
            while True:
                events, offset = read_events(folder / "progress.jsonl", offset)
                for event in events:
                    display.show(event)
                ended = (folder / "summary.json").exists() or (folder / "error.txt").exists()
                # A killed ServerApp lets go of the folder long before Flower misses it.
                alive = lock_holder(folder) is not None
                seen_alive = seen_alive or alive
                gone = 0.0 if alive or not seen_alive else gone or time.monotonic()
                if ended or (gone and time.monotonic() - gone > GRACE):
                    break
                # Asking costs two seconds of a core; a ServerApp that holds the folder is alive.
                if not alive and time.monotonic() - checked > STATUS_EVERY:
                    checked = time.monotonic()
                    if flower.status().startswith("finished"):
                        break
                time.sleep(0.2)
        status = "failed"
        # The ServerApp's own error says enough. Flower's word costs a process start or two, which
        # on a busy machine takes minutes.
        if not (folder / "error.txt").exists():
            status = _final_status(flower, 60.0 if (folder / "summary.json").exists() else GRACE)
        if not (folder / "summary.json").exists() or status != "finished:completed":
            raise RunFailed(_error(folder, flower, status))
    except KeyboardInterrupt:
        print("stopping the Flower run ...", file=sys.stderr)
        try:
            flower.stop()
        except FlowerError as error:
            print(error, file=sys.stderr)
        print(f"continue it with: privsyn run --resume {folder}", file=sys.stderr)
        raise
    finally:
        flower.close()
    _finish(folder)
    return folder


def _final_status(flower: LocalFlower, wait: float) -> str:
    """Flower's final word, which comes a little after the ServerApp's last file."""
    deadline = time.monotonic() + wait
    while True:
        status = flower.status()
        if status.startswith("finished") or time.monotonic() > deadline:
            return status
        time.sleep(1.0)


def _error(folder: Path, flower: LocalFlower, status: str) -> str:
    path = folder / "error.txt"
    if path.exists():
        return path.read_text(encoding="utf-8").strip()
    try:
        log = flower.log().strip().splitlines()[-30:]
    except (FlowerError, OSError):
        log = []
    return "\n".join([*log, f"the run ended with status {status} and no summary"])


def _finish(folder: Path) -> None:
    import json

    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    print(result_table(summary))
