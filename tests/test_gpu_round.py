"""benchmarks/gpu_round.py at its smallest size on a CPU: the phases run, the figures add up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
torch = pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = ["--device", "cpu", "--prompts", "6", "--completions", "3", "--texts", "10", "--steps", "2",
         "--max-tokens", "12", "--batch-size", "9"]  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_round

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield gpu_round
    torch.set_num_threads(before)
    for name in ("gpu_round", "random_llama"):
        sys.modules.pop(name, None)


@pytest.fixture
def llama(script: Any) -> Any:
    return sys.modules["random_llama"]


def recorded(script: Any, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Write down what the generator is asked to do."""
    for name in ("complete", "rest", "use_adapter"):
        real = getattr(script.HuggingFaceGenerator, name)

        def call(*args: Any, _name: str = name, _real: Any = real, **kwargs: Any) -> Any:
            calls.append(_name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(script.HuggingFaceGenerator, name, call)


def test_all_phases_and_their_figures(
    script: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "figures.json"
    calls: list[str] = []
    recorded(script, calls, monkeypatch)
    work = ["--work", str(tmp_path / "work")]
    script.main([*SMALL, *work, "--json", str(target)])
    found = json.loads(target.read_text("utf-8"))

    made = found["generation"]
    assert made["completions"] == 18
    assert 17 * 12 < made["new_tokens"] <= 18 * 12  # an end-of-text is a rare draw
    assert made["tokens_per_second"] == pytest.approx(
        made["new_tokens"] / made["seconds"], rel=1e-3
    )
    assert made["extrapolated_seconds"] == pytest.approx(1000 * made["seconds"], rel=1e-2)
    assert found["expansion"]["completions"] == 10

    training = found["dpo"]
    assert (training["steps"], training["pairs"]) == (2, 48)
    # Prompts of 215 tokens twice, responses of 64 with the next heading after each.
    assert training["tokens"] == 48 * (2 * 215 + 2 * (64 + 3))
    assert training["seconds"] > training["load"] + training["reference"] + training["step"] > 0

    # Engine, responses, expansion; to rest for DPO; awake before its rest is timed; two engines.
    handover = ["complete", "rest", "use_adapter", "complete"]
    assert calls == [*["complete"] * 3, "rest", *handover, *["complete"] * 2]

    ours, theirs = found["handover"], found["reference"]
    assert ours["seconds"] == pytest.approx(ours["rest"] + ours["back"], abs=1e-4)
    pieces = theirs["first"] + theirs["merge"] + theirs["second"]
    assert theirs["seconds"] == pytest.approx(pieces, abs=1e-4)
    assert theirs["ratio"] == pytest.approx(theirs["seconds"] / ours["seconds"], rel=1e-2)

    printed = capsys.readouterr().out
    assert "extrapolated, not measured: 18000 in" in printed
    assert f"{theirs['ratio']:.1f} times the hand-over" in printed
    assert not (tmp_path / "work" / "tiny-merged").exists()

    # One phase of its own, on what the work folder holds.
    script.main([*SMALL, *work, "--only", "handover"])
    printed = capsys.readouterr().out
    assert "handover: to rest" in printed
    assert "dpo:" not in printed and "generation:" not in printed


def test_what_cannot_work_ends_before_the_work(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {
        "--only reference": "need dpo's adapter",
        "--only warmup": "--only",
        "--steps 1": "--steps = 1: must be at least 2",
        "--backend vllm --python /nowhere": "no such interpreter",
    }
    for words, said in wrong.items():
        with pytest.raises(SystemExit):
            script.main([*SMALL, "--work", str(tmp_path / "work"), *words.split()])
        assert said in capsys.readouterr().err
    assert not (tmp_path / "work" / "tiny").exists()


def test_shapes_have_the_published_number_of_parameters(llama: Any) -> None:
    assert llama.parameters("llama-3-8b") == 8_030_261_248
    assert llama.parameters("llama-3.2-1b") == 1_235_814_400


def test_a_word_is_a_token_whatever_its_number(llama: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    llama.make_tokenizer(128256, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 128256
    ids = [5, 100, 127_000, 128_255]
    assert tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"] == ids
