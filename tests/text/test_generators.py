"""Completions: equal to a cache-free loop, deterministic, stopped at the marker."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.models.decoding import CACHES, STOP_EVERY, choose_tokens, shared_prefix
from privsyn_flower.text.models.devices import map_batches
from privsyn_flower.text.models.pretrained import load_model, load_tokenizer
from privsyn_flower.text.prompts import HEADING, expand_prompt
from privsyn_flower.text.protocols import Answering, Sampling

from .conftest import SENTENCES, make_tokenizer

torch = pytest.importorskip("torch")

PROMPTS = [expand_prompt(["a b", "c d e"]), "Return", "", SENTENCES[1], SENTENCES[0]]


@pytest.fixture(scope="module")
def generator(causal_folder: Path) -> HuggingFaceGenerator:
    return HuggingFaceGenerator(causal_folder, max_tokens=20, device="cpu", progress=False)


def plain_loop(generator: HuggingFaceGenerator, prompt: str, uniforms: np.ndarray) -> str:
    """The same sampling without cache, padding or batches."""
    ids = generator.tokenizer(prompt)["input_ids"]
    new: list[int] = []
    for uniform in uniforms:
        logits = generator.model(input_ids=torch.tensor([ids + new])).logits[:, -1]
        token = int(choose_tokens(logits, torch.tensor([uniform]), banned=generator._banned))
        if token in generator._ends:
            break
        new.append(token)
    return generator.text(np.array(new))


def test_equals_the_plain_loop(generator: HuggingFaceGenerator) -> None:
    found = generator.complete(PROMPTS, 2, np.random.default_rng(3))
    draws = np.random.default_rng(3).random((len(PROMPTS), 2, 20), dtype=np.float32)
    expected = [
        [plain_loop(generator, prompt, u) for u in rows]
        for prompt, rows in zip(PROMPTS, draws, strict=True)
    ]
    assert found == expected
    assert len({text for row in found for text in row}) == 10


def causal_models(vocabulary: int) -> dict[str, Any]:
    import transformers as t

    common = {
        "vocab_size": vocabulary, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64,
        "max_position_embeddings": 200, "bos_token_id": 0, "eos_token_id": 1,
        "pad_token_id": None,
    }  # fmt: skip
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 200} | {
        k: common[k] for k in ("vocab_size", "bos_token_id", "eos_token_id")
    }
    return {
        "gpt2": t.GPT2LMHeadModel(t.GPT2Config(**gpt2)),
        "mistral": t.MistralForCausalLM(t.MistralConfig(sliding_window=24, **common)),
        "qwen2": t.Qwen2ForCausalLM(t.Qwen2Config(**common)),
    }


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_the_cache_has_the_name_that_the_model_gives_it(
    name: str, causal_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries rename it: an argument left out would make each token a text's first."""
    found: dict[str, Any] = {}

    def load(*arguments: Any) -> Any:
        model = load_model(*arguments)
        own, names = model.forward, ("input_ids", "attention_mask", "position_ids", name)
        given = next(one for one in CACHES if one in inspect.signature(own).parameters)

        def renamed(**inputs: Any) -> Any:
            found[name] = inputs.get(name)
            return own(**{given if key == name else key: v for key, v in inputs.items()})

        kinds = [inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY) for one in names]
        renamed.__signature__ = inspect.Signature(kinds)  # type: ignore[attr-defined]
        model.forward = renamed
        return model

    monkeypatch.setattr("privsyn_flower.text.generators.load_model", load)
    generator = HuggingFaceGenerator(causal_folder, max_tokens=6, device="cpu", progress=False)
    texts = generator.complete(PROMPTS[1:2], 1, np.random.default_rng(5))
    draws = np.random.default_rng(5).random((1, 1, 6), dtype=np.float32)[0, 0]
    assert found[name].get_seq_length() > 1
    assert texts == [[plain_loop(generator, PROMPTS[1], draws)]]


def test_a_model_without_a_cache_is_refused(
    causal_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: Any) -> Any:
        model = load_model(*arguments)
        model.forward = lambda input_ids, attention_mask: None
        return model

    monkeypatch.setattr("privsyn_flower.text.generators.load_model", load)
    with pytest.raises(ValueError, match=r"models\.generator: LlamaForCausalLM takes no cache"):
        HuggingFaceGenerator(causal_folder, device="cpu")


@pytest.fixture(scope="module", params=["gpt2", "mistral", "qwen2"])
def other(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> HuggingFaceGenerator:
    """Learned positions, a sliding window shorter than the prompt, biases."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = make_tokenizer(folder, masked=False)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        causal_models(len(tokenizer))[request.param].save_pretrained(folder)
    return HuggingFaceGenerator(folder, max_tokens=12, device="cpu", progress=False)


def test_other_architectures(other: HuggingFaceGenerator) -> None:
    found = other.complete(PROMPTS, 1, np.random.default_rng(5))
    draws = np.random.default_rng(5).random((len(PROMPTS), 1, 12), dtype=np.float32)
    for prompt, rows, texts in zip(PROMPTS, draws, found, strict=True):
        if prompt:
            assert texts == [plain_loop(other, prompt, rows[0])]


def test_deterministic_and_independent_of_batches(
    generator: HuggingFaceGenerator, causal_folder: Path
) -> None:
    state = torch.get_rng_state()
    found = generator.complete(PROMPTS, 3, np.random.default_rng(0))
    assert found == generator.complete(PROMPTS, 3, np.random.default_rng(0))
    assert found != generator.complete(PROMPTS, 3, np.random.default_rng(1))
    small = HuggingFaceGenerator(
        causal_folder, max_tokens=20, batch_size=4, device="cpu", progress=False
    )
    assert found == small.complete(PROMPTS, 3, np.random.default_rng(0))
    assert torch.get_rng_state().equal(state), "a global seed was used"


def test_an_answer_has_a_sampling_and_a_seed_of_its_own(
    generator: HuggingFaceGenerator, causal_folder: Path
) -> None:
    sampling = Sampling(12, temperature=0.7, top_p=0.9, top_k=20)
    assert isinstance(generator, Answering)
    found = generator.answer(PROMPTS, sampling, [5, 6, 7, 8, 9])
    # Whatever else is asked at the time, and however the object itself is set.
    other = HuggingFaceGenerator(
        causal_folder, temperature=3.0, max_tokens=5, stop=(found[1].text[:1],), batch_size=1,
        device="cpu", progress=False,
    )  # fmt: skip
    assert other.answer(PROMPTS[1:2], sampling, [6]) == found[1:2]
    assert other.answer(PROMPTS[1:2], sampling, [7]) != found[1:2]
    for prompt, reply in zip(PROMPTS, found, strict=True):
        assert reply.prompt_tokens == max(1, len(generator.tokenizer(prompt)["input_ids"]))
        assert reply.tokens is not None and 0 < reply.tokens <= 12
    assert (other.temperature, other.max_tokens) == (3.0, 5)
    # When all rows of a batch end before the stop strings are looked for.
    assert (~other.stopped(np.zeros((0, 3), dtype=np.int64))).dtype == np.bool_
    likeliest = Sampling(6, temperature=0.0)
    texts = [reply.text for reply in generator.answer(PROMPTS, likeliest, [1, 2, 3, 4, 5])]
    assert texts == [reply.text for reply in generator.answer(PROMPTS, likeliest, [9, 8, 7, 6, 5])]
    ids = generator.tokenizer(PROMPTS[0])["input_ids"]
    logits = generator.model(input_ids=torch.tensor([ids])).logits[0, -1]
    first = int(logits.masked_fill(generator._banned, -torch.inf).argmax())
    assert texts[0] is not None and texts[0].startswith(generator.tokenizer.decode([first])[:1])
    with pytest.raises(ValueError, match=r"max_tokens = 200: .* context of 200 tokens"):
        generator.answer(["a"], Sampling(200), [1])
    with pytest.raises(ValueError, match="top_k at least 0"):
        Sampling(1, top_k=-1)


def test_specials_are_not_generated(generator: HuggingFaceGenerator) -> None:
    banned = set(torch.nonzero(generator._banned).flatten().tolist())
    size = len(generator.tokenizer)
    assert banned == {generator.tokenizer.bos_token_id, *range(size, size + 8)}


class Script:
    """Stands in for the sampling: completion r follows script r, then filler."""

    def __init__(self, generator: HuggingFaceGenerator, scripts: list[str], filler: str) -> None:
        encode = generator.tokenizer
        self.filler = encode(filler, add_special_tokens=False)["input_ids"][0]
        self.scripts = [encode(text, add_special_tokens=False)["input_ids"] for text in scripts]
        self.ends = generator.tokenizer.eos_token_id
        self.steps: list[int] = [0] * len(scripts)
        self.widths: list[int] = []

    def choose(self, logits: Any, uniforms: np.ndarray, seen: Any = None) -> np.ndarray:
        """The uniform of row r is r / 100, which says whose turn it is."""
        self.widths.append(len(uniforms))
        tokens = []
        for row in np.rint(uniforms * 100).astype(int):
            script, step = self.scripts[row], self.steps[row]
            tokens.append(script[step] if step < len(script) else self.filler)
            self.steps[row] += 1
        return np.array(tokens, dtype=np.int64)


class Fixed:
    """A numpy generator's `random` for Script."""

    def random(self, shape: tuple[int, int, int], dtype: type) -> np.ndarray:
        rows = np.arange(shape[0] * shape[1], dtype=dtype) / 100
        return np.broadcast_to(rows.reshape(shape[0], shape[1], 1), shape).copy()


def test_rows_stop_at_the_marker_and_leave_the_batch(
    generator: HuggingFaceGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = [f"A short text about tea.\n{HEADING} 5\nmore", "tea", f" {HEADING}", "river bank"]
    script = Script(generator, scripts, " the")
    monkeypatch.setattr(generator, "choose", script.choose)
    monkeypatch.setattr(generator, "max_tokens", 60)
    found = generator.complete(["x y"] * 4, 1, Fixed())  # type: ignore[arg-type]
    assert found[0] == ["A short text about tea.\n"]
    assert found[2] == [" "]
    assert found[1][0].startswith("tea the the") and found[3][0].startswith("river bank the the")
    lengths = [len(s) for s in script.scripts]
    assert script.steps[2] <= lengths[2] + 2 * STOP_EVERY, "a stopped row went on"
    assert script.steps[0] <= lengths[0] + 2 * STOP_EVERY
    assert script.steps[1] == script.steps[3] == 60
    assert script.widths[0] == 4 and script.widths[-1] == 2, "stopped rows stay in the batch"


def test_end_of_text_ends_a_row(
    generator: HuggingFaceGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(generator, ["tea", "river bank near the fox"], " the")
    script.scripts[0].append(script.ends)
    monkeypatch.setattr(generator, "choose", script.choose)
    found = generator.complete(["x"], 2, Fixed())  # type: ignore[arg-type]
    assert found[0][0] == "tea"
    assert found[0][1].startswith("river bank near the fox the")
    assert script.widths[-1] == 1


def test_long_prompts_lose_their_beginning_and_say_so(
    generator: HuggingFaceGenerator, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = " ".join(SENTENCES * 4)
    with caplog.at_level("WARNING"):
        found = generator.complete([prompt, "tea"], 1, np.random.default_rng(0))
    assert "1 of 2 prompts exceed 180 tokens" in caplog.text
    assert len(found) == 2


def test_wrong_arguments(causal_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"max-tokens = 200.*context of 200"):
        HuggingFaceGenerator(causal_folder, max_tokens=200)
    with pytest.raises(ValueError, match=r"expand\.temperature = -1"):
        HuggingFaceGenerator(causal_folder, temperature=-1)
    with pytest.raises(ValueError, match="stop"):
        HuggingFaceGenerator(causal_folder, stop="one string")
    with pytest.raises(RuntimeError, match=r"models\.generator.*no such model folder"):
        HuggingFaceGenerator(tmp_path / "missing")


def test_no_prompts(generator: HuggingFaceGenerator) -> None:
    assert generator.complete([], 2, np.random.default_rng(0)) == []
    with pytest.raises(ValueError, match="n = 0"):
        generator.complete(["a"], 0, np.random.default_rng(0))


def test_threads_do_not_change_the_text(causal_folder: Path) -> None:
    """Batches side by side give what one thread gives, and leave the thread count as it was."""
    generator = HuggingFaceGenerator(
        causal_folder, max_tokens=12, batch_size=2, device="cpu", progress=False
    )
    prompts = PROMPTS * 3
    alone = generator.complete(prompts, 1, np.random.default_rng(2))
    torch.set_num_threads(2)
    try:
        together = generator.complete(prompts, 1, np.random.default_rng(2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert alone == together


def test_errors_in_a_worker_reach_the_caller() -> None:
    def work(item: int) -> int:
        if item == 2:
            raise MemoryError(f"batch {item}")
        return item

    torch.set_num_threads(2)
    try:
        done = map_batches(work, list(range(6)), "cpu")
        assert [next(done), next(done)] == [0, 1]
        with pytest.raises(MemoryError, match="batch 2"):
            next(done)
        assert torch.get_num_threads() == 2
        assert list(map_batches(work, [], "cpu")) == []
    finally:
        torch.set_num_threads(1)


def test_a_chat_template_frames_the_prompt(causal_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(causal_folder, tmp_path / "chat")
    tokenizer = load_tokenizer(tmp_path / "chat", "models.generator")
    tokenizer.chat_template = (
        "<s>{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[model]"
    )
    tokenizer.save_pretrained(tmp_path / "chat")
    options: dict[str, Any] = {"max_tokens": 5, "device": "cpu", "progress": False}
    framed = HuggingFaceGenerator(tmp_path / "chat", chat=True, **options)
    plain = HuggingFaceGenerator(causal_folder, **options)
    before, after = tokenizer("[user] ")["input_ids"], tokenizer("\n[model]")["input_ids"][1:]
    assert before[0] == tokenizer.bos_token_id not in [*before[1:], *after]
    middle = tokenizer("Tea? <s>", add_special_tokens=False)["input_ids"]
    assert tokenizer.bos_token_id not in middle  # a prompt cannot end its turn
    assert framed._encode(["Tea? <s>"]) == [[*before, *middle, *after]]
    [cut] = framed._encode(["Tea " * 400])
    assert len(cut) == 200 - 5 and cut[: len(before)] == before and cut[-len(after) :] == after
    assert framed.complete(["Tea?"], 2, np.random.default_rng(1)) != plain.complete(
        ["Tea?"], 2, np.random.default_rng(1)
    )
    with pytest.raises(ValueError, match=r"generation\.chat.*no chat template"):
        HuggingFaceGenerator(causal_folder, chat=True, **options)


def test_a_prefix_that_prompts_share_is_read_once(
    other: HuggingFaceGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is as without it; a model with a sliding window, where places matter, has none."""
    prompts = [expand_prompt([text, "c d e"]) for text in (*SENTENCES[:3], "a b", "a b")]
    read: list[int] = []
    forward = other.forward

    def counted(ids: Any, *others: Any) -> Any:
        read.append(ids.numel())
        return forward(ids, *others)

    monkeypatch.setattr(other, "forward", counted)
    draws = np.random.default_rng(5).random((len(prompts), 2, 12), dtype=np.float32)
    found = other.complete(prompts, 2, np.random.default_rng(5))
    lengths = [len(other.tokenizer(prompt)["input_ids"]) for prompt in prompts]
    if other.model.config.model_type == "mistral":
        assert read[0] == max(lengths) * len(prompts)
    else:
        shared, others = read[0], read[1]
        assert shared > 8 and others == (max(lengths) - shared) * len(prompts)
    for prompt, rows, texts in zip(prompts, draws, found, strict=True):
        assert texts == [plain_loop(other, prompt, uniforms) for uniforms in rows]


def test_a_prefix_leaves_every_prompt_a_token() -> None:
    same = list(range(12))
    assert shared_prefix([same, same]) == 11
    assert shared_prefix([same, same[:10]]) == 9
    assert shared_prefix([same]) == 0 and shared_prefix([same[:5], same[:5]]) == 0
    assert shared_prefix([same, [*same[:8], 99, 98]]) == 8
    assert shared_prefix([same, [5, *same]]) == 0
