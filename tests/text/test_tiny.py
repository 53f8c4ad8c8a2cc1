"""Embedded tiny models: real training on a small corpus, caching, budgets, shipped assets."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from privsyn_flower.common.python_path import canonical
from privsyn_flower.config import ConfigError, RunConfig, load_config, split_list
from privsyn_flower.text import HuggingFaceGenerator, MaskFill, expand_prompt
from privsyn_flower.text.conditional import open_conditional
from privsyn_flower.text.conditions import Pair, condition
from privsyn_flower.text.models.batches import encode, pad_rows, token_batches
from privsyn_flower.text.tiny.assets import (
    PACKAGE_ASSETS,
    RECIPES,
    AssetError,
    content_key,
    embedded,
    find_asset,
    recipe,
)
from privsyn_flower.text.tiny.models import ensure_model, package_sides, train
from privsyn_flower.text.tiny.training import expand_runs, linear_schedule, orthogonalise
from scripts.make_assets import write_manifest

WORDS = "alpha beta gamma delta river stone cloud forest matrix vector tensor kernel".split()


def groups(seed=0, count=40):
    rng = np.random.default_rng(seed)
    # The next word is always the one after: something that a tiny model can learn.
    runs = [[int(rng.integers(12)) for _ in range(4)] for _ in range(count)]
    return [[" ".join(WORDS[(s + i) % 12] for i in range(14)) for s in run] for run in runs]


CORPORA = dict.fromkeys(RECIPES, groups())


@pytest.fixture(scope="module", autouse=True)
def small():
    """One thread, and models a hundred times smaller: the code is the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for kind, usual in RECIPES.items():
            patch.setitem(
                RECIPES,
                kind,
                replace(usual, width=32, layers=1, heads=2, batch_tokens=384, vocabulary=512),
            )
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "training.json"}


def test_training_learns_and_is_reproducible(cache, tmp_path):
    first = train(CORPORA, "downstream", cache, steps=8)
    about = json.loads((first / "training.json").read_text())
    assert about["training"]["steps"] == 8
    longer = train(CORPORA, "downstream", cache, steps=30)
    losses = [json.loads((p / "training.json").read_text())["training"]["loss"]
              for p in (first, longer)]  # fmt: skip
    assert losses[1] < losses[0] - 0.5
    again = train(CORPORA, "downstream", tmp_path, steps=8)
    assert again.name == first.name
    assert file_bytes(again) == file_bytes(first)
    weights = next(p for p in first.iterdir() if p.suffix == ".safetensors")
    assert weights.stat().st_size < 70_000  # fp16: two bytes for each of 30,000 numbers


def test_a_cached_model_is_not_trained_again(cache, monkeypatch):
    first = train(CORPORA, "downstream", cache, steps=8)
    monkeypatch.setattr("privsyn_flower.text.tiny.training.train_model", None)
    assert train(CORPORA, "downstream", cache, steps=8) == first
    with pytest.raises(TypeError):
        train(CORPORA, "downstream", cache, steps=8, seed=1)


def test_models_load_as_hugging_face_folders(cache):
    generator = train(CORPORA, "generator", cache, steps=8)
    complete = HuggingFaceGenerator(str(generator), max_tokens=12, device="cpu")
    texts = complete.complete([expand_prompt(groups()[0][:3])], 2, np.random.default_rng(0))
    assert len(texts[0]) == 2 and all(isinstance(text, str) for text in texts[0])
    conditional = train(CORPORA, "conditional", cache, steps=8)
    write = open_conditional(conditional, max_tokens=12, device="cpu", progress=False)
    assert len(write.complete([condition(["alpha"])], 2, np.random.default_rng(0))[0]) == 2
    longer = open_conditional(
        train(CORPORA, "conditional", cache, steps=40), max_tokens=12, device="cpu", progress=False
    )
    pairs = [Pair(condition([text.split()[0]]), text) for group in groups(9) for text in group]
    assert longer.loss(pairs) < write.loss(pairs) - 0.5
    variation = train(CORPORA, "infiller", cache, steps=8)
    vary = MaskFill(str(variation), device="cpu", progress=False)
    varied = vary.vary(["alpha beta gamma delta river"], np.random.default_rng(0))
    assert len(varied) == 1 and "<mask>" not in varied[0] and "<s>" not in varied[0]


def test_text_is_tokenised_once_and_reversibly(cache):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(train(CORPORA, "downstream", cache, steps=8))
    text = "alpha  Beta 17 x_1 := \u00e9\u4e2d <b>\u0120"
    (ids,) = encode(tokenizer, [text], 96)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:], clean_up_tokenization_spaces=False) == text
    # What the papers' evaluation did: join the tokens' spellings and tokenise those.
    twice = encode(tokenizer, [" ".join(tokenizer.convert_ids_to_tokens(ids[1:]))], 96)[0]
    assert len(twice) > len(ids)


def test_a_time_budget_ends_training_early_and_says_so(tmp_path, caplog):
    folder = train(CORPORA, "downstream", tmp_path, steps=100000, budget_seconds=0.5)
    about = json.loads((folder / "training.json").read_text())
    assert 0 < about["training"]["steps"] < 1000
    assert "models.train-seconds" in caplog.text


def test_too_little_text_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="too few"):
        train({"downstream": [["alpha"]]}, "downstream", tmp_path, steps=2)
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def test_unknown_kind_and_steps_are_named():
    with pytest.raises(ValueError, match="downstream, generator, conditional, infiller"):
        recipe("oracle")
    with pytest.raises(ValueError, match=r"models\.train-steps = -1"):
        recipe("infiller", -1)


class PublicText:
    def public_general(self):
        return [text for group in groups() for text in group]

    def public_groups(self):
        return groups()


def shipped(root: Path, kind="downstream", **packages):
    (root / kind).mkdir(parents=True)
    (root / kind / "model.safetensors").write_bytes(b"weights")
    write_manifest(
        root,
        packages={"general": ["b", "a"], "minority": ["c"], **packages},
        versions={},
        models={kind: {"recipe": as_dict(kind)}},
    )
    return root


def as_dict(kind):
    from dataclasses import asdict

    return asdict(RECIPES[kind])


def config(assets, **data):
    packages = {"public-packages": "a,b", "minority-packages": "c", **data}
    return RunConfig.model_validate({"assets": str(assets), "data": packages})


def test_a_fitting_asset_is_used(tmp_path):
    root = shipped(tmp_path)
    assert ensure_model("downstream", PublicText(), config(root)) == root / "downstream"
    assert find_asset("infiller", root) is None


def test_an_asset_says_what_it_has_read(tmp_path):
    asset = find_asset("downstream", shipped(tmp_path, general=["scikit-learn", "a"]))
    assert asset.is_of({"general": ["a", "scikit-learn"], "minority": ["c"]})
    assert not asset.is_of({"general": ["a"], "minority": ["c"]})
    assert asset.knows(["rich", "Scikit_Learn", "C"]) == ["Scikit_Learn", "C"]
    (tmp_path / "downstream" / "model.safetensors").write_bytes(b"other weights")
    write_manifest(
        tmp_path,
        packages={"general": ["a"], "minority": ["c"]},
        versions={},
        models={"downstream": {}},
    )
    assert find_asset("downstream", tmp_path).digest != asset.digest


def test_a_damaged_asset_is_refused(tmp_path):
    root = shipped(tmp_path)
    (root / "downstream" / "model.safetensors").write_bytes(b"weighty")
    with pytest.raises(AssetError, match="sha256"):
        ensure_model("downstream", PublicText(), config(root))
    (root / "downstream" / "model.safetensors").unlink()
    with pytest.raises(AssetError, match="missing"):
        ensure_model("downstream", PublicText(), config(root))
    with pytest.raises(AssetError, match="holds no"):
        ensure_model("downstream", PublicText(), config(tmp_path / "elsewhere"))


def test_content_key_sees_every_border():
    keys = {content_key(g, (), 0) for g in ([["ab"]], [["a", "b"]], [["a"], ["b"]], [["ba"]])}
    assert len(keys) == 4
    assert content_key([["a"]], (), 0) != content_key([["a"]], (), 1)
    assert content_key([["a"]], [RECIPES["infiller"]], 0) != content_key([["a"]], (), 0)


def test_token_batches_use_every_row_within_the_budget():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 90, 500)
    batches = token_batches(lengths, 512, rng)
    assert sorted(np.concatenate(batches).tolist()) == list(range(500))
    assert all(len(b) * lengths[b].max() <= 512 for b in batches)
    assert [len(b) for b in token_batches([1000], 512, rng)] == [1]


def test_padding_is_masked():
    ids, mask = pad_rows([[5, 6, 7], [8]], 1)
    assert ids.tolist() == [[5, 6, 7], [8, 1, 1]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_orthogonalise_flattens_singular_values():
    matrix = torch.randn(24, 10, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrix))
    assert values.min() > 0.5 and values.max() < 1.3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.nn.functional.cosine_similarity(
        orthogonalise(matrix).flatten(), (u @ v).flatten(), dim=0
    ) > 0.97  # fmt: skip


def test_schedule_rises_and_falls():
    values = [linear_schedule(d, 0.1, 0.5) for d in (0, 0.05, 0.1, 0.5, 0.75, 1.0, 1.1)]
    assert values == pytest.approx([0, 0.5, 1, 1, 0.5, 0, 0])


def test_expand_runs_hold_every_text_twice():
    texts = [[f"{g}-{i}" for i in range(5)] for g in range(20)]
    runs = expand_runs(texts, np.random.default_rng(0))
    assert all(1 <= len(run) <= 4 for run in runs)
    flat = sorted(text for run in runs for text in run)
    assert flat == sorted([text for group in texts for text in group] * 2)


USUAL = {kind: as_dict(kind) for kind in RECIPES}  # before the fixture makes them small


@pytest.mark.parametrize("kind", sorted(USUAL))
def test_the_shipped_models_serve_the_demo_and_know_no_private_package(kind):
    demo = load_config(Path(__file__).parents[2] / "configs" / "docstrings-demo.toml")
    asset = find_asset(kind)
    assert asset.is_of(package_sides(demo))
    assert not asset.knows(split_list(demo.data.private_packages))
    folder = asset.folder
    assert folder == PACKAGE_ASSETS / kind
    if kind != "conditional":  # trained on a GPU, by scripts/train_conditional.py
        assert json.loads((folder / "training.json").read_text())["recipe"] == USUAL[kind]
    versions = json.loads((PACKAGE_ASSETS / "MANIFEST.json").read_text())["versions"]
    private = {canonical(name) for name in split_list(demo.data.private_packages)}
    assert private and not private & {canonical(name) for name in versions}
    assert (folder / "model.safetensors").stat().st_size < 4e6


@pytest.mark.parametrize("kind", ["generator", "conditional", "infiller"])
def test_the_small_models_serve_the_demo_and_know_no_private_package(kind):
    demo = load_config(Path(__file__).parents[2] / "configs" / "docstrings-demo.toml")
    private = split_list(demo.data.private_packages)
    assert getattr(demo.models, kind) == ("tiny" if kind == "conditional" else "small")
    assert embedded(kind, "small") == f"small-{kind}"
    asset = find_asset(f"small-{kind}")
    assert asset.is_of(package_sides(demo)) and len(asset.packages["further"]) > 100
    assert private and not asset.knows(private)
    assert asset.knows(["Astropy"]) and not asset.is_of({"general": ["astropy"], "minority": []})
    entry = json.loads((PACKAGE_ASSETS / "MANIFEST.json").read_text())["models"][f"small-{kind}"]
    assert not {canonical(name) for name in private} & {canonical(n) for n in entry["versions"]}
    assert entry["training"] == json.loads((asset.folder / "training.json").read_text())
    assert (asset.folder / "model.safetensors").stat().st_size < 25e6


def test_a_small_model_that_knows_what_is_private_is_refused():
    demo = load_config(
        Path(__file__).parents[2] / "configs" / "docstrings-demo.toml",
        {"data.private-packages": "sympy", "data.public-packages": "torch"},
    )
    with pytest.raises(ConfigError, match=r"models.generator = 'small'.*has read sympy, private"):
        ensure_model("generator", None, demo)


DOCUMENTED = {
    "matrix eigenvalues symmetric": "Compute the eigenvalues of a symmetric matrix.",
    "socket connection timeout": "Raised when the connection to the socket has a timeout.",
    "tokenizer vocabulary tokens": "Return the tokens of the vocabulary of the tokenizer.",
    "polynomial coefficients roots": "Find the roots of a polynomial with these coefficients.",
}


@pytest.mark.parametrize("name", ["conditional", "small-conditional"])
def test_the_shipped_conditional_generators_use_their_condition(name):
    """Held-out loss as it was measured, and here: texts cost less after their own keywords."""
    found = json.loads((PACKAGE_ASSETS / name / "training.json").read_text())
    after = found["held_out_nats_a_character"]["after"]
    assert after["own"] < after["group"] < after["area"] < after["wrong_area"] < after["wrong"]
    model = open_conditional(PACKAGE_ASSETS / name, max_tokens=8, device="cpu", progress=False)
    told = [condition(words.split()) for words in DOCUMENTED]
    own, wrong, none = (
        model.loss([Pair(*pair) for pair in zip(said, DOCUMENTED.values(), strict=True)])
        for said in (told, told[1:] + told[:1], [""] * len(told))
    )
    assert own < none - 0.5 and own < wrong - 1


def test_there_is_no_small_downstream_model():
    assert embedded("downstream", "small") is None and embedded("generator", "other") is None
    assert embedded("downstream", "tiny") == "downstream"
