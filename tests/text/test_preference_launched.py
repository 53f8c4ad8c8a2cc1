"""Preference training by `accelerate launch`: its command, and two real processes on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.text.preference.launched import (
    JOB,
    LOG,
    METRICS,
    MODULE,
    launch_command,
    launch_environment,
)
from privsyn_flower.text.preference.trainer import FINISHED, PreferenceTrainer
from tests.end_to_end.conftest import left_running, processes_mentioning
from tests.rigs.preference import PAIRS, trainer

pytest.importorskip("trl")
ROOT = Path(__file__).parents[2]


def test_the_command_is_one_of_accelerates() -> None:
    """What would be started, dry: accelerate's own parser takes it, and ours come first."""
    from accelerate.commands.launch import launch_command_parser

    command = launch_command("/run/work", 4, ["--gpu_ids", "4,5,6,7", "--num_processes", "3"])
    assert command[1:3] == ["-m", "accelerate.commands.launch"]
    read = launch_command_parser().parse_args(command[3:])
    assert (read.num_processes, read.gpu_ids, read.multi_gpu) == (3, "4,5,6,7", True)
    assert (read.num_machines, read.main_process_port, read.mixed_precision) == (1, 0, "no")
    assert (read.module, read.training_script) == (True, MODULE)
    assert read.training_script_args == ["/run/work"]
    assert launch_environment("cuda") == {}
    assert launch_environment("cpu") == {"ACCELERATE_USE_CPU": "true"}


def test_processes_share_a_steps_pairs(tmp_path: Path) -> None:
    found = PreferenceTrainer(tmp_path, device="cpu", batch_size=24, processes=4)
    assert found.tuning.pairs_at_once == 6  # of the 6 that each process has in a step
    with pytest.raises(ValueError, match=r"popri.batch-size = 24: .*training-processes = 5"):
        PreferenceTrainer(tmp_path, device="cpu", batch_size=24, processes=5)


@pytest.mark.slow
def test_two_processes_train_what_one_does(causal_folder: Path, tmp_path: Path) -> None:
    """One step over the same pairs: the same gradient, so the same adapter but for rounding."""
    from safetensors.numpy import load_file

    alone, both = ({"epochs": 2}, {"epochs": 2, "processes": 2})
    one, two = (
        trainer(causal_folder, **options).train(PAIRS, start=None, work=tmp_path / name, seed=0)
        for name, options in (("alone", alone), ("both", both))
    )
    assert [sorted(epoch.metrics) for epoch in one] == [sorted(epoch.metrics) for epoch in two]
    for a, b in zip(one, two, strict=True):
        for name in ("loss", "reward_accuracy"):
            assert a.metrics[name] == pytest.approx(b.metrics[name], rel=1e-4, abs=1e-5)
        first, second = (load_file(x.adapter / "adapter_model.safetensors") for x in (a, b))
        assert first.keys() == second.keys()
        for key, rows in first.items():
            np.testing.assert_allclose(rows, second[key], rtol=1e-3, atol=1e-5)
    assert json.loads((tmp_path / "both" / FINISHED).read_text()) == [x.metrics for x in two]
    assert not (tmp_path / "both" / JOB).exists()
    again = trainer(causal_folder, **both)
    (tmp_path / "both" / METRICS).unlink()
    assert again.train(PAIRS, start=None, work=tmp_path / "both", seed=0) == two  # not trained anew
    with pytest.raises(ValueError, match="training of other pairs, settings"):
        trainer(causal_folder, **alone).train(PAIRS, start=None, work=tmp_path / "both", seed=0)


@pytest.mark.slow
def test_a_process_that_fails_is_told(
    causal_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports nothing of the folder that the run was started in."""
    monkeypatch.chdir(tmp_path)
    Path("accelerate.py").write_text("raise SystemExit('ours')\n")
    pairs, work = [dict(pair) for pair in PAIRS], tmp_path / "work"
    one = trainer(causal_folder, processes=2, launch_arguments="--no_such_flag")
    with pytest.raises(RuntimeError, match=r"status 2.*accelerate\.log(.|\n)*no_such_flag"):
        one.train(pairs, start=None, work=work, seed=0)
    assert (work / LOG).is_file() and not (work / FINISHED).exists()


KILLED = """
import sys
from pathlib import Path
from privsyn_flower.text.preference import launched
from privsyn_flower.text.preference.tuning import Setting
from tests.rigs.preference import trainer

work = Path(sys.argv[1])
lasting = [sys.executable, "-c", "import time; time.sleep(3600)", sys.argv[1]]
launched.launch_command = lambda *_: lasting
setting = Setting("model", "cpu", "float32", False, 60.0, False)
launched.fit_launched(setting, trainer(work).tuning, [], start=None, work=work, seed=0)
"""


def test_the_processes_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 600
        while len(processes_mentioning(str(tmp_path))) != 3 and time.monotonic() < deadline:
            assert run.poll() is None
            time.sleep(0.05)
        assert len(processes_mentioning(str(tmp_path))) == 3  # the run, its supervisor, the rest
    finally:
        run.kill()
        run.wait()
    assert left_running(str(tmp_path)) == []
