"""`privsyn run`: prepare paths, start Flower, draw progress, tell the truth at the end."""

from __future__ import annotations

import itertools
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from privsyn_flower.app.cli.display import Display
from privsyn_flower.app.cli.ending import product_lines, show_outcome, tell
from privsyn_flower.app.cli.errors import benchmark_free
from privsyn_flower.app.local import loopback_guard
from privsyn_flower.app.local.federation import FederationRun, LocalFederation, find_run
from privsyn_flower.app.local.processes import on_endings, stoppable
from privsyn_flower.app.local.ray_cluster import check_cluster, parsed
from privsyn_flower.app.local.simulation import FlowerError, LocalFlower, users_cluster
from privsyn_flower.app.preflight import NotReady, check_ready
from privsyn_flower.app.preflight.data import default_generator
from privsyn_flower.app.report.summaries import read_summary
from privsyn_flower.common.files import LockTaken, file_lock, write_atomic
from privsyn_flower.common.progress import BENCHMARK, PROGRESS, read_events
from privsyn_flower.config import (
    ConfigError,
    RunConfig,
    absolute_paths,
    cache_folder,
    load_config,
    parse_override,
    relocated,
    to_toml,
)
from privsyn_flower.config.section import Scalar
from privsyn_flower.data import DataError, prepare
from privsyn_flower.runs import (
    UNFINISHED,
    RunFolder,
    RunLocked,
    benchmark_due,
    complete,
    lock_holder,
    log_size,
    read_warnings,
)
from privsyn_flower.server_apps.changes import CHANGES, changes_of, go_by
from privsyn_flower.server_apps.privacy_plan import baseline
from privsyn_flower.server_apps.public_text import is_deployment
from privsyn_flower.strategies.engine.arguments import PREFIX
from privsyn_flower.strategies.engine.rounds import LOST

STATUS_EVERY = 20.0  # seconds between looks at Flower's own status
RESTARTS = 3  # in a row, without a new release between them
RAY_TIMEOUT = "node timed out during startup"  # Ray gives itself 30 s, on a busy machine too little
CLOSING = 180.0  # seconds a ServerApp has after its summary: it writes the report page
Settings = Mapping[str, Scalar]
GRACE = 5.0  # seconds a ServerApp that let go of its folder has to leave a result


class RunFailed(RuntimeError):
    """The ServerApp failed; the text is its own error."""


def run_command(
    config: Path | None,
    settings: list[str],
    resume: Path | None,
    federation: Path | None = None,
    ray: str = "",
) -> Path:
    """Run (or resume, or attach to) one run; returns its folder.

    federation: the folder of a running federation; None simulates one for this run. ray: address
    of the cluster to simulate in; "": as RAY_ADDRESS says, on this machine when it says nothing.
    """
    if ray and federation is not None:
        raise ConfigError("--ray simulates, --federation does not: drop one")
    if ray:
        parsed(ray)
        os.environ["RAY_ADDRESS"] = ray  # as Flower's own processes are told
    there = None if federation is None else LocalFederation(federation)
    if resume is not None:
        if config is not None:
            raise ConfigError("--resume takes the run's own config.toml: drop CONFIG")
        return _resume(resume.expanduser().absolute(), settings, there)
    overrides = dict(parse_override(text) for text in settings)
    path = config or default_config()
    overrides |= benchmark_free(path, overrides)
    chosen, why = default_generator(path, overrides)
    if why:
        tell(why)
    loaded = load_config(path, {**overrides, **chosen})
    _check_place(loaded, there)
    folder = Path(loaded.run_folder or _fresh_name(loaded)).expanduser().absolute()
    if loaded.run_folder and (folder / "config.toml").exists():
        raise RunFailed(
            f"run folder {folder} already holds a run: continue it with "
            f"`privsyn run --resume {folder}` or choose another run-folder"
        )
    final = absolute_paths(loaded, folder)
    _check_ready(final, folder, there)
    if there is None:
        _prepare(final)
        _check_cluster(final)
    if not loaded.run_folder:
        folder = _claimed(folder)
        final = absolute_paths(loaded, folder)
    _own(folder)
    with _starting(folder):
        write_atomic(folder / "config.toml", to_toml(final, comments=True).encode())
        return _start(folder, final, there)


def _check_place(config: RunConfig, federation: LocalFederation | None) -> None:
    """A federation's users are on its nodes; a simulation's are named here."""
    deployed = is_deployment(config)
    if federation is not None and not deployed:
        raise ConfigError(
            f"data.source = {config.data.source!r}, data.path = {config.data.path!r}: the users of "
            "a federation are on its nodes; set data.source = 'files', data.path = '' and "
            "data.public-path (dp-fedavg, dp-ftrl and evaluation need none)"
        )
    if federation is None and deployed:
        raise ConfigError(
            "data.path is empty, so the users are on real nodes: name their --federation, or "
            "a file of users in data.path to simulate"
        )


def default_config() -> Path | None:
    """configs/chats-demo.toml beside the package (a clone); None: the built-in defaults."""
    demo = Path(__file__).resolve().parents[3] / "configs" / "chats-demo.toml"
    return demo if demo.exists() else None


def _fresh_name(config: RunConfig) -> Path:
    """Where a run goes that names no folder."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    claim = baseline(config)
    kept = claim is None or math.isclose(claim.epsilon, config.epsilon)  # else the key is not used
    budget = f"-eps{config.epsilon:g}" if kept else ""
    return Path("runs") / f"{config.method}{budget}-{stamp}"


def _claimed(folder: Path) -> Path:
    """A new folder of this name, or the next: made here, so that two at once get two."""
    for number in itertools.count(1):
        own = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        with suppress(FileExistsError):
            own.parent.mkdir(parents=True, exist_ok=True)
            own.mkdir(mode=0o700)
            return own
    raise AssertionError("unreachable")


def _own(folder: Path) -> None:
    """Shut the folder to other accounts: the app that Flower runs as this one is written there.

    Raises RunFailed when something in it is another account's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # from here on nobody adds anything
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):  # of a run that goes on
            if path.lstat().st_uid != os.getuid():
                raise RunFailed(
                    f"{path} belongs to another account of this machine, which could put code "
                    "into the run: choose a run-folder of your own"
                )


def _resume(folder: Path, settings: list[str], federation: LocalFederation | None) -> Path:
    path = folder / "config.toml"
    if not path.exists():
        raise ConfigError(f"{folder} holds no run: config.toml is missing")
    _own(folder)
    stored = load_config(path)
    # Whether it may go on is no question of paths: the ledger knows the run (`engine.rounds`).
    given = dict(parse_override(text) for text in settings)
    config = absolute_paths(with_settings(relocated(stored.flat(), folder), given, stored), folder)
    changed = changes_of(RunFolder(folder), config)
    _check_place(config, federation)
    flower = find_run(folder)
    over = (folder / "summary.json").exists() and UNFINISHED not in read_summary(folder)
    if over and not changed and lock_holder(folder) is None:
        if flower is not None:  # the command that started it was killed
            flower.close()
        show_outcome(folder)
        return folder
    if lock_holder(folder) is not None:
        if changed:
            raise RunLocked(
                f"run folder {folder} is in use, and {', '.join(changed)} would change: stop the "
                "run first (Ctrl-C where it was started)"
            )
        if flower is None:
            raise RunLocked(
                f"run folder {folder} is held by a process whose SuperLink does not answer; "
                f"end the process named in {folder / '.lock'} first"
            )
        print(f"attached to the run in {folder}", file=sys.stderr)
        with stoppable():
            return _watch(folder, flower)
    with _starting(folder):
        if flower is not None:
            flower.close()
        LocalFlower.end_moved(folder)
        _check_ready(config, folder, federation, resumed=True)
        if federation is None:
            _prepare(config)
            _check_cluster(config)
        if config != stored:
            write_atomic(path, to_toml(config, comments=True).encode())
        if changed:
            with RunFolder(folder).lock():
                go_by(RunFolder(folder), config)
            tell(f"changed: {', '.join(changed)} ({folder / CHANGES})")
        return _start(folder, config, federation)


def with_settings(flat: Settings, given: Settings, stored: RunConfig) -> RunConfig:
    """A stored run's keys with others of a resume."""
    unwritten = stored.seeds_alone and not stored.expand.samples  # no generator that can write
    more = {"expand.samples": -1} if unwritten and "models.generator" in given else {}
    return RunConfig.from_flat({**flat, **more, **given})


@contextmanager
def _starting(folder: Path) -> Iterator[None]:
    """Hold a run against other commands while this one starts and follows it: the ServerApp takes
    the folder only seconds after it was submitted. Raises RunLocked."""
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(folder / ".starting"))
        except LockTaken as taken:
            raise RunLocked(
                f"run folder {folder} is being started by process {taken.owner}: call this again "
                "when its rounds go on, or end that process first"
            ) from None
        yield


def _check_ready(
    config: RunConfig, folder: Path, federation: LocalFederation | None, *, resumed: bool = False
) -> None:
    """Say what is doubtful. Raises NotReady for what cannot work, before anything is written."""
    found = check_ready(config, folder, federation, resumed=resumed)
    for finding in found:
        if not finding.fatal:
            print(f"warning: {finding.text}", file=sys.stderr)
    if errors := [finding.text for finding in found if finding.fatal]:
        raise NotReady(errors)


def _check_cluster(config: RunConfig) -> None:
    """Of a simulation in the user's own cluster: its machines are alike. Raises ClusterError."""
    if address := users_cluster():
        tell(check_cluster(config, address))


def _start(folder: Path, config: RunConfig, federation: LocalFederation | None) -> Path:
    """Run until the end: in a cluster that loses machines on those that are left, on this machine
    again when it was too busy for Ray to start; RESTARTS times without a new release."""
    tries, released = RESTARTS, -1
    while True:
        try:
            return _started(folder, config, federation)
        except RunFailed as error:
            busy = RAY_TIMEOUT in str(error)
            lost = LOST in str(error) and users_cluster()
            if federation is not None or not (busy or lost):
                raise
            before, released = released, len(list((folder / "releases").glob("*.npz")))
            tries = RESTARTS if released > before else tries - 1
            if tries == 0:
                raise
            tell(f"warning: {error}")
        _check_cluster(config)
        where = "on the machines that are left" if lost else "a Ray that was not up within 30 s"
        tell(f"starting again {where}")


def _started(folder: Path, config: RunConfig, federation: LocalFederation | None) -> Path:
    (folder / "error.txt").unlink(missing_ok=True)
    begin = (read_events(folder / PROGRESS, 0)[1], log_size(folder))
    flower = LocalFlower(folder) if federation is None else FederationRun(folder, federation)
    if federation is None:
        _say_what_is_open()
    with stoppable():
        try:
            flower.start()
            flower.submit(config)
        except BaseException:
            _close(flower)
            raise
        return _watch(folder, flower, *begin)


def _say_what_is_open() -> None:
    """On stderr, what other accounts of this machine could reach. Mostly nothing."""
    if not loopback_guard.can_tell():
        tell(loopback_guard.OPEN)
    if cluster := users_cluster():
        tell(
            f"RAY_ADDRESS = {cluster}: the simulation runs there, and is as protected as that "
            "cluster is; without it the run starts a Ray of its own, on loopback, under a token"
        )
        if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":  # it was joined without one
            tell("warning: that cluster asks for no token: who reaches its ports runs code as you")


def _prepare(config: RunConfig) -> None:
    """Read a simulation's files here, where what they lack is told to their owner alone: how many
    private rows were skipped is for this terminal, not for the run folder."""
    if config.data.source == "docstrings":
        return
    try:
        prepare(config.data, cache_folder(config), tell, tell)
    except (DataError, OSError) as error:
        raise RunFailed(str(error)) from None


def _close(flower: LocalFlower) -> None:
    """End what was started; a signal that comes meanwhile must leave no half of it."""
    with on_endings(signal.SIG_IGN):
        flower.close()


def _stop(folder: Path, flower: LocalFlower) -> None:
    """Ask Flower to stop the run, once: a shell may repeat the signal that asked for it."""
    with on_endings(signal.SIG_IGN):
        tell("stopping the Flower run ...")
        try:
            flower.stop()
        except FlowerError as error:
            tell(str(error))
        if not benchmark_due(folder):
            what = "it was complete already; show it" if complete(folder) else "continue it"
            tell(f"{what} with: privsyn run --resume {folder}")


class _Follower:
    """Shows a run's progress and warnings as they come.

    events, log: where in progress.jsonl and run.log to begin.
    """

    def __init__(self, folder: Path, display: Display, events: int, log: int) -> None:
        self.folder, self.display = folder, display
        self.events, self.log = events, log
        self.announced = False

    def show(self) -> None:
        """What came since the last look."""
        events, self.events = read_events(self.folder / PROGRESS, self.events)
        for event in events:
            if event["stage"] == BENCHMARK:
                self._show_result()
            self.display.show(event)
        warnings, self.log = read_warnings(self.folder, self.log)
        for text in warnings:
            self.display.warn(text)
        self._show_result()

    def _show_result(self) -> None:
        """Once, as soon as it is there and what comes is its benchmark."""
        if not self.announced and benchmark_due(self.folder):
            self.announced = True
            self.display.say(product_lines(read_summary(self.folder), self.folder))


def _watch(folder: Path, flower: LocalFlower, events: int = 0, log: int = 0) -> Path:
    """Draw progress until the run ends; stop it on Ctrl-C; raise RunFailed with its error.

    A result stands whatever ends its benchmark. events, log: bytes of progress.jsonl and run.log
    that were there before, and are shown no more.
    """
    checked, seen_alive, gone = time.monotonic(), False, 0.0
    try:
        with Display() as display:
            follower = _Follower(folder, display, events, log)
            while True:
                follower.show()
                ended = complete(folder) or (folder / "error.txt").exists()
                # A killed ServerApp lets go of the folder long before Flower misses it.
                alive = lock_holder(folder) is not None
                seen_alive = seen_alive or alive
                gone = 0.0 if alive or not seen_alive else gone or time.monotonic()
                if ended or (gone and time.monotonic() - gone > GRACE):
                    break
                # A ServerApp that holds the folder is alive.
                if not alive and time.monotonic() - checked > STATUS_EVERY:
                    checked = time.monotonic()
                    if flower.status().startswith("finished"):
                        break
                time.sleep(0.2)
            follower.show()
        status = "failed"
        # The ServerApp's own error says enough, and without a result no word of Flower's changes
        # the outcome: who let go of the folder had GRACE to leave one.
        if not (folder / "error.txt").exists():
            status = _final_status(flower, CLOSING if complete(folder) else 0.0)
        if not complete(folder) or status != "finished:completed":
            error = _error(folder, flower, status)
            if not benchmark_due(folder):
                if any((folder / "releases").glob("*.npz")):
                    tell(
                        f"what was released is kept; go on: privsyn run --resume {folder}, with "
                        "--set KEY=VALUE to write its text in another way"
                    )
                raise RunFailed(error)
            tell(f"error: {error}")
    except KeyboardInterrupt:
        _stop(folder, flower)
        if not benchmark_due(folder):
            raise
    finally:
        _close(flower)
    show_outcome(folder)
    return folder


def _final_status(flower: LocalFlower, wait: float) -> str:
    """Flower's final word, which comes a little after the ServerApp's last file."""
    deadline = time.monotonic() + wait
    while True:
        status = flower.status()
        if status.startswith("finished") or time.monotonic() > deadline:
            return status
        time.sleep(0.5)


def _error(folder: Path, flower: LocalFlower, status: str) -> str:
    path = folder / "error.txt"
    if path.exists():
        return path.read_text(encoding="utf-8").strip()
    try:
        log = flower.log().strip().splitlines()[-30:]
    except (FlowerError, OSError):
        log = []
    for line in reversed(log):  # a full disk took no error.txt
        if line.startswith(PREFIX):
            return line.removeprefix(PREFIX)
    what = "no benchmark" if benchmark_due(folder) else "no summary"
    return "\n".join([*log, f"the run ended with status {status} and {what}"])
