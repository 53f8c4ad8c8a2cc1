"""The real vLLM in its own environment: adapters trained here, swapped in over its API."""

from __future__ import annotations

import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import privsyn_flower
from privsyn_flower.app.public.asking import Answer, Asker, Counts, Request
from privsyn_flower.text import HuggingFaceGenerator
from privsyn_flower.text.preference import PreferenceTrainer
from privsyn_flower.text.prompts import expand, expand_prompt
from privsyn_flower.text.serving.vllm_server import VllmGenerator, VllmServer

EXAMPLES = [
    "Return the mean of the array along the given axis, ignoring missing values.",
    "Fit the model to the training data and predict the labels of new samples.",
    "Read a table from a file and give the rows that satisfy the condition.",
    "Compute the inverse of a square matrix by an LU decomposition with pivoting.",
]
PROMPTS = [expand_prompt([a, b, c]) for a in EXAMPLES for b in EXAMPLES for c in EXAMPLES]
LONG = " ".join(EXAMPLES * 12) + "\n"  # more than the model's 512 tokens
TURN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"  # a template for chat
NEW, FEW = 24, 6  # tokens of a completion; prompts that most tests use


@pytest.fixture(scope="module")
def model() -> Path:
    return Path(privsyn_flower.__file__).parent / "assets" / "generator"


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    found = VllmServer(model, log=log, lora_rank=4, arguments=["--chat-template", TURN])
    yield found
    found.close()
    print(log.read_text()[-2000:])


@pytest.fixture(scope="module")
def generator(server: VllmServer) -> Iterator[VllmGenerator]:
    found = VllmGenerator(server, max_tokens=NEW, concurrency=8, progress=False)
    yield found
    found.close()


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters, each of one DPO step that is large enough to be seen in the text."""
    folder = tmp_path_factory.mktemp("adapters")
    found = []
    for number, (better, worse) in enumerate([(0, 1), (1, 0)]):
        texts = ["the fox and the dog", "Returns: numbers 1, 2, 3"]
        pairs = [
            {"prompt": prompt, "chosen": texts[better], "rejected": texts[worse]}
            for prompt in PROMPTS[:8]
        ]
        trainer = PreferenceTrainer(
            model, beta=0.1, learning_rate=0.05, epochs=1, batch_size=8, micro_batch_size=8,
            lora_rank=4, lora_alpha=8.0, device="cpu", progress=False,
        )  # fmt: skip
        (trained,) = trainer.train(pairs, start=None, work=folder / str(number), seed=number)
        found.append(trained.adapter)
    return found


def complete(
    generator: VllmGenerator, n: int = 2, prompts: list[str] = PROMPTS[:FEW]
) -> list[list[str]]:
    return generator.complete(prompts, n, np.random.default_rng(7))


def share(found: list[list[str]], expected: list[list[str]]) -> float:
    """Of texts that are equal. vLLM's last bits depend on what it computes together: where two
    tokens are all but equally likely, a text may turn out differently."""
    pairs = [
        (a, b) for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True)
    ]
    return sum(a == b for a, b in pairs) / len(pairs)


SAME, DIFFERENT = 0.8, 0.4


@pytest.fixture(scope="module")
def greedy(server: VllmServer) -> Iterator[VllmGenerator]:
    """A second client of the same server that takes the likeliest token."""
    found = VllmGenerator(server, temperature=1e-6, max_tokens=NEW, progress=False)
    yield found
    found.use_adapter(None)
    found.client.close()


def test_n_completions_that_depend_on_the_seed_alone(generator: VllmGenerator) -> None:
    first = complete(generator, n=5)
    assert [len(texts) for texts in first] == [5] * FEW
    assert all(len(set(texts)) == 5 for texts in first)
    assert share(complete(generator, n=5), first) >= SAME
    other = generator.complete(PROMPTS[:FEW], 5, np.random.default_rng(8))
    assert share(other, first) <= DIFFERENT


def test_swapping_adapters_and_back(generator: VllmGenerator, adapters: list[Path]) -> None:
    generator.use_adapter(None)
    base = complete(generator)
    changed = []
    for adapter in adapters:
        generator.use_adapter(adapter)
        changed.append(complete(generator))
        assert share(changed[-1], base) <= DIFFERENT
    assert share(*changed) <= DIFFERENT
    generator.use_adapter(None)
    assert share(complete(generator), base) >= SAME
    generator.use_adapter(adapters[0])
    assert share(complete(generator), changed[0]) >= SAME
    generator.use_adapter(None)


def test_the_same_function_as_transformers(
    greedy: VllmGenerator, adapters: list[Path], model: Path
) -> None:
    """Same tokens, adapter, stop and cut of a prompt that is too long: equal likeliest texts, and
    log-probabilities of the first token within 0.001."""
    import torch

    reference = HuggingFaceGenerator(
        model, temperature=1e-6, max_tokens=NEW, device="cpu", progress=False
    )
    prompts = [*PROMPTS[:12], LONG, "Return"]
    for adapter in (None, adapters[0], None):
        greedy.use_adapter(adapter)
        reference.use_adapter(adapter)
        found = greedy.complete(prompts, 1, np.random.default_rng(7))
        assert share(found, reference.complete(prompts, 1, np.random.default_rng(7))) >= SAME
        for prompt in (PROMPTS[0], "Return"):
            body = {"model": greedy._slot.name() or greedy.model, "prompt": prompt,
                    "max_tokens": 1, "temperature": 0, "logprobs": 5}  # fmt: skip
            (choice,) = greedy.client.post("/completions", body)["choices"]
            ids = torch.tensor([reference.tokenizer(prompt)["input_ids"]])
            logits = reference.model(ids).logits[0, -1].double()
            likeliest = torch.log_softmax(logits, -1).topk(5).values.tolist()
            (top,) = choice["logprobs"]["top_logprobs"]
            assert sorted(top.values(), reverse=True) == pytest.approx(likeliest, abs=1e-3)


def test_an_adapter_with_the_same_name_but_other_content(
    generator: VllmGenerator, adapters: list[Path], tmp_path: Path
) -> None:
    """A folder that is written again is another adapter: no cache may answer for the old one."""
    folder = tmp_path / "adapter"
    shutil.copytree(adapters[0], folder)
    generator.use_adapter(folder)
    first = complete(generator)
    shutil.rmtree(folder)
    shutil.copytree(adapters[1], folder)
    generator.use_adapter(folder)
    second = complete(generator)
    generator.use_adapter(adapters[1])
    assert share(complete(generator), second) >= SAME
    assert share(first, second) <= DIFFERENT
    generator.use_adapter(None)


def test_sleep_and_wake(generator: VllmGenerator, adapters: list[Path]) -> None:
    """vLLM on a CPU answers the calls and keeps its memory; text is what it was."""
    generator.use_adapter(adapters[0])
    before = complete(generator)
    generator.rest()
    generator.rest()
    assert share(complete(generator), before) >= SAME
    generator.use_adapter(None)


def test_shared_beginnings_are_computed_once(generator: VllmGenerator) -> None:
    complete(generator, prompts=PROMPTS[-2:])
    complete(generator, prompts=PROMPTS[-2:])
    address = generator.server.base_url.removesuffix("/v1") + "/metrics"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address) as answer:
        lines = answer.read().decode().splitlines()
    hits = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total")]
    assert hits and float(hits[0].split()[-1]) > 0


def test_expansion(generator: VllmGenerator) -> None:
    texts = expand(
        EXAMPLES, generator, samples=12, rng=np.random.default_rng(1), min_words=2, progress=False
    )
    assert len(set(texts)) == 12


def test_asked_many_questions(generator: VllmGenerator, tmp_path: Path) -> None:
    """Streamed and kept (`public.asking`): top-k, the likeliest token of a judge, what it costs."""
    generator.use_adapter(None)
    requests = [Request(prompt, 1 + i % NEW, note=i) for i, prompt in enumerate(PROMPTS[:24])]

    def asked(folder: str, temperature: float, top_k: int) -> tuple[Counts, list[str]]:
        options = {"name": "tiny", "temperature": temperature, "top_k": top_k}
        with Asker(generator, tmp_path / folder, **options, concurrency=8) as asker:
            found = {answer.request.note: answer for answer in asker.ask(requests)}
        assert all((found[i].tokens or 0) <= requests[i].max_tokens for i in range(24))
        return asker.counts, [str(found[i].text) for i in range(24)]

    counts, likeliest = asked("kept", 0.0, 0)
    assert (counts.sent, counts.failed) == (24, 0)
    assert counts.prompt_tokens > 24 * 20
    assert 24 <= counts.tokens <= sum(request.max_tokens for request in requests)
    again, texts = asked("kept", 0.0, 0)
    assert (again.sent, again.cached, texts) == (0, 24, likeliest)
    # However hot (vLLM takes up to 2), the likeliest of one token is the likeliest.
    hot = asked("kept", 2.0, 1)[1]
    assert share([hot], [likeliest]) >= SAME
    assert share([asked("kept", 2.0, 0)[1]], [likeliest]) <= DIFFERENT


def test_a_chain_of_questions(generator: VllmGenerator, tmp_path: Path) -> None:
    generator.use_adapter(None)

    def more(answer: Answer) -> list[Request]:
        depth = answer.request.note
        words = str(answer.text).split()[:2]
        return [Request(f"{PROMPTS[depth]} {w}", NEW, note=depth + 1) for w in words[: 3 - depth]]

    first = [Request(prompt, NEW, note=1) for prompt in PROMPTS[:4]]
    with Asker(generator, tmp_path, name="tiny", temperature=0.2, top_k=40, concurrency=8) as asker:
        found = list(asker.grow(first, more))
    depths = [answer.request.note for answer in found]
    assert depths.count(1) == 4 < len(found) and max(depths) == 3
    assert asker.counts.failed == 0


def test_in_a_chat_a_prompt_that_is_too_long_is_one_answer_less(
    server: VllmServer, tmp_path: Path
) -> None:
    """A server cuts no chat: it refuses, and the others are answered."""
    options = {"chat": True, "stop": (), "retries": 0, "progress": False}
    chat = VllmGenerator(server, **options)
    chat.client.base_url = server.base_url  # where it runs by now
    requests = [Request("Return the mean of", 4, note=0), Request(LONG * 3, 4, note=1)]
    with Asker(chat, tmp_path, name="tiny", temperature=0.0, concurrency=2) as asker:
        found = {answer.request.note: answer.text for answer in asker.ask(requests)}
    chat.client.close()
    assert found[0] and found[1] is None


def test_killed_and_started_again_with_its_adapter(
    generator: VllmGenerator, adapters: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    generator.use_adapter(adapters[0])
    before = complete(generator)
    process = generator.server._process
    assert process is not None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert share(complete(generator), before) >= SAME
    assert generator.server.starts == 2
    assert "started again, once" in caplog.text


def test_every_call_asks_for_the_key(server: VllmServer, generator: VllmGenerator) -> None:
    complete(generator)
    root = server.base_url.removesuffix("/v1")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for path in ("/sleep?level=1", "/wake_up", "/collective_rpc", "/v1/load_lora_adapter"):
        request = urllib.request.Request(root + path, data=b"{}", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            opener.open(request, timeout=30)
        assert refused.value.code == 401, path
