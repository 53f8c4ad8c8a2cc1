"""`privsyn run --resume` goes on where the folder lies, on its ledger, or says why it does not.

The command and the ServerApp are real; only Flower between them, and the method, are stand-ins.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privsyn_flower.app import preflight
from privsyn_flower.app.cli import run as cli_run
from privsyn_flower.app.cli.ending import NO_BENCHMARK, exit_status
from privsyn_flower.app.cli.run import RunFailed, run_command
from privsyn_flower.app.local.federation import find_run
from privsyn_flower.app.local.simulation import LocalFlower
from privsyn_flower.app.report.guarantee import claim_of
from privsyn_flower.common.files import file_lock
from privsyn_flower.config import ConfigError, RunConfig, differences, flat_defaults, load_config
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.runs import (
    UNFINISHED,
    RunFolder,
    RunLocked,
    complete,
    read_jsonl,
    write_json,
)
from privsyn_flower.server_apps import main as server
from privsyn_flower.server_apps.run import Run
from tests.rigs.rounds import (
    Counting,
    VotingNode,
    nodes,
)

__all__ = ["nodes"]

ROUNDS = 5
CONFIG = f"""
rounds = {ROUNDS}
spare-rounds = 2
nodes = 4
epsilon = 20.0
aggregation = "plain"
[data]
source = "files"
path = "users.jsonl"
users = 100
"""


class Killed(BaseException):
    """Stands for kill -9."""


class OnlyRounds(Run):
    """A run without data and models: the same votes in every round."""

    def run(self) -> None:
        with self.session.begun() as ledger:
            done = self.session.rounds(Counting(self.config.rounds)).run()
            self.ledger_epsilon = ledger.spent_epsilon()
            self.ledger_total = ledger.header.total_epsilon
        write_json(self.folder.path / "summary.json", self.summary(done, samples=0))


class WithBenchmark(OnlyRounds):
    """And a benchmark that is killed the first time."""

    def run(self) -> None:
        super().run()
        path = self.folder.path / "summary.json"
        summary = json.loads(path.read_text())
        write_json(path, summary | {UNFINISHED: "benchmark"})
        if self.folder.load_value("tried") is None:
            self.folder.save_value("tried", True)
            raise Killed
        write_json(path, summary)


class InProcess(LocalFlower):
    """Runs the ServerApp where it stands."""

    grid: Any = None
    closed: list[Path]

    def start(self) -> None: ...

    def submit(self, config: RunConfig) -> str:
        context: Any = SimpleNamespace(run_config=config.flat(), run_id=7)
        write_json(self.run_folder / "flower.json", self.facts())
        try:
            server.main(self.grid, context)
        except (Exception, Killed):
            return "7"
        return "7"

    def status(self) -> str:
        done = (self.run_folder / "summary.json").exists()
        return "finished:completed" if done else "finished:failed"

    def log(self) -> str:
        return ""

    def close(self) -> None:
        self.closed.append(self.run_folder)


Start = Callable[[], Path]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ledgers lie."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "privsyn-flower" / "ledgers"


@pytest.fixture
def begun(
    tmp_path: Path,
    home: Path,
    loopback: Any,
    nodes: dict[int, VotingNode],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The folder of a run that was killed in round 3, when 2 were released."""
    monkeypatch.setattr(server, "Run", OnlyRounds)
    monkeypatch.setattr(cli_run, "LocalFlower", InProcess)
    for data in ("private_file", "public_file"):  # the stand-in reads none
        monkeypatch.setattr(preflight, data, lambda config: ())
    monkeypatch.setattr(cli_run, "_prepare", lambda config: None)
    monkeypatch.setattr(cli_run, "STATUS_EVERY", 0.0)
    monkeypatch.setattr(cli_run, "GRACE", 0.0)
    monkeypatch.setattr(InProcess, "grid", loopback(nodes))
    monkeypatch.setattr(InProcess, "closed", [], raising=False)
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(CONFIG)

    def kill(ticket: Ticket) -> None:
        if ticket.round == 3:
            raise Killed

    nodes[100].before_answer = kill
    folder = tmp_path / "mv1"
    with pytest.raises(RunFailed, match="no summary"):
        run_command(Path("run.toml"), [f"run-folder={folder}"], None)
    nodes[100].before_answer = None
    assert len(list((folder / "releases").iterdir())) == 2
    return folder


def test_what_runs_for_a_moved_folder_ends(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Path] = []
    monkeypatch.setattr(LocalFlower, "_clear", lambda flower: ended.append(flower.home))
    copy = begun.with_name("copy")
    shutil.copytree(begun, copy)
    LocalFlower.end_moved(copy)
    LocalFlower.end_moved(begun)
    assert not ended
    moved = begun.rename(begun.with_name("moved"))
    LocalFlower.end_moved(moved)
    assert ended == [begun / ".flower"]


def test_a_folder_with_something_of_another_account_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared" / ".flower").mkdir(parents=True, mode=0o777)
    cli_run._own(tmp_path / "shared")
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(RunFailed, match="belongs to another account"):
        cli_run._own(tmp_path / "shared")


def charges(home: Path) -> list[tuple[int, str]]:
    """Of the only ledger that there is."""
    (book,) = home.rglob("*.jsonl")
    ledger = Ledger.open(book, population=f"run {book.stem}")
    return [(charge.round, charge.state) for charge in ledger.charges()]


ALL = [(1, "committed"), (2, "committed"), (3, "reserved")]
ALL += [(rnd, "committed") for rnd in range(3, ROUNDS + 1)]


def test_a_renamed_folder_goes_on_where_it_lies(begun: Path, home: Path, tmp_path: Path) -> None:
    name = RunFolder(begun).load_value("run")
    moved = begun.rename(tmp_path / "mv2")
    assert run_command(None, [], moved) == moved
    assert not begun.exists()
    assert charges(home) == ALL  # the killed attempt of round 3 stays paid, and the rest once
    assert RunFolder(moved).load_value("run") == name
    assert json.loads((moved / "summary.json").read_text())["rounds"] == ROUNDS
    assert load_config(moved / "config.toml").run_folder == str(moved)
    assert len([row for row in read_jsonl(moved / "ledger.jsonl") if row["kind"] == "commit"]) == 5


def test_a_copied_folder_leaves_its_original_alone(
    begun: Path, home: Path, tmp_path: Path, nodes: dict[int, VotingNode]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(begun, copy)
    before = {path: path.stat().st_mtime_ns for path in begun.rglob("*")}
    assert run_command(None, [], copy) == copy
    assert {path: path.stat().st_mtime_ns for path in begun.rglob("*")} == before
    asked = len(nodes[100].seen)
    with pytest.raises(RunFailed, match=r"round 3 was released .*another copy of it went on"):
        run_command(None, [], begun)
    assert charges(home) == ALL and len(nodes[100].seen) == asked
    assert len(list((begun / "releases").iterdir())) == 2


def test_a_deleted_ledger_is_not_made_anew(
    begun: Path, home: Path, nodes: dict[int, VotingNode]
) -> None:
    (book,) = home.rglob("*.jsonl")
    book.unlink()
    asked = len(nodes[100].seen)
    for _ in range(2):
        with pytest.raises(RunFailed, match=f"LedgerError: no ledger at {book}.*put it back"):
            run_command(None, [], begun)
    assert not book.exists() and len(nodes[100].seen) == asked


def test_what_lies_in_the_folder_moves_with_it(begun: Path, home: Path, tmp_path: Path) -> None:
    """Paths of the configuration that begin with the run folder's."""
    text = (begun / "config.toml").read_text()
    cache = load_config(begun / "config.toml").cache
    (begun / "config.toml").write_text(text.replace(f'"{cache}"', f'"{begun}/cache"'))
    stored = RunFolder(begun).load_value("config")
    RunFolder(begun).save_value("config", stored.replace(f'"{cache}"', f'"{begun}/cache"'))
    moved = begun.rename(tmp_path / "mv2")
    run_command(None, [], moved)
    assert load_config(moved / "config.toml").cache == str(moved / "cache")
    assert charges(home) == ALL


def test_another_configuration_is_named_by_its_keys(begun: Path, home: Path) -> None:
    text = (begun / "config.toml").read_text()
    (begun / "config.toml").write_text(text.replace("epsilon = 20.0", "epsilon = 30.0"))
    with pytest.raises(ConfigError, match=r"another configuration: epsilon = 30\.0 was 20\.0;"):
        run_command(None, [], begun)


LATER = "generation.base-url=http://127.0.0.1:9/v1"


@pytest.mark.parametrize("edited", [False, True])
def test_settings_of_what_is_made_of_the_releases_change_on_resume(
    begun: Path, home: Path, edited: bool
) -> None:
    """By --set or in the folder's config.toml; noted with both values, and in the statement."""
    settings = [LATER, "trackers=tensorboard"]
    if edited:
        text = (begun / "config.toml").read_text()
        text = text.replace('base-url = ""', 'base-url = "http://127.0.0.1:9/v1"')
        text = text.replace('trackers = ""', 'trackers = "tensorboard"')
        (begun / "config.toml").write_text(text)
    assert run_command(None, [] if edited else settings, begun) == begun
    assert charges(home) == ALL
    rows = [(r["key"], r["was"], r["now"]) for r in read_jsonl(begun / "changes.jsonl")]
    assert rows == [
        ("generation.base-url", "", "http://127.0.0.1:9/v1"),
        ("trackers", "", "tensorboard"),
    ]
    assert load_config(begun / "config.toml").generation.base_url == "http://127.0.0.1:9/v1"
    summary = json.loads((begun / "summary.json").read_text())
    assert summary["changed"] == ["generation.base-url", "trackers"]
    statement = (begun / "privacy.md").read_text()
    assert "generation.base-url, trackers" in statement and summary["privacy"] in statement
    assert claim_of(summary).sentence() == summary["privacy"]
    assert run_command(None, settings, begun) == begun  # nothing changes: it is shown again
    assert len(read_jsonl(begun / "changes.jsonl")) == 2


def test_a_finished_result_is_made_again_by_other_settings(begun: Path, home: Path) -> None:
    run_command(None, [], begun)
    before = json.loads((begun / "summary.json").read_text())
    InProcess.closed.clear()
    run_command(None, [LATER], begun)
    after = json.loads((begun / "summary.json").read_text())
    assert InProcess.closed and "changed" not in before and after["changed"]
    assert charges(home) == ALL and after["rounds"] == before["rounds"]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("rounds=9", "rounds = 9 was 5"),
        ("data.users=101", "data.users = 101 was 100"),
        ("models.embedder=ngram-32", "models.embedder = 'ngram-32' was"),
        ("noise-multiplier=30.0", "noise-multiplier = 30.0 was 0.0"),
    ],
)
def test_what_is_asked_or_promised_never_changes(
    begun: Path, nodes: dict[int, VotingNode], setting: str, told: str
) -> None:
    asked, before = len(nodes[100].seen), (begun / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match=f"another configuration: {re.escape(told)}"):
        run_command(None, [setting, LATER], begun)
    assert len(nodes[100].seen) == asked and (begun / "config.toml").read_bytes() == before
    assert not (begun / "changes.jsonl").exists()


def test_a_run_that_goes_on_keeps_its_settings(begun: Path) -> None:
    with RunFolder(begun).lock(), pytest.raises(RunLocked, match=r"generation\.base-url would"):
        run_command(None, [LATER], begun)


def test_a_generator_that_is_named_later_writes_as_many_texts_as_one_named_before() -> None:
    flat = {"data.source": "files", "data.path": "u.jsonl", "data.public-path": "p.jsonl"}
    tiny = RunConfig.from_flat({**flat, "models.generator": "tiny"})
    assert (tiny.expand.samples, tiny.seeds_alone) == (0, True)
    with_generator = cli_run.with_settings(tiny.flat(), {"models.generator": "smollm2"}, tiny)
    assert with_generator.expand.samples == 500
    assert cli_run.with_settings(tiny.flat(), {"expand.min-words": 3}, tiny).expand.samples == 0


def test_a_second_command_leaves_alone_what_the_first_is_starting(begun: Path) -> None:
    """Its ServerApp takes the folder only seconds later."""
    closed = list(InProcess.closed)
    with file_lock(begun / ".starting"), pytest.raises(RunLocked, match="is being started by"):
        run_command(None, [], begun)
    assert InProcess.closed == closed


def test_a_run_of_an_earlier_version_goes_on_by_the_defaults_of_newer_keys(
    begun: Path, home: Path, nodes: dict[int, VotingNode]
) -> None:
    """Its configuration lacks them; it goes on, unless one is set to something else."""

    def without_it(text: str) -> str:
        (line,) = (row for row in text.splitlines() if row.startswith("node-memory = "))
        return text.replace(f"{line}\n", "")

    config, run = begun / "config.toml", RunFolder(begun)
    config.write_text(without_it(config.read_text()))
    run.save_value("config", without_it(run.load_value("config")))
    asked = len(nodes[100].seen)
    written = config.read_text()
    config.write_text(f"node-memory = 7\n{written}")
    with pytest.raises(ConfigError, match=r"another configuration: node-memory = 7 was \d+;"):
        run_command(None, [], begun)
    assert len(nodes[100].seen) == asked
    config.write_text(written)
    assert run_command(None, [], begun) == begun
    assert charges(home) == ALL


def test_a_stored_key_that_is_no_more_is_another_configuration() -> None:
    stored = {**flat_defaults(), "retired": 3}
    assert differences(flat_defaults(), stored) == ["retired = None was 3"]


def test_a_copy_does_not_end_the_flower_of_its_original(begun: Path, tmp_path: Path) -> None:
    """flower.json is copied with the rest: it says where another folder's SuperLink is."""
    copy = tmp_path / "copy"
    shutil.copytree(begun, copy)

    class Found(LocalFlower):
        def healthy(self) -> bool:
            return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFlower, "healthy", Found.healthy)
        assert find_run(begun) is not None
        (tmp_path / "link").symlink_to(begun)
        assert find_run(tmp_path / "link") is not None
        assert find_run(copy) is None


def test_a_folder_moved_under_a_running_run_is_not_begun_again(
    begun: Path, tmp_path: Path, nodes: dict[int, VotingNode], home: Path
) -> None:
    moved = tmp_path / "mv2"

    def move(ticket: Ticket) -> None:
        if ticket.round == 4:
            begun.rename(moved)

    nodes[100].before_answer = move
    with pytest.raises(RunFailed, match=r"RunMoved: run folder .* was moved or removed"):
        run_command(None, [], begun)
    nodes[100].before_answer = None
    assert not (begun / "releases").exists() and not (begun / "checkpoints").exists()
    run_command(None, [], moved)
    found = charges(home)  # both attempts that came to nothing stay paid
    assert [rnd for rnd, state in found if state == "reserved"] == [3, 4]
    assert [rnd for rnd, state in found if state == "committed"] == [1, 2, 3, 4, 5]


def test_a_resume_finishes_the_benchmark_alone(
    begun: Path,
    home: Path,
    nodes: dict[int, VotingNode],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(server, "Run", WithBenchmark)
    assert run_command(None, [], begun) == begun  # a result, whatever ended its benchmark
    assert exit_status(begun) == NO_BENCHMARK
    assert f"finish that alone with: privsyn run --resume {begun}" in capsys.readouterr().err
    asked, paid = len(nodes[100].seen), charges(home)
    assert run_command(None, [], begun) == begun
    assert complete(begun) and exit_status(begun) == 0
    assert len(nodes[100].seen) == asked and charges(home) == paid
    InProcess.closed.clear()
    assert run_command(None, [], begun) == begun  # is shown, and not started again
    assert InProcess.closed == []
