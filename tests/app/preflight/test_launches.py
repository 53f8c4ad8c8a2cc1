"""What a run would start beside Flower, shown by a dry run: `privsyn plan`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.app.preflight.plan import launches
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.config.toml import Scalar

POPRI: dict[str, Scalar] = {
    "method": "popri",
    "models.generator": "owner/model",
    "generation.backend": "vllm",
    "generation.vllm-python": "/opt/vllm/bin/python",
    "generation.vllm-arguments": "--max-model-len 2048",
}


def config(**keys: Scalar) -> RunConfig:
    return RunConfig.from_flat({**POPRI, **keys})


def test_servers_over_gpus_and_the_launcher() -> None:
    many: dict[str, Any] = {
        "generation.vllm-replicas": 2,
        "generation.vllm-tensor-parallel": 4,
        "models.training-processes": 8,
        "models.accelerate-arguments": "--gpu_ids all",
    }
    one, two, training = launches(config(**many), "cuda")
    for at, server in enumerate((one, two)):
        words = server.command
        assert server.environment == {"CUDA_VISIBLE_DEVICES": ("0,1,2,3", "4,5,6,7")[at]}
        assert words[0] == "/opt/vllm/bin/python" and words[-2:] == ["--max-model-len", "2048"]
        assert words[words.index("--tensor-parallel-size") + 1] == "4"
        assert words[words.index("--max-lora-rank") + 1] == "8"
        assert shlex.split(server.shown().split(": ", 1)[1])[1:] == words
    assert training.environment == {}
    assert training.command[training.command.index("--num_processes") + 1] == "8"
    assert training.command[-5:-3] == ["--gpu_ids", "all"]
    (alone,) = launches(config(), "cuda")
    assert alone.environment == {} and "--tensor-parallel-size" not in alone.command
    assert "--enforce-eager" in launches(config(), "cpu")[0].command


def test_nothing_is_started_that_is_not_used() -> None:
    assert launches(config(**{"generation.base-url": "http://127.0.0.1:1"}), "cuda") == []
    plain = RunConfig.from_flat({"models.training-processes": 8, "expand.samples": 0})
    assert launches(plain, "cuda") == []  # PrE-Text without [sft] trains no generator
    tuned = RunConfig.from_flat({"models.training-processes": 8, "sft.epochs": 1})
    assert [one.what for one in launches(tuned, "cpu")] == ["training on pairs, 8 processes"]


@pytest.mark.parametrize(("method", "key"), [("popri", "popri"), ("pretext", "sft")])
def test_a_step_that_cannot_be_shared_is_refused_at_once(method: str, key: str) -> None:
    flat: dict[str, Scalar] = {"method": method, "models.training-processes": 5}
    with pytest.raises(ConfigError, match=rf"{key}\.batch-size = 24: .*training-processes = 5"):
        RunConfig.from_flat(flat | ({"sft.epochs": 1} if key == "sft" else {}))


def test_the_plan_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["method=popri", "generation.backend=vllm", "generation.vllm-replicas=2",
             "models.training-processes=2", "models.device=cpu"]  # fmt: skip
    sets = [word for one in words for word in ("--set", one)]
    (tmp_path / "run.toml").write_text("")
    monkeypatch.setattr("privsyn_flower.app.cli.plan.TIMING_SECONDS", 0.0)
    result = CliRunner().invoke(app, ["plan", "run.toml", "--json", *sets])
    found = json.loads(result.stdout.strip().splitlines()[-1])["processes"]
    assert [one["what"] for one in found] == [
        "vLLM server 1 of 2", "vLLM server 2 of 2", "training on pairs, 2 processes"
    ]  # fmt: skip
    text = CliRunner().invoke(app, ["plan", "run.toml", *sets]).stdout
    assert "vLLM server 2 of 2: " in text and "accelerate.commands.launch" in text
