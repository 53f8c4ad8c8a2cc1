"""Starting, watching and ending a server process; a stand-in plays vLLM (the real: tests/vllm). The
key that vLLM's server asks for on every path."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.text.models.adapters import AdapterError, Base
from privsyn_flower.text.models.pretrained import ModelUnavailableError
from privsyn_flower.text.protocols import AdaptableGenerator
from privsyn_flower.text.serving import http_client
from privsyn_flower.text.serving.http_client import ServerError
from privsyn_flower.text.serving.vllm_server import (
    SERVED,
    SERVED_FILES,
    VllmGenerator,
    VllmServer,
    default_python,
    max_lora_rank,
)
from tests.rigs.vllm_server import (
    eventually,
    mood,
    stand_in,  # noqa: F401
    started,
    write_adapter,
)


@pytest.fixture
def server(stand_in: Path, tmp_path: Path) -> Iterator[VllmServer]:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"0")
    found = VllmServer(model, log=tmp_path / "log" / "vllm.log", python=stand_in, lora_rank=9)
    yield found
    found.close()


@pytest.fixture
def generator(server: VllmServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[VllmGenerator]:
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.2)  # a death takes a moment to be seen
    found = VllmGenerator(server, concurrency=2, retries=2, progress=False)
    yield found
    found.close()


def pids(stand_in: Path) -> list[int]:
    """Of the servers that began; none of one that was killed before."""
    file = stand_in.parent / "pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] != b"Z"
    except OSError:
        return False


def complete(generator: VllmGenerator) -> list[list[str]]:
    return generator.complete(["p", "q", "r"], 1, np.random.default_rng(0))


def test_started_at_first_use_and_ended_by_close(
    generator: VllmGenerator, server: VllmServer, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(generator, AdaptableGenerator)
    monkeypatch.setenv("PYTHONPATH", "/of/ours")
    generator.rest()
    assert started(stand_in) == []
    assert complete(generator) == [["base"]] * 3
    complete(generator)
    ((command, environment),) = started(stand_in)  # one engine
    assert command[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    options = dict(itertools.pairwise(command))
    assert options["--model"] == server.model
    assert options["--served-model-name"] == SERVED
    assert options["--host"] == "127.0.0.1"
    assert options["--max-lora-rank"] == "16"
    assert options["--dtype"] == "float32"
    assert {"--enable-lora", "--enable-prefix-caching", "--enforce-eager"} <= set(command)
    assert "--enable-sleep-mode" not in command
    assert environment["PYTHONPATH"] == str(SERVED_FILES)
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert environment["VLLM_SERVER_DEV_MODE"] == environment["VLLM_NO_USAGE_STATS"] == "1"
    assert server.api_key not in " ".join(command)  # a command line is for everyone to read
    alive = pids(stand_in)
    assert len(alive) == 2 and all(map(running, alive))
    generator.close()
    generator.close()
    assert eventually(lambda: not any(map(running, alive)))


def test_on_a_gpu(stand_in: Path, tmp_path: Path) -> None:
    mood(stand_in, "cuda")
    server = VllmServer(
        tmp_path, log=tmp_path / "l", python=stand_in,
        arguments="--max-model-len 256 --dtype 'half'",
    )  # fmt: skip
    try:
        assert server.ensure()
        assert not server.ensure()
    finally:
        server.close()
    ((command, _),) = started(stand_in)
    assert "--enable-sleep-mode" in command
    assert "--enforce-eager" not in command
    assert command[-4:] == ["--max-model-len", "256", "--dtype", "half"]  # last: they win


def test_ends_when_the_run_is_killed(stand_in: Path, tmp_path: Path) -> None:
    """SIGKILL to the process that started it: nobody is left to clean up."""
    program = (
        "import sys, time; from pathlib import Path\n"
        "from privsyn_flower.text.serving.vllm_server import VllmServer\n"
        f"server = VllmServer({str(tmp_path)!r}, log=Path({str(tmp_path / 'l')!r}), "
        f"python=Path({str(stand_in)!r}))\n"
        "server.ensure(); print(server._process.pid, flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        supervisor = int(run.stdout.readline())
        alive = [supervisor, *pids(stand_in)]
        assert len(alive) == 3 and all(map(running, alive))
        run.send_signal(signal.SIGKILL)
    assert eventually(lambda: not any(map(running, alive)))


def test_a_server_that_dies_is_started_again_once(
    generator: VllmGenerator, stand_in: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    generator.use_adapter(write_adapter(tmp_path / "adapter", generator.server.base()))
    first = pids(stand_in)
    mood(stand_in, "crashes")
    with caplog.at_level(logging.WARNING):
        found = complete(generator)
    # In the middle of a call, with the adapter in use.
    assert {text for (text,) in found} == {generator._slot.name()}
    assert found[0][0].startswith("privsyn-")
    assert "started again, once" in caplog.text
    assert len(started(stand_in)) == 2
    assert eventually(lambda: not any(map(running, first)))
    mood(stand_in, "always-crashes")
    with pytest.raises(ServerError, match="died again"):
        complete(generator)
    assert len(started(stand_in)) == 2


def test_adapters_of_another_base_are_refused(generator: VllmGenerator, tmp_path: Path) -> None:
    other = write_adapter(tmp_path / "other", Base("llama", "0123"))
    with pytest.raises(AdapterError, match=r"'llama'.*models.generator"):
        generator.use_adapter(other)
    with pytest.raises(AdapterError, match=r"is no adapter"):
        generator.use_adapter(tmp_path / "nothing")
    assert not generator.server.starts


def test_a_server_that_does_not_start(server: VllmServer, stand_in: Path) -> None:
    mood(stand_in, "dies")
    with pytest.raises(ServerError, match=r"did not start") as raised:
        server.ensure()
    text = str(raised.value)
    assert "ValueError: no kernel for this model" in text
    assert "INFO loading" not in text
    assert str(server.log) in text
    assert eventually(lambda: not any(map(running, pids(stand_in))))


def test_a_server_that_takes_too_long(stand_in: Path, tmp_path: Path) -> None:
    mood(stand_in, "unhealthy")
    server = VllmServer(tmp_path, log=tmp_path / "l", python=stand_in, start_timeout=1.5)
    with pytest.raises(ServerError, match=r"generation.start-timeout = 1.5 s"):
        server.ensure()
    assert eventually(lambda: not any(map(running, pids(stand_in))))


def test_environments_without_vllm(stand_in: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"generation.vllm-python = .*make vllm"):
        VllmServer(tmp_path, log=tmp_path / "l", python=tmp_path / "nothing")
    server = VllmServer(tmp_path, log=tmp_path / "l", python=stand_in)
    mood(stand_in, "no-vllm")
    with pytest.raises(ModelUnavailableError, match=r"no package vllm.*make vllm"):
        server.ensure()
    mood(stand_in, "broken")
    with pytest.raises(ModelUnavailableError, match=r"No module named 'torch'"):
        server.ensure()
    assert started(stand_in) == []


def test_model_folders_that_are_not_there(stand_in: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"models.generator"):
        VllmServer(tmp_path / "model", log=tmp_path / "l", python=stand_in)
    assert VllmServer("owner/name", log=tmp_path / "l", python=stand_in).model == "owner/name"


def test_the_environment_beside_ours_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the current folder is: Flower starts the server's process in one of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "clone" / ".venv"))
    assert default_python() == tmp_path / ".venv-vllm" / "bin" / "python"
    for folder in ("clone", "."):
        python = tmp_path / folder / ".venv-vllm" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
        assert default_python() == python


def test_ranks() -> None:
    assert [max_lora_rank(rank) for rank in (1, 2, 4, 8, 9, 16, 400, 512)] == [
        1, 8, 8, 8, 16, 16, 512, 512
    ]  # fmt: skip
    for wrong in (0, 513):
        with pytest.raises(ValueError, match=rf"popri.lora-rank = {wrong}"):
            max_lora_rank(wrong)


def test_the_environment_is_ours_otherwise(
    server: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    found: dict[str, Any] = server.environment()
    assert (found["HF_HUB_OFFLINE"], found["VLLM_CPU_KVCACHE_SPACE"]) == ("1", "7")
    assert found["PATH"] == os.environ["PATH"]


def answered_by_middleware(
    monkeypatch: pytest.MonkeyPatch, path: str, header: bytes | None, kind: str = "http"
) -> list[Any]:
    """What a request gets: ["app"] when it was let through, else the messages sent."""
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    spec = importlib.util.spec_from_file_location(
        "privsyn_require_key", SERVED_FILES / "privsyn_require_key.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append("app")

    async def send(message: Any) -> None:
        seen.append(message)

    headers = [(b"host", b"127.0.0.1")] + ([(b"authorization", header)] if header else [])
    scope = {"type": kind, "path": path, "headers": headers}
    asyncio.run(module.RequireKey(app)(scope, None, send))
    return seen


@pytest.mark.parametrize("path", ["/sleep", "/collective_rpc", "/v1/completions", "/health/x"])
@pytest.mark.parametrize("header", [None, b"Bearer wrong", b"secret", b"Bearer secret2"])
def test_without_the_key(monkeypatch: pytest.MonkeyPatch, path: str, header: bytes | None) -> None:
    seen = answered_by_middleware(monkeypatch, path, header)
    assert seen[0]["status"] == 401 and "app" not in seen


@pytest.mark.parametrize("path", ["/sleep", "/v1/completions"])
def test_with_the_key(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    assert answered_by_middleware(monkeypatch, path, b"Bearer secret") == ["app"]


def test_health_and_the_start_of_the_server_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered_by_middleware(monkeypatch, "/health", None) == ["app"]
    assert answered_by_middleware(monkeypatch, "", None, kind="lifespan") == ["app"]


def test_a_websocket_without_the_key_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = answered_by_middleware(monkeypatch, "/v1/realtime", None, kind="websocket")
    assert message["type"] == "websocket.close"


def test_vllms_interpreter_sees_nothing_else_of_ours() -> None:
    names = {path.stem for path in SERVED_FILES.glob("*.py")}
    assert names == {"privsyn_require_key"}
    assert not names & set(sys.stdlib_module_names)
