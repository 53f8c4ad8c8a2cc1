"""`privsyn compare`: what is run, resumed, refused and told."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.compare import command
from privsyn_flower.app.cli.compare.cells import CELL_CONFIG, NOTE, cells_of, look
from privsyn_flower.app.cli.compare.command import compare_command, failures, left_out
from privsyn_flower.app.cli.main import app
from privsyn_flower.config import ConfigError
from privsyn_flower.config.grid import load_grid

Calls = Callable[[], list[str]]


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_grid_is_run_once_and_written(
    grid: Path, tmp_path: Path, stand_in: Sequence[str], calls: Calls
) -> None:
    out = tmp_path / "out"
    folder, outcomes = compare_command(grid, out=out, jobs=2, program=stand_in)
    assert folder == out and failures(outcomes) == []
    assert len(calls()) == 9 and all(line.startswith("run ") for line in calls())
    assert sorted(path.name for path in out.glob("*.*")) == [
        ".lock", "differences.csv", "runs.csv", "table.csv", "table.md",
    ]  # fmt: skip
    assert (out.stat().st_mode & 0o777) == 0o700  # its runs' benchmarks are of private text
    page = (out / "table.md").read_text()
    assert page.startswith("# Both\n")
    trusted = page.index("**A trusted aggregator")
    assert page.index("| PrE-Text |") < trusted < page.index("| dp-ftrl |")
    assert "| dp-ftrl, epsilon 2 (another trust: no rival) |" in page
    # 1000 is no promise, nor is the private text itself
    line = next(line for line in page.splitlines() if line.startswith("| PrE-Text |"))
    cells = line.split(" | ")
    assert ["no guarantee" in cell for cell in cells[1:]] == [False, True]
    private = next(line for line in page.splitlines() if "(c) private (runs of PrE-Text)" in line)
    assert private.count("no guarantee") == 2
    assert "PrE-Text and dp-fedavg along epsilon: they do not cross on this grid" in page
    assert len(rows(out, "runs.csv")) == 9
    compare_command(grid, out=out, program=stand_in)
    assert len(calls()) == 9  # nothing was missing


HOLDS = """
import select, sys
from pathlib import Path
from privsyn_flower.common.files import file_lock
with file_lock(Path(sys.argv[1])):
    print("held", flush=True)
    select.select([sys.stdin], [], [], 60)
"""


def test_who_holds_the_folder_is_named_and_waited_for(
    grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(command, "draw", lambda *_: [])
    told: list[str] = []
    program = [sys.executable, "-c", HOLDS, str(out / ".lock")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"

        def release(line: str) -> None:
            told.append(line)
            assert holder.poll() is None and not (out / "table.md").exists()
            holder.kill()

        monkeypatch.setattr(command, "tell", release)
        compare_command(grid, out=out, run=False)
    assert told == [f"{out} is in use by process {holder.pid}: waiting until that ends"]
    assert (out / "table.md").is_file()


@pytest.mark.slow
def test_a_changed_grid_runs_only_what_is_new(
    grid: Path, tmp_path: Path, stand_in: Sequence[str], calls: Calls
) -> None:
    compare_command(grid, out=tmp_path, program=stand_in)
    assert len(calls()) == 9
    grid.write_text(grid.read_text().replace("1000.0", "4.0"))
    compare_command(grid, out=tmp_path, program=stand_in)
    assert [line.partition("-epsilon")[2][:1] for line in calls()[9:]] == ["4"] * 4
    config = grid.with_name("pretext.toml")
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
    compare_command(grid, out=tmp_path, program=stand_in)
    assert all("pretext-" in line for line in calls()[13:]) and len(calls()) == 17


@pytest.mark.slow
def test_a_failure_stops_no_other_and_is_resumed(
    grid: Path,
    tmp_path: Path,
    stand_in: Sequence[str],
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BREAK", "2.0")
    _, outcomes = compare_command(grid, out=tmp_path, program=stand_in)
    assert failures(outcomes) == [
        f"{method}, epsilon 2, seed {seed}: the votes drowned"
        for seed, methods in enumerate(
            [("PrE-Text", "dp-fedavg", "dp-ftrl"), ("PrE-Text", "dp-fedavg")]
        )
        for method in methods
    ]
    page = (tmp_path / "table.md").read_text()
    assert "- PrE-Text, epsilon 2, seed 0: the votes drowned" in page
    assert len(calls()) == 9
    monkeypatch.delenv("BREAK")
    _, outcomes = compare_command(grid, out=tmp_path, program=stand_in)
    assert failures(outcomes) == []
    assert [line.split()[0] for line in calls()[9:]] == ["resume"] * 5


@pytest.mark.slow
def test_methods_that_need_a_gpu_or_were_not_asked_for_are_left_out_and_named(
    grid: Path,
    tmp_path: Path,
    stand_in: Sequence[str],
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = "privsyn_flower.text.models.devices.resolve_device"
    monkeypatch.setattr(devices, lambda: "cpu")
    grid.write_text(
        grid.read_text().replace('name = "dp-fedavg"', 'name = "dp-fedavg"\nneeds = "gpu"')
    )
    folder, outcomes = compare_command(grid, out=tmp_path / "out", program=stand_in)
    assert len(calls()) == 5 and failures(outcomes) == []
    assert left_out(outcomes) == ["dp-fedavg: 4 not run (it needs a GPU, and there is none here)"]
    page = (folder / "table.md").read_text()
    assert "| dp-fedavg | not run | eps 2; eps 1000 | needs a GPU |" in page
    assert "- dp-fedavg, epsilon 2, seed 0: it needs a GPU" in page
    monkeypatch.setattr(devices, lambda: "cuda")
    with pytest.raises(ConfigError, match=r"--only popri: .*has dp-fedavg, dp-ftrl, pretext"):
        compare_command(grid, out=tmp_path / "out", program=stand_in, only=["popri"])
    (tmp_path / "out2").mkdir()
    _, outcomes = compare_command(grid, out=tmp_path / "out2", program=stand_in, only=["dp-fedavg"])
    assert len(calls()) == 9 and all("dp-fedavg" in line for line in calls()[5:])
    assert left_out(outcomes) == ["PrE-Text: 4 not run", "dp-ftrl: 1 not run"]


@pytest.mark.slow
def test_what_cannot_be_run_is_told_beforehand(
    grid: Path, tmp_path: Path, stand_in: Sequence[str], calls: Calls
) -> None:
    config = grid.with_name("dp-fedavg.toml")
    config.write_text(f"noise-multiplier = 1.0\n{config.read_text()}")  # too little at 2
    options = ["compare", str(grid), "--out", str(tmp_path / "out"), "--dry-run"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 1 and not (tmp_path / "out").exists()
    blocked = [line for line in result.output.splitlines() if line.startswith("blocked")]
    assert [line.split("(")[0].split() for line in blocked] == [
        ["blocked", "dp-fedavg,", "epsilon", "2,", "seed", seed] for seed in "01"
    ]
    assert all("noise-multiplier = 1.0" in line for line in blocked)
    assert "0 done, 7 missing, 2 that cannot be run" in result.output
    result = CliRunner().invoke(app, [*options, "--only", "pretext,dp-ftrl"])
    assert result.exit_code == 0 and "dp-fedavg" not in result.output
    assert "0 done, 5 missing, 0 that cannot be run" in result.output
    result = CliRunner().invoke(app, [*options, "--only", "popri"])
    assert result.exit_code == 1 and "has dp-fedavg, dp-ftrl, pretext" in result.output
    _, outcomes = compare_command(grid, out=tmp_path / "out", program=stand_in)
    assert len(calls()) == 7 and len(failures(outcomes)) == 2


@pytest.mark.slow
def test_a_run_of_another_configuration_never_counts(
    grid: Path, tmp_path: Path, stand_in: Sequence[str], calls: Calls
) -> None:
    """A default that changed: the same file, another meaning."""
    _, outcomes = compare_command(grid, out=tmp_path, program=stand_in)
    folder = outcomes[0].folder
    assert folder is not None
    stored = folder / "config.toml"
    stored.write_text(stored.read_text().replace("\nspare-rounds = 1", "\nspare-rounds = 2"))
    _, outcomes = compare_command(grid, out=tmp_path, program=stand_in)
    assert len(calls()) == 9
    (line,) = failures(outcomes)
    assert "spare-rounds = 1 was 2" in line and str(folder) in line
    # and one that was started by other models
    other = outcomes[1].folder
    assert other is not None
    note = json.loads((other / NOTE).read_text())
    (other / NOTE).write_text(json.dumps({**note, "models": {"downstream": "another"}}))
    assert "other models" in look(outcomes[1].cell).reason
    assert (other / CELL_CONFIG).exists()


@pytest.mark.slow
def test_kept_summaries_stand_for_their_configuration_alone(
    grid: Path, tmp_path: Path, stand_in: Sequence[str], calls: Calls
) -> None:
    grid.write_text(grid.read_text().replace("title", 'archive = "kept"\ntitle'))
    compare_command(grid, out=tmp_path / "one", program=stand_in)
    kept = tmp_path / "kept"
    assert len(list(kept.glob("*-seed?.json"))) == len(list(kept.glob("*.toml"))) == 9
    summary = json.loads((kept / "pretext-epsilon2-seed1.json").read_text())
    assert summary["cell"]["point"] == {"epsilon": "2"} and summary["cell"]["seed"] == 1
    # the users' own figures stay in the run folder
    assert not list(kept.rglob("*.npz")) and "PRIVATE" not in json.dumps(summary)
    _, outcomes = compare_command(grid, out=tmp_path / "two", program=stand_in)
    assert len(calls()) == 9 and failures(outcomes) == []
    assert "users~ [" in (tmp_path / "two" / "table.md").read_text()
    # but for the intervals of paired differences, which no summary has
    assert (kept / "grid.pairs.json").exists()
    one, two = ((tmp_path / n / "differences.csv").read_text() for n in ("one", "two"))
    assert one == two and ",," not in one.splitlines()[1]
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    trial = {"out": tmp_path / "trial", "program": stand_in, "given": {"data.users": 50}}
    assert failures(compare_command(grid, **trial)[1]) == []
    assert before == {path.name: path.read_bytes() for path in kept.iterdir()}
    done = len(calls())
    changed = kept / "pretext-epsilon2-seed1.toml"
    changed.write_text(changed.read_text().replace("\nrounds = 2", "\nrounds = 9"))
    cells = cells_of(load_grid(grid), grid, tmp_path / "two")
    stale = [look(cell).reason for cell in cells if look(cell).summary is None]
    assert len(stale) == 1 and "rounds = 2 was 9" in stale[0]
    compare_command(grid, out=tmp_path / "two", program=stand_in)
    assert [line.partition("-epsilon")[2][:7] for line in calls()[done:]] == ["2-seed1"]


@pytest.mark.slow
def test_a_kept_summary_outlives_a_local_models_folder(
    grid: Path, tmp_path: Path, stand_in: Sequence[str]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"one")
    text = grid.read_text().replace("title", 'archive = "kept"\ntitle')
    grid.write_text(text.replace("[set]", f'[set]\nmodels.downstream = "{model}"'))
    compare_command(grid, out=tmp_path / "one", program=stand_in)

    def reasons() -> set[str]:
        found = map(look, cells_of(load_grid(grid), grid, tmp_path / "two"))
        return {one.reason.partition(": ")[2] for one in found if one.summary is None}

    assert reasons() == set()
    (model / "model.safetensors").write_bytes(b"two")
    assert reasons() == {"the models are others"}
    (model / "model.safetensors").unlink()
    assert reasons() == {f"{model} holds no model weights (*.safetensors or *.bin)"}
    model.rmdir()
    assert reasons() == set()
    # of the folder's model alone: a shipped one is here, and has to be the same
    for file in (tmp_path / "kept").glob("*-seed?.json"):
        summary = json.loads(file.read_text())
        summary["cell"]["models"]["embedder"] = "another"
        summary["cell"]["models"]["infiller"] = "another"
        file.write_text(json.dumps(summary))
    assert reasons() == {"the models are others"}


@pytest.mark.slow
def test_a_damaged_summary_is_named_and_stops_no_other(
    grid: Path, tmp_path: Path, stand_in: Sequence[str], calls: Calls
) -> None:
    text = grid.read_text().replace("title", 'archive = "kept"\ntitle')
    grid.write_text(text.replace("seeds = [0, 1]", "seeds = [0]"))
    given = {"configs": [grid.with_name("pretext.toml")], "program": stand_in}
    _, outcomes = compare_command(grid, out=tmp_path / "one", **given)
    folder = outcomes[0].folder
    assert folder is not None
    summary, kept = folder / "summary.json", tmp_path / "kept" / f"{outcomes[0].cell.name}.json"
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-20])
    for damaged in (b"", b"{", b"[]", summary.read_bytes()[:-9]):
        summary.write_bytes(damaged)
        _, found = compare_command(grid, out=tmp_path / "one", **given)
        (line,) = failures(found)
        assert f"{summary} is " in line and f"privsyn run --resume {folder}" in line
        assert len(calls()) == 2
    summary.unlink()  # as it says
    _, outcomes = compare_command(grid, out=tmp_path / "one", **given)
    assert failures(outcomes) == [] and calls()[2:] == [f"resume {folder.name}"]
    assert kept.read_bytes() == whole
    # a kept one alone: the run is made again in its place
    kept.write_bytes(whole[:-20])
    (cell,) = [
        c
        for c in cells_of(load_grid(grid, given["configs"]), grid, tmp_path / "two")
        if c.name == kept.stem
    ]
    assert f"{kept} is damaged" in look(cell).reason and not look(cell).blocked


@pytest.mark.slow
def test_set_is_for_every_run_and_not_for_what_varies(
    grid: Path, tmp_path: Path, stand_in: Sequence[str]
) -> None:
    _, outcomes = compare_command(grid, out=tmp_path, given={"data.users": 50}, program=stand_in)
    assert {(outcome.summary or {})["users"] for outcome in outcomes} == {50}
    with pytest.raises(ConfigError, match="--set epsilon: the grid varies that itself"):
        compare_command(grid, out=tmp_path, given={"epsilon": 3.0}, program=stand_in)


def test_tables_of_what_is_there_run_nothing(
    grid: Path, tmp_path: Path, stand_in: Sequence[str], calls: Calls
) -> None:
    options = ["compare", str(grid), "--out", str(tmp_path / "out"), "--table-only"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0 and calls() == []
    assert "missing: PrE-Text, epsilon 2, seed 0: not run" in result.output
    assert "## Not here" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.slow
def test_another_file_takes_the_place_of_the_methods(
    grid: Path, tmp_path: Path, stand_in: Sequence[str]
) -> None:
    folder, outcomes = compare_command(
        grid, out=tmp_path, configs=[grid.with_name("pretext.toml")], program=stand_in
    )
    assert len(outcomes) == 4 and {o.cell.method.name for o in outcomes} == {"pretext"}
    page = (folder / "table.md").read_text()
    assert "Lowest loss: epsilon 1000" in page and "minus" not in page


@pytest.mark.slow
def test_an_interrupt_ends_the_runs(grid: Path, tmp_path: Path, stand_in: Sequence[str]) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from privsyn_flower.app.cli.compare.command import compare_command\n"
        "grid, out, *program = sys.argv[1:]\n"
        "try: compare_command(Path(grid), out=Path(out), jobs=2, program=program)\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
    )
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(grid), str(out), *stand_in],
        env={**os.environ, "SLEEP": "900"},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 600
    while len(list(out.glob("runs/*/config.toml"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=600) == 130
    left = [
        entry
        for entry in Path("/proc").glob("[0-9]*")
        if stand_in[1].encode() in _command_line(entry)
    ]
    assert left == []
    assert "unfinished" in (out / "table.md").read_text()


def _command_line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""
