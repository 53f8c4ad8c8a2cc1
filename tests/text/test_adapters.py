"""Adapters on disk and in the generator: swapped, taken off to the last bit, refused when wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from privsyn_flower.text import generators
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.models.adapters import CONFIG, WEIGHTS, AdapterError, base_of, save_adapter
from privsyn_flower.text.prompts import expand_prompt
from privsyn_flower.text.protocols import AdaptableGenerator

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

PROMPTS = [expand_prompt(["a b", "c d e"]), "Return the mean"]


def make_adapter(base: Path, target: Path, seed: int) -> Path:
    """An adapter of random weights, large enough to change what is sampled."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    identity = base_of(base, model.config, "models.generator")
    config = LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    peft = get_peft_model(model, config)
    draws = torch.Generator().manual_seed(seed)
    for name, weight in sorted(peft.named_parameters()):
        if "lora_" in name:
            weight.data = torch.randn(weight.shape, generator=draws)
    save_adapter(peft, target, identity)
    return target


@pytest.fixture(scope="module")
def adapters(causal_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(causal_folder, folder / f"a{seed}", seed) for seed in (1, 2)]


@pytest.fixture
def generator(causal_folder: Path) -> HuggingFaceGenerator:
    return HuggingFaceGenerator(causal_folder, max_tokens=10, device="cpu", progress=False)


def seen(generator: HuggingFaceGenerator) -> tuple[Any, list[list[str]]]:
    ids = torch.tensor(generator.tokenizer(PROMPTS[:1])["input_ids"])
    with torch.no_grad():
        logits = generator.model(input_ids=ids).logits
    return logits, generator.complete(PROMPTS, 2, np.random.default_rng(0))


def test_swapping_changes_the_text_and_swapping_back_restores_it(
    generator: HuggingFaceGenerator, adapters: list[Path]
) -> None:
    assert isinstance(generator, AdaptableGenerator)
    names = list(generator.model.state_dict())
    base_logits, base_texts = seen(generator)
    generator.use_adapter(adapters[0])
    first_logits, first_texts = seen(generator)
    generator.use_adapter(adapters[1])
    second_logits, second_texts = seen(generator)
    assert first_texts != base_texts and second_texts != base_texts and first_texts != second_texts
    assert not torch.equal(first_logits, second_logits)
    assert not any(weight.requires_grad for weight in generator.model.parameters())
    generator.use_adapter(adapters[0])
    again_logits, again_texts = seen(generator)
    assert torch.equal(again_logits, first_logits) and again_texts == first_texts
    generator.use_adapter(None)
    logits, texts = seen(generator)
    assert torch.equal(logits, base_logits) and texts == base_texts
    assert list(generator.model.state_dict()) == names, "adapter layers are left in the base"


def test_the_adapter_adds_its_product(
    generator: HuggingFaceGenerator, adapters: list[Path]
) -> None:
    """y = W x + (alpha / r) B A x in the first projection (Hu et al. 2021, section 4.1)."""
    from safetensors.torch import load_file

    layer = generator.model.model.layers[0].self_attn.q_proj
    x = torch.ones(1, layer.in_features)
    before = layer(x)
    generator.use_adapter(adapters[0])
    weights = load_file(adapters[0] / WEIGHTS)
    (a,) = (w for name, w in weights.items() if "layers.0.self_attn.q_proj.lora_A" in name)
    (b,) = (w for name, w in weights.items() if "layers.0.self_attn.q_proj.lora_B" in name)
    after = generator.model.model.layers[0].self_attn.q_proj(x)
    assert torch.allclose(after, before + 2.0 * (x @ a.T @ b.T), atol=1e-4)


def test_only_the_adapter_is_on_disk_and_tells_no_path(
    causal_folder: Path, adapters: list[Path], tmp_path: Path
) -> None:
    folder = adapters[0]
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, WEIGHTS]
    text = (folder / CONFIG).read_text("utf-8")
    config = json.loads(text)
    assert config["base_model_name_or_path"] == causal_folder.name
    assert len(config["revision"]) == 64
    assert str(causal_folder.parent) not in text
    assert str(causal_folder.parent).encode() not in (folder / WEIGHTS).read_bytes()
    again = make_adapter(causal_folder, tmp_path / "again", 1)
    for name in (CONFIG, WEIGHTS):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    make_adapter(causal_folder, again, 2)  # in place of the old one
    assert (again / WEIGHTS).read_bytes() == (adapters[1] / WEIGHTS).read_bytes()
    assert list(tmp_path.iterdir()) == [again]


def test_a_moved_base_is_the_same_base(
    causal_folder: Path, adapters: list[Path], tmp_path: Path
) -> None:
    moved = shutil.copytree(causal_folder, tmp_path / "elsewhere")
    generator = HuggingFaceGenerator(moved, max_tokens=4, device="cpu", progress=False)
    generator.use_adapter(adapters[0])


def test_wrong_adapters_are_refused_by_name(
    generator: HuggingFaceGenerator, adapters: list[Path], causal_folder: Path, tmp_path: Path
) -> None:
    generator.use_adapter(adapters[0])
    kept, _ = seen(generator)
    with pytest.raises(AdapterError, match=r"nowhere is no adapter: adapter_config\.json"):
        generator.use_adapter(tmp_path / "nowhere")
    bare = shutil.copytree(adapters[0], tmp_path / "bare")
    (bare / WEIGHTS).unlink()
    with pytest.raises(AdapterError, match=r"bare is no adapter: adapter_model\.safetensors"):
        generator.use_adapter(bare)
    other = shutil.copytree(adapters[0], tmp_path / "other")
    config = json.loads((other / CONFIG).read_text("utf-8"))
    (other / CONFIG).write_text(json.dumps(config | {"revision": "0" * 64}), "utf-8")
    with pytest.raises(AdapterError, match=r"other is an adapter of the base .*revision 0000"):
        generator.use_adapter(other)
    named = config | {"revision": None, "base_model_name_or_path": "someone/else"}
    (other / CONFIG).write_text(json.dumps(named), "utf-8")
    with pytest.raises(AdapterError, match=r"base 'someone/else' \(revision unknown\)"):
        generator.use_adapter(other)
    (other / CONFIG).write_text(json.dumps(config | {"peft_type": "IA3"}), "utf-8")
    with pytest.raises(AdapterError, match="'IA3', not 'LORA'"):
        generator.use_adapter(other)
    assert torch.equal(seen(generator)[0], kept), "a refused adapter changed the model"


def test_an_adapter_of_other_layers_or_another_vocabulary_is_refused(
    generator: HuggingFaceGenerator, adapters: list[Path], tmp_path: Path
) -> None:
    """Whole embeddings would replace the base's, also where their size is the same."""
    from safetensors.torch import load_file, save_file

    base, _ = seen(generator)
    vocabulary, width = generator.model.get_output_embeddings().weight.shape
    for rows in (vocabulary, vocabulary + 3):
        resized = shutil.copytree(adapters[0], tmp_path / f"resized-{rows}")
        whole = {"base_model.model.lm_head.weight": torch.ones(rows, width)}
        save_file(load_file(resized / WEIGHTS) | whole, resized / WEIGHTS)
        with pytest.raises(AdapterError, match=rf"resized-{rows} holds .* models\.generator = "):
            generator.use_adapter(resized)
    other = shutil.copytree(adapters[0], tmp_path / "other")
    config = json.loads((other / CONFIG).read_text("utf-8")) | {"target_modules": ["c_attn"]}
    (other / CONFIG).write_text(json.dumps(config), "utf-8")
    with pytest.raises(AdapterError, match=r"other: .* models\.generator = .*c_attn"):
        generator.use_adapter(other)
    wide = shutil.copytree(adapters[0], tmp_path / "wide")
    larger = {k: torch.cat([v, v], 1) for k, v in load_file(wide / WEIGHTS).items()}
    save_file(larger, wide / WEIGHTS)
    with pytest.raises(AdapterError, match=r"wide: .* models\.generator = "):
        generator.use_adapter(wide)
    assert torch.equal(seen(generator)[0], base)


def test_a_damaged_adapter_leaves_the_base(
    generator: HuggingFaceGenerator, adapters: list[Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    base, _ = seen(generator)
    damaged = shutil.copytree(adapters[0], tmp_path / "damaged")
    weights = load_file(damaged / WEIGHTS)
    save_file(dict(list(weights.items())[1:]), damaged / WEIGHTS)
    with pytest.raises(AdapterError, match="damaged: the adapter cannot be loaded"):
        generator.use_adapter(damaged)
    assert torch.equal(seen(generator)[0], base)
    (damaged / WEIGHTS).write_bytes(b"no safetensors")
    with pytest.raises(AdapterError, match="damaged: the adapter cannot be loaded"):
        generator.use_adapter(damaged)
    generator.use_adapter(adapters[0])
    generator.use_adapter(None)
    assert torch.equal(seen(generator)[0], base)


def test_rest_and_close(generator: HuggingFaceGenerator) -> None:
    before = seen(generator)[1]
    generator.rest()
    generator.rest()
    assert seen(generator)[1] == before
    generator.close()
    generator.close()
    generator.rest()
    with pytest.raises(RuntimeError, match="closed"):
        generator.complete(PROMPTS, 1, np.random.default_rng(0))


def test_a_resting_model_is_let_go_and_comes_back_with_its_adapter(
    generator: HuggingFaceGenerator, adapters: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, _ = seen(generator)
    generator.use_adapter(adapters[0])
    adapted, text = seen(generator)
    assert not torch.equal(adapted, base)
    monkeypatch.setattr(generator, "_load", loads := Mock(wraps=generator._load))
    as_on_an_accelerator(generator, monkeypatch)
    assert generator.model is None and generator._adapted is None
    assert loads.call_count == 0
    assert generator.complete(PROMPTS, 2, np.random.default_rng(0)) == text
    assert torch.equal(seen(generator)[0], adapted) and loads.call_count == 1
    as_on_an_accelerator(generator, monkeypatch)
    generator.use_adapter(None)
    assert torch.equal(seen(generator)[0], base) and loads.call_count == 2
    as_on_an_accelerator(generator, monkeypatch)
    generator.use_adapter(adapters[1])
    assert not torch.equal(seen(generator)[0], adapted) and loads.call_count == 3


def as_on_an_accelerator(generator: HuggingFaceGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rest` as if the model were on a GPU: on a CPU it stays where it is."""
    with monkeypatch.context() as patched:
        patched.setattr(generator, "device", "cuda")
        patched.setattr(generators, "empty_cache", lambda device: None)
        generator.rest()
        generator.rest()
