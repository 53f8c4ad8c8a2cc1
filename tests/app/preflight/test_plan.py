"""`privsyn plan`: every paper configuration has one, and it says what promise and wire say."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli import plan as plans
from privsyn_flower.app.cli.errors import json_text
from privsyn_flower.app.cli.main import app
from privsyn_flower.app.preflight import check_ready
from privsyn_flower.app.preflight.data import long_texts
from privsyn_flower.app.preflight.exchange import question_bytes, trained
from privsyn_flower.app.preflight.numbers import one_users_votes, signal_of
from privsyn_flower.app.preflight.plan import Plan, launches, plan_of
from privsyn_flower.app.preflight.sizes import size_of
from privsyn_flower.app.preflight.speeds import Machine, speed_key
from privsyn_flower.config import ConfigError, RunConfig, absolute_paths, load_config
from privsyn_flower.config.toml import Scalar
from privsyn_flower.privacy.wording import at_most
from privsyn_flower.protocol.question import Query
from privsyn_flower.queries.scores import shard_scores
from privsyn_flower.queries.votes import shard_votes
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.privacy_plan import baseline, privacy_plan
from tests.rigs.plan import BOX
from tests.rigs.preflight_preflight import place as place
from tests.rigs.preflight_preflight import write

ROOT = Path(__file__).parents[3]
NODE = replace(BOX, name="a GPU", device="cuda", memory=80 * 2**30, operations=5e14)


def planned(config: RunConfig, folder: Path, machine: Machine = BOX) -> Plan:
    return plan_of(absolute_paths(config, folder), folder, machine)


def it_has_a_plan(name: str, config: RunConfig, tmp_path: Path) -> None:
    """Of a paper's configuration, for `tests/config/test_shipped.py`."""
    plan = planned(config, tmp_path / "run")
    told, text = json.loads(json_text(plan.as_dict())), plans.described(plan)
    if name.startswith("evaluation-gboard"):  # of models that nobody has
        assert told["privacy"]["releases"] == 2 and told["privacy"]["epsilon"] <= config.epsilon
        assert "the model is not here, and no table has its size" in text
        return
    if recipe_of(config).phases(config):
        rounds_are_told(plan, told, text)
    else:
        nobody_is_asked(plan, told, text)
    assert all(stage["seconds"] + stage["node_seconds"] > 0 for stage in told["stages"])
    assert not any(stage["unknown"] for stage in told["stages"]), "each model's size is known"
    assert {model["here"] for model in told["models"]} <= {True, False}
    assert all(model["parameters"] for model in told["models"])
    # What `privsyn run` would refuse stands in it, word for word.
    refused = {finding.text for finding in check_ready(plan.config, tmp_path / "run")}
    assert refused <= {finding["text"] for finding in told["findings"]}
    assert "together: " in text and "memory without batches: models." in text
    assert told["memory"] and all(told["memory"].values())
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache").exists()
    # What does not fit on one large GPU names its key.
    large = planned(config, tmp_path / "run", NODE)
    for finding in large.findings:
        if " of memory" in finding.text:
            assert "smaller models." in finding.text


def rounds_are_told(plan: Plan, told: dict[str, Any], text: str) -> None:
    made, signal, device = privacy_plan(plan.config), plan.signal, told["device"]
    assert plan.privacy_plan is made and signal is not None, "one accounting"
    assert told["privacy"]["epsilon"] == made.epsilon <= plan.config.epsilon
    assert told["privacy"]["releases"] >= plan.config.rounds
    assert told["signal"]["ratio"] == pytest.approx(signal.expected / signal.noise)
    assert 0 < signal.noise < math.inf and signal.expected > 0
    if device["coordinates"] is not None:  # low-rank factors are counted in a model's files alone
        assert device["up"] >= device["coordinates"] * device["bits"] // 8 > 0
        assert device["down"] > 0
    assert device["first_seconds"] >= device["seconds"] > 0
    assert f"epsilon {at_most(made.epsilon)} of" in text and "together: at least" in text


def nobody_is_asked(plan: Plan, told: dict[str, Any], text: str) -> None:
    claim = baseline(plan.config)
    assert claim is not None and plan.trust == claim.short()
    assert (plan.privacy_plan, told["signal"], told["device"]) == (None, None, None)
    assert told["privacy"]["releases"] == 0 and told["privacy"]["phases"] == []
    known = claim.epsilon if math.isfinite(claim.epsilon) else None
    assert told["privacy"]["epsilon"] == known
    assert (
        f"epsilon {at_most(claim.epsilon)}, {claim.threat_model}" in text and "signal (" not in text
    )
    assert all(stage["stage"] in ("models", "expansion", "benchmark") for stage in told["stages"])


def test_the_pages_examples_are_these() -> None:
    page = (ROOT / "docs" / "runs.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\w.-]+): .* \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    assert len(rows) == 3
    for name, noise, expected, ratio in rows:
        config = load_config(ROOT / "configs" / "papers" / f"{name}.toml")
        found = signal_of(config, 81_912_576)
        numbers = (found.noise, found.expected, found.ratio)
        for value, written in zip(numbers, (noise, expected, ratio), strict=True):
            assert value == pytest.approx(float(written), rel=6e-4 if "." in written else 1e-4)
    assert "the third ratio is 1.84" in page and found.note.endswith("ratio 1.84")


@pytest.mark.parametrize("clip", ["normalised", "worst-case", "sqrt-count"])
@pytest.mark.parametrize("bound", [1.0, 8.0])
def test_one_users_votes_are_what_the_nodes_count(clip: str, bound: float) -> None:
    rows = np.eye(16, dtype=np.float32)
    votes = shard_votes(rows[:6], np.zeros(6, int), rows, clip=clip, bound=bound, samples_cap=8)
    assert votes.sum() == pytest.approx(one_users_votes(clip, bound, 6))


@pytest.mark.parametrize("classes", [1, 2])
def test_scores_of_users_who_agree_are_as_large_as_told(classes: int) -> None:
    rng = np.random.default_rng(0)
    m, users = 60, 30
    candidates = rng.standard_normal((m, 32)).astype(np.float32)
    own = rng.standard_normal((classes, 32)).astype(np.float32)
    rows, owners = own[np.arange(users) % classes], np.arange(users)
    more: dict[str, Any] = {}
    if classes > 1:
        more = {"classes": np.arange(m) % classes, "sample_classes": np.arange(users) % classes}
    total = shard_scores(rows, owners, candidates, bound=1.0, samples_cap=1, **more)
    expected = users / math.sqrt(m * classes)
    assert math.sqrt((total**2).mean()) == pytest.approx(expected, rel=1e-3)


def test_bytes_are_those_of_the_wire(tmp_path: Path) -> None:
    config = load_config(ROOT / "configs" / "docstrings-demo.toml")
    rows = np.random.default_rng(1).standard_normal((384, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    real = Query.votes(rows, bound=1.0, model="").packed[0].nbytes
    assert question_bytes(config, 384, 384) == pytest.approx(real, rel=0.01)
    # What a committed run of the demo's users sent; keys and shares come on top of it.
    run = json.loads(
        (ROOT / "docs" / "results" / "dp-fedavg-epsilon7.58-seed0.json").read_text("utf-8")
    )
    plan = planned(load_config(ROOT / "configs" / "dp-fedavg-demo.toml"), tmp_path / "run")
    assert plan.exchange.up is not None and plan.exchange.down is not None
    assert 0 <= run["bytes_up_per_user_round"] - plan.exchange.up < 2000
    assert plan.exchange.down == pytest.approx(run["bytes_down_per_user_round"], rel=0.02)
    assert plan.exchange.coordinates == run["parameters"]


def test_unknown_models_are_said_to_be_unknown(tmp_path: Path) -> None:
    settings = {"models.downstream": "somebody/unheard-of", "models.generator": "no/such"}
    fedavg = load_config(ROOT / "configs" / "dp-fedavg-test.toml", {"models.downstream": "a/b"})
    plan = planned(fedavg, tmp_path / "run")
    assert plan.exchange.up is None and plan.stages[-1].seconds is None
    assert "unknown" in plans.described(plan) and plan.signal.ratio > 0
    assert trained(fedavg, None) == (None, None)
    demo = planned(
        load_config(ROOT / "configs" / "docstrings-demo.toml", settings), tmp_path / "run"
    )
    expansion = next(stage for stage in demo.stages if stage.stage == "expansion")
    assert expansion.seconds is None and "models.generator" in expansion.unknown[0]
    assert "without expansion" in plans.described(demo)


def test_topics_travel_in_every_round_only_where_texts_are_learned_by_them(tmp_path: Path) -> None:
    """Clusters of resampled text are asked about once, after the rounds."""
    path, plain = ROOT / "configs" / "ctcl-test.toml", {"ctcl.condition": "none"}
    own = planned(load_config(path), tmp_path / "run").exchange
    resampled = planned(load_config(path, {**plain, "ctcl.resample-pool": 60}), tmp_path / "run")
    without = load_config(path, {**plain, "ctcl.histogram": False})
    none = planned(without, tmp_path / "run").exchange
    assert none.once == 0 < resampled.exchange.once == own.once
    assert resampled.exchange.down == none.down == own.down - own.once
    assert " once for the histogram" in plans.described(resampled)


def test_memory_that_is_not_there_names_a_key(tmp_path: Path) -> None:
    model = {"models.generator": "meta-llama/Llama-2-7b-hf"}
    plan = planned(load_config(ROOT / "configs" / "docstrings-demo.toml", model), tmp_path / "run")
    [line] = [f.text for f in plan.findings if "of memory" in f.text]
    assert line.startswith("generation by models.generator needs more than 25.1 GiB of memory")
    assert "a smaller models.generator" in line and not plan.ready


def test_timed_work_is_told_without_at_least(tmp_path: Path) -> None:
    config = load_config(ROOT / "configs" / "dp-fedavg-demo.toml")
    plan = planned(config, tmp_path / "run")
    tasks = recipe_of(config).work(config)
    speeds = {speed_key(t, s): 1e4 for t in tasks if (s := size_of(t.model, config)) is not None}
    timed = planned(config, tmp_path / "run", replace(BOX, speeds=speeds))
    assert "at least" in plans.described(plan)
    assert "at least" not in plans.described(timed).partition("stages")[2]


def test_real_nodes_do_their_own_work(tmp_path: Path) -> None:
    plan = planned(load_config(ROOT / "configs" / "deployment-example.toml"), tmp_path / "run")
    assert all(stage.node_seconds == 0 for stage in plan.stages)
    assert plan.exchange.first_seconds and "simulated nodes" not in plans.described(plan)


def test_the_command(place: Path) -> None:
    before = set(place.iterdir())
    result = CliRunner().invoke(app, ["plan", "run.toml", "--json", "--set", "rounds=3"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["ready"] and told["privacy"]["releases"] == 4
    assert {path.name for path in set(place.iterdir()) - before} == {"cache"}
    assert {path.name for path in (place / "cache").iterdir()} == {"speeds.json", "speeds.lock"}
    text = CliRunner().invoke(app, ["plan", "run.toml"]).stdout
    assert text.startswith("privacy: epsilon ") and "ready to run" in text
    assert "the ratio is the signal in standard deviations of the noise" in text
    assert "do not tell whether public text is of the users' domain" in text
    tiny = CliRunner().invoke(app, ["plan", "run.toml", "--set", "models.generator=tiny"]).stdout
    assert "warning: expand.samples = 0: the result is the seeds" in tiny
    assert "ready to run" not in tiny
    Path("users.jsonl").unlink()
    missing = CliRunner().invoke(app, ["plan", "run.toml"])
    assert missing.exit_code == 0 and "refused here: " in missing.stdout
    wrong = CliRunner().invoke(app, ["plan", "run.toml", "--set", "epsilom=3"])
    assert wrong.exit_code == 2 and "epsilon" in wrong.stderr


def test_too_few_users_are_warned_of_with_what_it_takes(tmp_path: Path) -> None:
    config = load_config(ROOT / "configs" / "docstrings-demo.toml", {"data.users": 140})
    plan = planned(config, tmp_path / "run")
    assert plan.signal is not None and not plan.signal.readable and plan.ready
    (found,) = [one.text for one in plan.findings if "times the noise" in one.text]
    assert found in plans.described(plan) and "ready to run" not in plans.described(plan)
    users, epsilon = re.findall(r"about ([\d,]+) users .* epsilon = ([\d.]+) at", found)[0]
    for name, value in (("data.users", int(users.replace(",", ""))), ("epsilon", float(epsilon))):
        for share, enough in ((1.0, True), (0.9, False)):
            other = config.flat() | {name: type(value)(share * value)}
            assert signal_of(RunConfig.from_flat(other), None).readable is enough, name
    more = planned(load_config(ROOT / "configs" / "docstrings-demo.toml"), tmp_path / "more")
    assert not any("times the noise" in one.text for one in more.findings)


def test_values_beside_each_other(place: Path) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(app, ["plan", "run.toml", *words])

    rows = json.loads(run("--vary", "epsilon=1,3,7.58", "--json").stdout)
    assert [row["value"] for row in rows] == ["1", "3", "7.58"]
    assert [row["epsilon"] <= float(row["value"]) * 1.0001 for row in rows] == [True] * 3
    assert rows[0]["noise_std"] > rows[1]["noise_std"] > rows[2]["noise_std"]
    assert rows[0]["ratio"] < rows[1]["ratio"] < rows[2]["ratio"] and rows[0]["bytes_up"] > 0
    table = run("--vary", "data.users=10,20").stdout
    assert "data.users" in table and "signal / noise" in table and "readable from 1.96" in table
    for wrong in ("epsilon", "epsilom=1,2", "epsilon="):
        assert run("--vary", wrong).exit_code == 2


def test_texts_longer_than_the_embedder_reads_are_counted(place: Path) -> None:
    rows = [{"user_id": n, "text": "word " * (400 if n < 7 else 4) + str(n)} for n in range(60)]
    write(place / "users.jsonl", rows)
    config = absolute_paths(load_config(place / "run.toml"), place / "run")
    assert list(long_texts(config)) == []  # n-grams are of the whole text
    models = config.models.model_copy(update={"embedder": "minilm"})
    config = config.model_copy(update={"models": models})
    [found] = long_texts(config)
    assert not found.fatal and "7 of 60 texts are longer than the 256 tokens" in found.text
    assert "data.chunk = true" in found.text
    # Public texts are read as the run cuts them.
    (place / "public.jsonl").write_text((place / "users.jsonl").read_text())
    assert [one.text for one in long_texts(config)] == [found.text]
    data = config.data.model_copy(update={"sample_words": 300})
    _, cut = long_texts(config.model_copy(update={"data": data}))
    assert "data.public-path" in cut.text and "lower data.sample-words" in cut.text


def test_a_weak_nodes_one_vote_is_in_the_plan(tmp_path: Path) -> None:
    config = load_config(ROOT / "configs" / "resource-adaptive-test.toml")
    plan = planned(config, tmp_path / "run")
    vote, text = plan.as_dict()["weak_vote"], plans.described(plan)
    texts, users = 3 * 24, 21  # pool x expand.samples; half of 42
    (phase,) = [one for one in plan.phases if one.group == "weak"]
    assert vote["noise"] == phase.multiplier and vote["users"] == users
    assert vote["ratio"] == pytest.approx(users * 8**0.5 / texts / phase.multiplier)
    assert texts * 64 < vote["down"] < 2 * texts * 64 and texts <= vote["up"] <= 8 * texts
    assert "\na weak node, once: down 5.42 kB, up 216 bytes; noise 0.2169, signal" in text
    assert "21 users x 2 rounds in the sum" in text and "topics: 1 round, at most" in text
    assert "on 3 weak nodes with 21 users" in text


def test_other_methods_have_no_weak_nodes(tmp_path: Path) -> None:
    plan = planned(load_config(ROOT / "configs" / "dp-fedavg-test.toml"), tmp_path / "run")
    assert plan.as_dict()["weak_vote"] is None and "weak node" not in plans.described(plan)


# What a run would start beside Flower


POPRI: dict[str, Scalar] = {
    "method": "popri",
    "models.generator": "owner/model",
    "generation.backend": "vllm",
    "generation.vllm-python": "/opt/vllm/bin/python",
    "generation.vllm-arguments": "--max-model-len 2048",
}


def popri(**keys: Scalar) -> RunConfig:
    return RunConfig.from_flat({**POPRI, **keys})


def test_servers_over_gpus_and_the_launcher() -> None:
    many: dict[str, Any] = {
        "generation.vllm-replicas": 2,
        "generation.vllm-tensor-parallel": 4,
        "models.training-processes": 8,
        "models.accelerate-arguments": "--gpu_ids all",
    }
    one, two, training = launches(popri(**many), "cuda")
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
    (alone,) = launches(popri(), "cuda")
    assert alone.environment == {} and "--tensor-parallel-size" not in alone.command
    assert "--enforce-eager" in launches(popri(), "cpu")[0].command


def test_nothing_is_started_that_is_not_used() -> None:
    assert launches(popri(**{"generation.base-url": "http://127.0.0.1:1"}), "cuda") == []
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
