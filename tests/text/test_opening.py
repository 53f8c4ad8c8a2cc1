"""The generator that `[generation]` names, and several servers of one model."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.config.models import GenerationConfig
from privsyn_flower.text import HuggingFaceGenerator, opening
from privsyn_flower.text.models.adapters import Base
from privsyn_flower.text.opening import ReplicatedGenerator, open_generator
from privsyn_flower.text.protocols import AdaptableGenerator, Answering, Sampling
from privsyn_flower.text.serving import http_client
from privsyn_flower.text.serving.http_client import ServerError, adapter_name
from privsyn_flower.text.serving.http_generator import OpenAIGenerator
from privsyn_flower.text.serving.vllm_server import (
    VllmGenerator,
    VllmServer,
    gpu_environment,
    server_command,
)
from tests.rigs.http_generator import Body, Fake, choices
from tests.rigs.vllm_server import (
    STAND_IN,
    eventually,
    mood,
    stand_in,
    started,
    write_adapter,
)

SAMPLING = Sampling(9, temperature=0.3, top_p=0.8, top_k=40)


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ({}, HuggingFaceGenerator),
        ({"backend": "openai", "base_url": "http://127.0.0.1:9/v1"}, OpenAIGenerator),
        ({"backend": "vllm", "base_url": "http://127.0.0.1:9/v1"}, OpenAIGenerator),
        ({"backend": "vllm", "vllm_python": sys.executable}, VllmGenerator),
    ],
)
def test_every_backend(
    where: dict[str, Any], kind: type, causal_folder: Path, tmp_path: Path
) -> None:
    where = where | {"token_parameter": "max-completion-tokens", "leave_out": "seed, n"}
    found = open_generator(
        str(causal_folder), GenerationConfig(**where), SAMPLING, log=tmp_path / "log", device="cpu",
        stop=("x",), progress=False,
    )  # fmt: skip
    assert type(found) is kind
    assert isinstance(found, AdaptableGenerator)
    assert isinstance(found, Answering)
    told = (found.max_tokens, found.temperature, found.top_p, found.top_k, found.stop)
    assert told == (9, 0.3, 0.8, 40, ("x",))
    assert found.thinking_tag == "think"
    if isinstance(found, OpenAIGenerator):
        assert found.token_parameter == "max_completion_tokens"
        assert found.leave_out == {"seed", "n"}
        assert found.adapters == (where["backend"] == "vllm")
    found.close()


def test_a_hosted_server_has_an_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set base-url"):
        open_generator("m", GenerationConfig(backend="openai"), SAMPLING, log=tmp_path / "log")


__all__ = ["stand_in"]
PROMPTS = [f"p{i}" for i in range(24)]
COUNT = 3


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def end(fake: Fake) -> None:
    fake.server.shutdown()
    fake.server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.001)


@pytest.fixture
def fakes() -> Iterator[list[Fake]]:
    found = [Fake() for _ in range(COUNT)]
    yield found
    for fake in found:
        end(fake)


def together(fakes: list[Fake], **options: Any) -> ReplicatedGenerator:
    kept = {"progress": False, "timeout": 5.0, "retries": 1, "concurrency": 2} | options
    found = ReplicatedGenerator([OpenAIGenerator(fake.url, "m", **kept) for fake in fakes])
    assert isinstance(found, AdaptableGenerator) and isinstance(found, Answering)
    return found


def asked(fake: Fake) -> list[str]:
    return [body["prompt"] for body in fake.bodies()]


def test_requests_are_shared_and_are_those_of_one_server(fakes: list[Fake]) -> None:
    """Same prompts, seeds and answers in order as with one server, and each takes a part."""
    alone = OpenAIGenerator(fakes[0].url, "m", progress=False).complete(PROMPTS, 2, rng())
    sent = {body["prompt"]: body["seed"] for body in fakes[0].bodies()}
    fakes[0].asked.clear()
    gate = threading.Barrier(2 * COUNT)  # all servers have all they may have under way at once

    def slow(body: Body) -> Any:
        if body["prompt"] in PROMPTS[: 2 * COUNT]:
            gate.wait(5)
        return 200, choices(*(f"m|{body['prompt']}|{i}" for i in range(2)))

    for fake in fakes:
        fake.answers["/v1/completions"] = slow
    assert together(fakes).complete(PROMPTS, 2, rng()) == alone
    parts = [asked(fake) for fake in fakes]
    assert sorted(p for part in parts for p in part) == sorted(PROMPTS) and all(
        len(part) >= 2 for part in parts
    )
    assert {b["prompt"]: b["seed"] for f in fakes for b in f.bodies()} == sent


def test_a_busy_server_gets_no_more(fakes: list[Fake]) -> None:
    """Least under way: while one server sits on its requests, the others do all the rest."""
    release, few = threading.Event(), fakes[:2]

    def stuck(body: Body) -> Any:
        release.wait(5)
        return 200, choices("late")

    def last(body: Body) -> Any:
        if len(asked(few[1])) == len(PROMPTS) - 2:
            release.set()
        return 200, choices("x")

    few[0].answers["/v1/completions"], few[1].answers["/v1/completions"] = stuck, last
    result = together(few).complete(PROMPTS, 1, rng())
    assert release.is_set() and result.count(["late"]) == len(asked(few[0])) == 2


@pytest.mark.parametrize("how", ["gone", "broken", "hung"])
def test_requests_of_a_failed_server_go_to_the_others(
    fakes: list[Fake], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    wait = threading.Event()
    if how == "gone":
        end(fakes[1])
    elif how == "broken":
        fakes[1].answers["/v1/completions"] = lambda _: (500, {"error": "engine is dead"})
    else:
        fakes[1].answers["/v1/completions"] = lambda _: (wait.wait(5), (200, choices("y")))[1]
    generator = together(fakes, timeout=0.5 if how == "hung" else 5.0)
    with caplog.at_level(logging.WARNING):
        result = generator.complete(PROMPTS, 1, rng())
        again = generator.complete(PROMPTS, 1, rng())
    wait.set()
    assert result == again == [[f"m|{prompt}|0"] for prompt in PROMPTS]
    assert sorted({*asked(fakes[0]), *asked(fakes[2])}) == sorted(PROMPTS)
    (line,) = [r.getMessage() for r in caplog.records if "other server" in r.getMessage()]
    assert fakes[1].url in line and "2 other" in line
    # At most what was under way when it failed, with its retry where it still answered.
    assert len(asked(fakes[1])) <= {"gone": 0, "broken": 4, "hung": 2}[how]


def test_the_last_servers_failure_is_the_runs(fakes: list[Fake]) -> None:
    for fake in fakes:
        fake.answers["/v1/completions"] = lambda _: (503, {})
    with pytest.raises(ServerError, match="503"):
        together(fakes).complete(PROMPTS, 1, rng())


def test_a_refusal_is_no_failure_of_the_server(fakes: list[Fake]) -> None:
    for fake in fakes:
        fake.answers["/v1/completions"] = lambda _: (400, {"error": "no such thing"})
    generator = together(fakes, concurrency=1)
    with pytest.raises(ServerError, match="no such thing"):
        generator.answer(["p"], Sampling(8), [1])
    assert sum(len(fake.bodies()) for fake in fakes) == 1


def test_adapters_are_on_every_server_and_on_one_that_comes_back(
    fakes: list[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_adapter(tmp_path / "adapter", Base("m", ""))
    name = adapter_name(folder)
    broken = True
    for fake in fakes:
        fake.answers["/v1/load_lora_adapter"] = lambda _: (200, {})
        fake.answers["/v1/models"] = lambda _: (200, {"data": [{"id": name}]})
    fakes[2].answers["/v1/completions"] = lambda body: (
        (502, {}) if broken else (200, choices(body["model"]))
    )
    generator = together(fakes, adapters=True)
    generator.use_adapter(folder)
    assert [len(fake.bodies("/v1/load_lora_adapter")) for fake in fakes] == [1, 1, 1]
    generator.complete(PROMPTS, 1, rng())
    broken = False
    generator.complete(PROMPTS, 1, rng())
    assert len(fakes[2].bodies("/v1/load_lora_adapter")) == 1  # not looked for yet
    monkeypatch.setattr(opening, "LOOK_AGAIN", 0.0)
    fakes[2].asked.clear()
    generator.complete(PROMPTS, 1, rng())
    assert len(fakes[2].bodies("/v1/load_lora_adapter")) == 1
    assert {body["model"] for body in fakes[2].bodies()} == {name}


def test_configuration_says_how_many(tmp_path: Path, stand_in: Path) -> None:
    def opened(**keys: Any) -> Any:
        where = GenerationConfig(**keys)
        return open_generator(str(tmp_path), where, Sampling(8), log=tmp_path / "vllm.log")

    found = opened(backend="openai", base_url="http://127.0.0.1:1, http://127.0.0.1:2/v1")
    assert [replica.client.base_url for replica in found.replicas] == [
        "http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"
    ]  # fmt: skip
    four = opened(
        backend="vllm", vllm_python=str(stand_in), vllm_replicas=2, vllm_tensor_parallel=4
    )
    servers = [replica.server for replica in four.replicas]
    assert [server.gpus for server in servers] == [range(4), range(4, 8)]
    assert [server.log.name for server in servers] == ["vllm.log", "vllm-2.log"]
    one = opened(backend="vllm", vllm_python=str(stand_in))
    assert isinstance(one, VllmGenerator) and one.server.gpus is None
    with pytest.raises(ConfigError, match="base-url"):
        RunConfig.from_flat(
            {"generation.vllm-replicas": 2, "generation.backend": "vllm",
             "generation.base-url": "http://127.0.0.1:1"}
        )  # fmt: skip


def test_each_server_has_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_environment(range(2, 4), 4) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 6,GPU-ab,7")
    assert gpu_environment(range(2, 4), 4) == {"CUDA_VISIBLE_DEVICES": "GPU-ab,7"}
    assert gpu_environment(range(1, 2), 0) == {}  # a CPU has room for several
    for gpus, seen in ((range(4), 2), (range(1, 2), 1), (range(2), 0)):
        with pytest.raises(ServerError, match=f"sees {seen}"):
            gpu_environment(gpus, seen)
    options: dict[str, Any] = {"port": 1, "seed": 0, "lora_rank": 8, "arguments": []}
    words = server_command(Path("python"), "m", gpus=range(2, 4), cuda=True, **options)
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    for gpus, cuda in ((range(1), True), (None, True), (None, False)):
        words = server_command(Path("python"), "m", gpus=gpus, cuda=cuda, **options)
        assert "--tensor-parallel-size" not in words


def test_servers_of_the_run_die_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two real processes (stand-ins for vLLM) on GPUs of their own; one dies twice, for good."""
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.2)  # a death takes a moment to be seen
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    pythons = []
    for at in range(2):
        folder = tmp_path / f"env-{at}"
        folder.mkdir()
        pythons.append(folder / "python")
        text = STAND_IN.format(python="/usr/bin/env python3", folder=str(folder))
        pythons[-1].write_text(text.replace('"cuda": mood("cuda")', '"cuda": True, "gpus": 2'))
        pythons[-1].chmod(0o755)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"0")
    servers = [
        VllmServer(
            tmp_path / "model", log=tmp_path / f"{at}.log", python=python, gpus=range(at, at + 1)
        )
        for at, python in enumerate(pythons)
    ]
    options: dict[str, Any] = {"concurrency": 2, "retries": 2, "progress": False}
    generator = ReplicatedGenerator([VllmGenerator(server, **options) for server in servers])
    try:
        generator.use_adapter(write_adapter(tmp_path / "a", servers[0].base()))
        name = adapter_name(tmp_path / "a")
        assert generator.complete(PROMPTS, 1, rng()) == [[name]] * len(PROMPTS)
        mood(pythons[1], "always-crashes")
        monkeypatch.setattr(opening, "LOOK_AGAIN", 0.0)
        for _ in range(3):  # left out, started again once, left out for good
            assert generator.complete(PROMPTS, 1, rng()) == [[name]] * len(PROMPTS)
            eventually(lambda: not servers[1].alive())
        assert not servers[1].alive() and servers[0].alive()
        places = [started(python)[0][1]["CUDA_VISIBLE_DEVICES"] for python in pythons]
        assert places == ["0", "1"]
        assert [len(started(python)) for python in pythons] == [1, 2]
    finally:
        generator.close()
    assert not any(server.alive() for server in servers)
