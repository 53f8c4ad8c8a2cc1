"""Models as changes of a base: what fits, what is refused, and that an adapter stays itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.text.models.batches import pad_rows
from privsyn_flower.text.models.lm_metrics import BATCH_TOKENS, Scorer, base_folder, load_scorer
from privsyn_flower.text.models.parameters import (
    ParametersError,
    base_shapes,
    check_parameters,
    longest_sequence,
    pack_parameters,
    read_model,
    unpack_parameters,
)
from privsyn_flower.text.models.pretrained import ModelUnavailableError
from tests.rigs.models import gpt2  # noqa: F401
from tests.text.conftest import SENTENCES

SHAPES = {"a.weight": (4, 6), "b.weight": (3,), "s": ()}
UP, DOWN = np.ones((4, 2), np.float32), np.ones((2, 6), np.float32)


def test_arrays_survive_the_wire() -> None:
    rng = np.random.default_rng(0)
    sent = {
        "a.weight": rng.standard_normal((4, 6)).astype(np.float32),
        "b.weight": rng.standard_normal(3).astype(np.float16),
        "s": np.array(2.0, np.float32),
    }
    got = unpack_parameters(pack_parameters(sent), SHAPES)
    assert got.keys() == sent.keys()
    assert all(np.array_equal(got[name], sent[name]) for name in sent)
    assert got["b.weight"].dtype == np.float16
    assert unpack_parameters(pack_parameters({}), SHAPES) == {}


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"c.weight": np.ones((4, 6), np.float32)}, "c.weight"),
        ({"a.weight": np.ones((6, 4), np.float32)}, "shape"),
        ({"a.weight": np.ones((4, 6), np.float64)}, "float64"),
        ({"a.weight": np.ones((4, 6), np.int32)}, "int32"),
        ({"b.weight": np.array([1, np.nan, 1], np.float32)}, "finite"),
        ({"a.weight.up": UP}, "needs"),
        ({"a.weight.down": DOWN}, "needs"),
        ({"a.weight.up": UP, "a.weight.down": DOWN.T.copy()}, "do not make"),
        ({"a.weight.up": UP, "a.weight.down": DOWN[0]}, "do not make"),
        ({"a.weight.up": np.ones((4, 9), np.float32), "a.weight.down": np.ones((9, 6), np.float32)},
         "rank 9"),
        ({"b.weight.up": np.ones((3, 1), np.float32), "b.weight.down": np.ones((1, 1), np.float32)},
         "no product"),
        ({"a.weight": np.ones((4, 6), np.float32), "a.weight.up": UP, "a.weight.down": DOWN},
         "and no a.weight"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_base_is_refused(parameters: Any, named: str) -> None:
    with pytest.raises(ParametersError, match=named):
        unpack_parameters(pack_parameters(parameters), SHAPES)
    with pytest.raises(ParametersError, match=named):
        check_parameters(parameters, SHAPES)


def hostile() -> list[Any]:
    good = pack_parameters({"b.weight": np.ones(3, np.float32)})
    header = json.dumps({"b.weight": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}})
    lying = len(header).to_bytes(8, "little") + header.encode() + b"\0" * 4
    return [
        good[:-1],
        good.astype(np.int8),
        good.reshape(1, -1),
        np.zeros(0, np.uint8),
        np.zeros(100_000, np.uint8),
        np.full(64, 255, np.uint8),
        np.frombuffer(lying, np.uint8),
        np.frombuffer(b"\x80\x04cposix\nsystem\n" + b" " * 20, np.uint8),
    ]


@pytest.mark.parametrize("packed", hostile())
def test_hostile_bytes_are_refused(packed: Any) -> None:
    with pytest.raises(ParametersError, match="safetensors"):
        unpack_parameters(packed, SHAPES)


def logits(model: Any) -> Any:
    import torch

    ids = torch.arange(2, 14).reshape(2, 6)
    with torch.inference_mode():
        return model(input_ids=ids).logits.numpy()


def adapter(base: Path, folder: Path, **options: Any) -> Any:
    """A LoRA adapter with random matrices on a model, saved; returns the merged model's logits."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = LoraConfig(r=3, lora_alpha=5, task_type="CAUSAL_LM", **options)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "lora_B" in name:
                    value.normal_(std=0.1)
        model.save_pretrained(folder)
        return logits(model.merge_and_unload())


@pytest.mark.parametrize("options", [{"target_modules": "all-linear"}, {"use_rslora": True}])
def test_an_adapter_is_the_model_that_peft_merges(
    causal_folder: Path, tmp_path: Path, options: Any
) -> None:
    want = adapter(causal_folder, tmp_path, **options)
    parameters = read_model(tmp_path, causal_folder)
    assert sum(a.size for a in parameters.values()) < 0.3 * 600 * 32
    scorer = Scorer(causal_folder, "cpu")
    before = logits(scorer.model)
    with scorer.with_parameters(
        unpack_parameters(pack_parameters(parameters), base_shapes(causal_folder))
    ):
        assert np.allclose(logits(scorer.model), want, atol=1e-5)
        assert not np.allclose(before, want, atol=1e-3)
    assert np.array_equal(logits(scorer.model), before)


def test_an_adapter_of_transposed_layers(gpt2: Path, tmp_path: Path) -> None:
    want = adapter(gpt2, tmp_path, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    scorer = Scorer(gpt2, "cpu")
    with scorer.with_parameters(read_model(tmp_path, gpt2)):
        assert np.allclose(logits(scorer.model), want, atol=1e-5)
    assert longest_sequence(gpt2) == 64


@pytest.mark.parametrize(
    "change",
    [{"use_dora": True}, {"alpha_pattern": {"q_proj": 3}}, {"init_lora_weights": "pissa"},
     {"peft_type": "LOHA"}],
)  # fmt: skip
def test_other_adapters_are_refused_by_name(
    causal_folder: Path, tmp_path: Path, change: Any
) -> None:
    shutil.copytree(causal_folder, tmp_path / "adapter")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, **change}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ParametersError, match=next(iter(change)) + "|LOHA"):
        read_model(tmp_path / "adapter", causal_folder)


def test_a_whole_model_travels_as_what_changed(causal_folder: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(causal_folder)
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)
    model.save_pretrained(tmp_path)
    changed = read_model(tmp_path, causal_folder)
    assert list(changed) == ["model.norm.weight"]
    scorer = Scorer(causal_folder, "cpu")
    with scorer.with_parameters(changed):
        assert np.array_equal(logits(scorer.model), logits(model))
    assert read_model(causal_folder, causal_folder) == {}


def test_the_base_comes_back_after_an_error(causal_folder: Path) -> None:
    scorer = Scorer(causal_folder, "cpu")
    before = logits(scorer.model)
    other = {"model.norm.weight": np.zeros(32, np.float32)}
    with pytest.raises(RuntimeError, match="midway"), scorer.with_parameters(other):
        assert not logits(scorer.model).any()
        raise RuntimeError("midway")
    assert np.array_equal(logits(scorer.model), before)


def test_texts_are_cut_to_the_tokens_that_count(causal_folder: Path) -> None:
    scorer = Scorer(causal_folder, "cpu")
    rows = scorer.encode(["", *SENTENCES], max_tokens=40, length=12)
    assert sum(len(row) - 1 for row in rows) == 40
    assert max(len(row) for row in rows) == 12
    whole = scorer.tokenizer(SENTENCES[0])["input_ids"]
    assert rows[0] == whole[:12]
    one = scorer.encode(["river " * 10_000], max_tokens=40, length=1 << 20)
    assert [len(row) for row in one] == [41]
    assert scorer.encode(["", ""], max_tokens=40, length=12) == []


def test_sums_are_those_of_each_row_alone(causal_folder: Path) -> None:
    import torch

    scorer = Scorer(causal_folder, "cpu")
    rows = scorer.encode(SENTENCES * 30, max_tokens=2 * BATCH_TOKENS, length=60)
    correct, nats, clipped = 0, 0.0, 0.0
    for row in rows[:8]:
        with torch.inference_mode():
            ids, _ = pad_rows([row], 0)
            scores = scorer.model(input_ids=ids).logits[0, :-1].log_softmax(dim=-1)
        correct += int((scores.argmax(dim=-1) == ids[0, 1:]).sum())
        losses = -scores[torch.arange(len(row) - 1), ids[0, 1:]].double()
        nats, clipped = nats + float(losses.sum()), clipped + float(losses.clamp(max=6.0).sum())
    assert scorer.sums(rows[:8], 100.0) == (correct, pytest.approx(nats, rel=1e-5))
    assert clipped < nats
    assert scorer.sums(rows[:8], 6.0) == (correct, pytest.approx(clipped, rel=1e-5))
    parts = [scorer.sums([row], 100.0) for row in rows]  # more than one batch
    total = scorer.sums(rows, 100.0)
    assert total[0] == sum(part[0] for part in parts)
    assert total[1] == pytest.approx(sum(part[1] for part in parts), rel=1e-5)


def test_one_scorer_stays_loaded_until_its_files_change(
    causal_folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(causal_folder, copy)
    first = load_scorer(copy, "cpu")
    assert load_scorer(copy, "cpu") is first
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    assert load_scorer(copy, "cpu") is not first


def test_only_safetensors_folders_on_this_machine_are_opened(
    causal_folder: Path, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    assert base_folder(str(causal_folder)) == causal_folder
    for name in ("nobody/no-such-model", str(tmp_path / "missing")):
        with pytest.raises(ModelUnavailableError, match="downstream"):
            base_folder(name)
    pickled = tmp_path / "pickled"
    shutil.copytree(causal_folder, pickled)
    weights = load_file(pickled / "model.safetensors")
    torch.save(weights, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailableError, match="safetensors"):
        Scorer(pickled, "cpu")
    # A file of that name beside it changes nothing.
    save_file({"a": torch.zeros(1)}, pickled / "other.safetensors")
    for opened in (lambda: Scorer(pickled, "cpu"), lambda: read_model(pickled, causal_folder)):
        with pytest.raises(ModelUnavailableError, match="could not be loaded"):
            opened()


def test_code_that_comes_with_a_model_is_not_run(
    causal_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anybody asked about it on a terminal."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = tmp_path / "coded"
    shutil.copytree(causal_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "nobodys", "auto_map": own})
    )
    (folder / "own.py").write_text("raise SystemExit('run')")
    with pytest.raises(ModelUnavailableError, match="contains custom code"):
        Scorer(folder, "cpu")
