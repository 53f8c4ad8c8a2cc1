"""Shipped tiny models on a user's own public text: never worse, never made twice, never private."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import RunConfig
from privsyn_flower.text.tiny import models, tuning
from privsyn_flower.text.tiny.assets import RECIPES, tuning_recipe
from privsyn_flower.text.tiny.models import ensure_model, train
from privsyn_flower.text.tiny.tuning import split_groups, tune_model
from scripts.make_assets import write_manifest

WORDS = "alpha beta gamma delta river stone cloud forest matrix vector tensor kernel".split()
STEPS = 12
KINDS = ("downstream", "generator", "conditional", "infiller")
PACKAGES = {"general": ["torch", "sympy"], "minority": ["numpy"]}


def groups(step: int, count: int = 30, seed: int = 0) -> list[list[str]]:
    """Texts in which each word is `step` words after the one before; all distinct."""
    rng = np.random.default_rng(seed)
    texts: dict[str, None] = {}
    while len(texts) < 4 * count:
        start, length = int(rng.integers(12)), int(rng.integers(6, 20))
        texts[
            " ".join(WORDS[(start + step * i) % 12] for i in range(length)) + f" {len(texts)}"
        ] = None
    flat = list(texts)
    return [flat[i : i + 4] for i in range(0, len(flat), 4)]


class PublicText:
    """The public side of a federation."""

    def __init__(self, found: list[list[str]]) -> None:
        self.found = found

    def public_general(self) -> list[str]:
        return [text for group in self.found for text in group]

    def public_groups(self) -> list[list[str]]:
        return self.found


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Shipped models: the generator has another width and another tokenizer than the others."""
    root, cache = tmp_path_factory.mktemp("assets"), tmp_path_factory.mktemp("made")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for kind in KINDS:
        width, words = (48, 400) if kind == "generator" else (32, 512)
        with pytest.MonkeyPatch.context() as patch:
            for name, usual in RECIPES.items():
                small = replace(
                    usual, width=width, layers=1, heads=2, batch_tokens=384, vocabulary=words
                )
                patch.setitem(RECIPES, name, small)
            made = train({name: groups(1) for name in KINDS}, kind, cache / kind, steps=3)
        made.rename(root / kind)
    write_manifest(root, packages=PACKAGES, versions={}, models={kind: {} for kind in KINDS})
    yield root
    torch.set_num_threads(before)


def configured(root: Path, cache: Path, **values: Any) -> RunConfig:
    own: dict[str, Any] = {"assets": str(root), "cache": str(cache), "data.source": "files",
           "models.train-steps": 6, "models.device": "cpu"}  # fmt: skip
    return RunConfig.from_flat({**own, **values})


def ensure(kind: str, federation: Any, config: RunConfig) -> Path:
    return ensure_model(kind, federation, config)


def held_out_loss(folder: Path, kind: str, found: list[list[str]]) -> float:
    """Of a stored model, on what its tuning held out."""
    recipe = tuning_recipe(kind, STEPS)
    rng = seeded(0, kind, "tuning")
    train_groups, held_out = split_groups(found, recipe, rng)
    read = tuning._Tuning(folder, recipe, 0, "cpu")
    read.rows(train_groups, rng)  # draws, as the tuning did
    return read.measure(read.rows(held_out, rng))


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [2e-3, 3.0], ids=["helps", "ruins"])
def test_tuning_never_ends_worse_than_the_shipped_model(
    kind: str, rate: float, assets: Path, tmp_path: Path
) -> None:
    found, recipe = groups(5), replace(tuning_recipe(kind, STEPS), learning_rate=rate)
    report = tune_model(found, assets / kind, tmp_path, recipe)
    before, after = (held_out_loss(f, kind, found) for f in (assets / kind, tmp_path))
    assert after <= before
    assert [report["loss_before"], report["loss_after"]] == pytest.approx([before, after], abs=2e-4)
    if rate > 1:
        assert after == before and weights(tmp_path) == weights(assets / kind)
        assert report["steps"] < STEPS  # it stopped when looks failed
    else:
        assert after < before - 0.05
    told = json.loads((tmp_path / "training.json").read_text())
    assert told["tuning"] == report


def test_architecture_and_tokenizer_are_the_shipped_ones(assets: Path, tmp_path: Path) -> None:
    federation = PublicText(groups(5))
    for kind in KINDS:
        folder = ensure(kind, federation, configured(assets, tmp_path))
        assert folder.parent == tmp_path / "models" and folder.name.startswith(f"{kind}-tuned-")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (folder / name).read_bytes() == (assets / kind / name).read_bytes()
        sizes = [json.loads((f / "config.json").read_text()) for f in (folder, assets / kind)]
        assert sizes[0]["hidden_size"] == sizes[1]["hidden_size"]
        assert sizes[0]["vocab_size"] == sizes[1]["vocab_size"]
    # Nobody made a downstream model for the generator's sake, or the other way round.
    assert len(list((tmp_path / "models").glob("*-tuned-*[0-9a-f]"))) == len(KINDS)


def test_what_is_held_out_is_not_trained_on() -> None:
    found, recipe = groups(1), tuning_recipe("downstream")
    trained, held_out = split_groups(found, recipe, np.random.default_rng(0))
    assert sorted(map(tuple, trained + held_out)) == sorted(map(tuple, found))
    assert sum(map(len, held_out)) == 12  # a tenth of 120, whole groups
    whole = [PublicText(found).public_general()]
    (one,), (other,) = split_groups(whole, recipe, np.random.default_rng(0))
    assert (len(one), len(other)) == (108, 12) and not set(one) & set(other)
    assert split_groups([["a", "b"]], recipe, np.random.default_rng(0)) == ([["a", "b"]], [])


def test_too_little_text_leaves_the_shipped_model(assets: Path, tmp_path: Path) -> None:
    few = PublicText([["alpha beta gamma"], ["delta river stone"]])
    folder = ensure("downstream", few, configured(assets, tmp_path))
    assert weights(folder) == weights(assets / "downstream")
    none = ensure("downstream", PublicText([]), configured(assets, tmp_path))
    assert none == assets / "downstream"


def test_several_at_once_make_a_model_once(
    assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, config, federation = list[str](), configured(assets, tmp_path), PublicText(groups(5))
    real = tuning.tune_model

    def counted(*args: Any, **options: Any) -> Any:
        made.append("once")
        return real(*args, **options)

    monkeypatch.setattr(tuning, "tune_model", counted)
    found: list[Path] = []

    def ask() -> None:
        found.append(ensure("downstream", federation, config))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and made == ["once"]
    # Other text, another shipped model or another recipe is another name.
    others = [
        ensure("downstream", PublicText(groups(5, seed=1)), config),
        ensure("downstream", federation, configured(assets, tmp_path, **{"models.train-steps": 2})),
    ]
    assert len({*found, *others}) == 3


def test_a_model_that_was_cut_off_is_not_taken(
    assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    federation, config = PublicText(groups(5)), configured(assets, tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tuning, "_write", killed)
        ensure("downstream", federation, config)
    assert not [path for path in (tmp_path / "models").iterdir() if path.is_dir()]
    assert (ensure("downstream", federation, config) / "model.safetensors").exists()


DOCSTRINGS = {"data.source": "docstrings", "data.public-packages": "torch,sympy",
              "data.minority-packages": "numpy"}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({**DOCSTRINGS, "data.private-packages": "scipy"}, "shipped"),
        ({**DOCSTRINGS, "data.private-packages": "scipy", "data.public-packages": "rich"}, "tuned"),
        ({**DOCSTRINGS, "data.private-packages": "Sympy,scipy"}, "trained"),
        ({**DOCSTRINGS, "data.private-packages": "numpy"}, "trained"),
        ({"data.source": "files"}, "tuned"),
        ({"data.source": "hub:texts"}, "tuned"),
    ],
)
def test_a_model_that_read_what_is_private_is_not_used(
    values: dict[str, str], expected: str, assets: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(models, "train", lambda *args, **options: Path("trained"))
    monkeypatch.setattr(models, "tune", lambda *args, **options: Path("tuned"))
    found = ensure("generator", PublicText(groups(1)), configured(assets, tmp_path, **values))
    assert found == (assets / "generator" if expected == "shipped" else Path(expected))


def test_a_minority_stays_new_to_the_downstream_model(
    assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Minority(PublicText):
        def public_general(self) -> list[str]:
            return [text for group in self.found[1:] for text in group]

    read = dict[str, Any]()

    def note(given: Any, shipped: Path, folder: Path, recipe: Any, **options: Any) -> None:
        read[recipe.kind] = given

    monkeypatch.setattr(tuning, "tune_model", note)
    found = groups(5)
    for kind in KINDS:
        ensure(kind, Minority(found), configured(assets, tmp_path))
    assert read == dict.fromkeys(KINDS, found) | {"downstream": found[1:]}


def test_progress_says_what_and_how_long(assets: Path, tmp_path: Path) -> None:
    notes: list[str] = []

    def progress(stage: str, done: float, total: float, note: str = "") -> None:
        notes.append(f"{stage}: {note}")

    tune_model(groups(5), assets / "downstream", tmp_path, tuning_recipe("downstream", 8),
               budget_seconds=60.0, progress=progress)  # fmt: skip
    assert "tuning the downstream model on public text: until its held-out loss" in notes[0]
    assert "at most 60 s" in notes[0] or "at most 59 s" in notes[0]
    assert " -> " in notes[-1] and "nats a token after 8 steps" in notes[-1]


def test_a_time_budget_ends_the_tuning(assets: Path, tmp_path: Path) -> None:
    report = tune_model(groups(5), assets / "downstream", tmp_path,
                        tuning_recipe("downstream"), budget_seconds=0.0)  # fmt: skip
    assert report["steps"] == 0 and weights(tmp_path) == weights(assets / "downstream")


def test_looks_that_gain_too_little_halve_the_rate_from_the_best_state() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    stopping = tuning._Stopping(model, 0.01, 5.0)

    def look(value: float, loss: float) -> tuple[float, int, float]:
        model.weight.data.fill_(value)
        stopping.look(loss)
        return model.weight[0, 0].item(), stopping.failures, stopping.factor

    assert look(1.0, 4.0) == (1.0, 0, 1.0)
    assert look(2.0, 4.5) == (1.0, 1, 0.5)  # put back
    assert look(3.0, 3.995) == (3.0, 2, 0.25)  # better, so kept, but not by enough
    assert look(4.0, 3.0) == (4.0, 0, 0.25)
    assert stopping.least == 3.0 and stopping.best["weight"][0, 0] == 4.0
