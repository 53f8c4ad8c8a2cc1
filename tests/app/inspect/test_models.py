"""Attacks by models: one that learned people's texts knows them, and moved their way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.inspect.attacks import NotMeasured
from privsyn_flower.app.inspect.membership import auc, measure
from privsyn_flower.app.inspect.models import auxiliary, loss, update
from privsyn_flower.app.inspect.texts import Texts, read_texts
from privsyn_flower.config import RunConfig
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods.proximity import remember_start
from privsyn_flower.text.embedders import NgramEmbedder
from privsyn_flower.text.fingerprints import folder_fingerprint
from tests.app.inspect.rigs import make_run, people, sentence, texts, write_users
from tests.rigs.models import causal_folder  # noqa: F401 - a fixture

Given = Callable[..., Texts]


def learned(base: Path, own: Sequence[str], target: Path) -> None:
    """A model that read these texts again and again."""
    model = Downstream(base, length=32)
    rows = model.encode(list(own))
    model.fine_tune(rows, Tuning(60, 16, 32, 1e-2))
    model.model.save_pretrained(target)
    model.tokenizer.save_pretrained(target)


@pytest.fixture
def given(tmp_path: Path, causal_folder: Path) -> Given:
    """Texts with a run's folder and configuration, whose models are one folder."""
    public = write_users(tmp_path / "public.jsonl", {"p": [sentence(np.random.default_rng(1))] * 9})

    def make(synthetic: Sequence[str], private: Any, held_out: Any, **flat: Any) -> Texts:
        folder, config = tmp_path / "run", {
            "data.source": "files", "data.public-path": str(public),
            "models.downstream": str(causal_folder), "models.conditional": str(causal_folder),
            "models.device": "cpu", "evaluation.learning-rates": "1e-2", "evaluation.steps": 4,
            "evaluation.sequence-length": 32, "evaluation.batch-size": 4,
            "cache": str(tmp_path / "cache"), **flat,
        }  # fmt: skip
        folder.mkdir()
        made = RunConfig.from_flat(config)
        return replace(texts(synthetic, private, held_out), run=(folder, made))

    return make


def people_of(seed: int, users: int = 10) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return people("p", users, rng, texts=2), people("h", users, rng, texts=2)


@pytest.mark.slow
def test_an_auxiliary_model_knows_the_texts_that_the_synthetic_text_repeats(given: Given) -> None:
    private, held_out = people_of(0)
    copied = [text for own in private.values() for text in own] * 8
    score = auxiliary(given(copied, private, held_out, method="pretext"))
    assert auc(score(private), score(held_out)) > 0.95
    assert score({"none": [""]}).tolist() == [0.0]


@pytest.mark.slow
def test_other_text_tells_an_auxiliary_model_nothing(given: Given) -> None:
    private, held_out = people_of(11, 40)
    rng = np.random.default_rng(111)
    found = given([sentence(rng) for _ in range(60)], private, held_out, method="pretext")
    own = measure(found)["attacks"]["auxiliary model"]["auc"]
    assert own[1] < 0.5 < own[2]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp-fedavg", "ctcl"])
def test_a_trained_model_knows_who_taught_it(
    given: Given, causal_folder: Path, method: str
) -> None:
    private, held_out = people_of(3)
    flat = {"ctcl.condition": "none", "ctcl.histogram": False} if method == "ctcl" else {}
    made = given([], private, held_out, method=method, **flat)
    assert made.run is not None
    folder = made.run[0]
    for attack in (loss, update):
        with pytest.raises(NotMeasured, match="trained no model"):
            attack(made)
    learned(causal_folder, [text for own in private.values() for text in own], folder / "model")
    with pytest.raises(NotMeasured, match="began with is not there"):
        loss(made)
    if method == "dp-fedavg":
        remember_start(RunFolder(folder), causal_folder)
    else:
        state = {"model": folder_fingerprint(causal_folder)}
        RunFolder(folder).save_checkpoint(1, state, {"round": 1})
    for attack, least in ((loss, 0.95), (update, 0.7)):  # AdamW's steps are not along gradients
        score = attack(made)
        assert auc(score(private), score(held_out)) > least, attack
        assert np.isfinite(score({"none": [""]})).all()
    found = measure(made)
    assert found["attacks"]["loss"]["auc"][1] > 0.6 and "nearness" not in found["attacks"]
    assert "wrote no text" in found["attacks"]["auxiliary model"]["missing"]


def test_a_model_that_did_not_move_tells_nothing(given: Given, causal_folder: Path) -> None:
    made = given([], *people_of(6), method="dp-fedavg")
    assert made.run is not None
    shutil.copytree(causal_folder, made.run[0] / "model")
    remember_start(RunFolder(made.run[0]), causal_folder)
    with pytest.raises(NotMeasured, match="is the one that its training began with"):
        update(made)


def test_a_model_that_is_not_at_hand_is_said(given: Given) -> None:
    private, held_out = people_of(4)
    away = {"models.downstream": "/nowhere/at/all"}
    with pytest.raises(NotMeasured, match=r"models.downstream is not at hand: .*nowhere"):
        auxiliary(given(["a b c"], private, held_out, method="pretext", **away))
    with pytest.raises(NotMeasured, match="no run folder"):
        auxiliary(texts(["a b c"], private, held_out))


def test_a_run_whose_result_is_a_model_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    run = make_run(tmp_path / "run", None, method="dp-fedavg", epsilon=2.0, delta=1e-6)
    (run / "model").mkdir()
    file = write_users(tmp_path / "users.jsonl", people("p", 3, rng))
    found = read_texts(run, lambda *_: NgramEmbedder(64), against=file)
    assert (
        found.synthetic == []
        and found.published == []
        and found.claim == (2.0, 1e-6)
        and "modules" not in found.no_bound
    )
