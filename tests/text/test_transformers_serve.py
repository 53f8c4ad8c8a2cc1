"""`transformers serve` on loopback: a real OpenAI-compatible server with the shipped generator."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import privsyn_flower
from privsyn_flower.text import HuggingFaceGenerator
from privsyn_flower.text.prompts import expand_prompt, parse_completion
from privsyn_flower.text.serving.http_client import ServerError
from privsyn_flower.text.serving.http_generator import OpenAIGenerator

transformers = pytest.importorskip("transformers")
if not transformers.utils.import_utils.is_serve_available():
    pytest.skip("`transformers serve` needs the package openai", allow_module_level=True)

pytestmark = pytest.mark.slow
NEW = 30
EXAMPLES = [
    "Return the mean of the array along the given axis.",
    "Fit the model to the training data.",
    'Café — a façade that isn\'t ASCII, with "quotes".',
]
PROMPTS = [
    expand_prompt(EXAMPLES[:2]), expand_prompt(EXAMPLES), "Return", "two\nlines\n", EXAMPLES[2]
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped generator, told to sample: this server takes that from the model's folder."""
    folder = tmp_path_factory.mktemp("serve") / "generator"
    shutil.copytree(Path(privsyn_flower.__file__).parent / "assets" / "generator", folder)
    settings = folder / "generation_config.json"
    found = json.loads(settings.read_text()) | {"do_sample": True, "top_k": 0}
    settings.write_text(json.dumps(found))
    return folder


@pytest.fixture(scope="module")
def address(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "serve.log"
    command = Path(sys.executable).with_name("transformers")
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                command, "serve", str(model), "--host", "127.0.0.1", "--port", str(port),
                "--device", "cpu", "--dtype", "float32",
            ],
            stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + 1500
        while True:
            try:
                opener.open(f"http://127.0.0.1:{port}/health", timeout=60).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def test_agrees_with_the_generator_in_process(address: str, model: Path) -> None:
    """The likeliest texts: same prompts, same tokens, same end, same sample read from them."""
    options = {"temperature": 1e-6, "max_tokens": NEW, "progress": False}
    there = OpenAIGenerator(address, str(model), concurrency=1, **options)  # type: ignore[arg-type]
    here = HuggingFaceGenerator(model, device="cpu", **options)  # type: ignore[arg-type]
    found = there.complete(PROMPTS, 1, np.random.default_rng(0))
    expected = here.complete(PROMPTS, 1, np.random.default_rng(0))
    assert found == expected
    assert sum(bool(text.strip()) for (text,) in found) >= 3
    parsed = [parse_completion(text, min_words=1) for (text,) in found]
    assert parsed == [parse_completion(text, min_words=1) for (text,) in expected]
    assert len(set(parsed)) > 2


def test_n_and_seeds(address: str, model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """This server ignores n and gives one completion; seeds say which, one request at a time."""
    generator = OpenAIGenerator(
        address, str(model), concurrency=1, max_tokens=8, stop=(), progress=False
    )
    first = generator.complete(PROMPTS[:2], 3, np.random.default_rng(1))
    assert [len(set(texts)) for texts in first] == [3, 3]
    assert generator.complete(PROMPTS[:2], 3, np.random.default_rng(1)) == first
    assert generator.complete(PROMPTS[:2], 3, np.random.default_rng(2)) != first
    assert caplog.text.count("prompts are repeated") == 1


def test_another_model_and_adapters_are_refused(address: str, model: Path) -> None:
    # The server may drop a connection, which is tried again; a refusal is not.
    generator = OpenAIGenerator(address, "another", retries=2, progress=False)
    with pytest.raises(ServerError, match=r"status 400 .*another"):
        generator.complete(["p"], 1, np.random.default_rng(0))
    with pytest.raises(ServerError, match=r"cannot be loaded into a server"):
        generator.use_adapter(model)
