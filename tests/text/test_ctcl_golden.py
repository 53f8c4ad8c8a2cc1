"""CTCL's public steps on its authors' inputs and outputs: topics as their script asks BERTopic
(0.17.4) for them, keywords by BERTopic's class-based TF-IDF, the loss of `finetune.py`
(tanyuqian/synthetic-private-data at 7d77a8b)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from privsyn_flower.common.arrays import F32, F64
from privsyn_flower.text.models.batches import seq2seq_loss
from privsyn_flower.text.topics import TopicModel, import_bertopic
from privsyn_flower.text.words import class_words

torch = pytest.importorskip("torch")

GOLDEN = Path(__file__).parents[1] / "golden"
WORDS: dict[str, Any] = json.loads((GOLDEN / "ctcl_keywords.json").read_text("utf-8"))
LOSS: dict[str, Any] = json.loads((GOLDEN / "ctcl_seq2seq_loss.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    with np.load(GOLDEN / "ctcl_topics.npz") as stored:
        return dict(stored)


def topics(rows: Any) -> TopicModel:
    wide = rows.astype(np.float64)
    unit: F32 = (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)
    return TopicModel(unit, (("word",),) * len(unit), "e" * 64)


def test_every_document_has_the_topic_of_theirs(theirs: dict[str, Any]) -> None:
    assert len(theirs["documents"]) == 2000 and len(set(theirs["without"])) == 150
    found = topics(theirs["topics"][1:]).assign(theirs["documents"])
    np.testing.assert_array_equal(found, theirs["without"])


def test_every_text_has_the_topic_of_theirs(theirs: dict[str, Any]) -> None:
    """Embedded texts, 40 in 24 topics, of which the last repeats the first."""
    with np.load(GOLDEN / "minilm_embeddings.npz") as rows:
        found = topics(rows["synthetic"]).assign(rows["private"])
    np.testing.assert_array_equal(found, np.where(theirs["texts"] == 23, 0, theirs["texts"]))


def test_outliers_are_no_topic(theirs: dict[str, Any], tmp_path: Path) -> None:
    """A folder as they publish it, whose first row is BERTopic's outliers."""
    rows = theirs["topics"].astype(np.float32)
    save_file({"topic_embeddings": rows}, tmp_path / "topic_embeddings.safetensors")
    infos = [{"topic_idx": i, "topic_words": [f"word{i}"]} for i in range(-1, len(rows) - 1)]
    (tmp_path / "topic_infos.json").write_text(json.dumps(infos))
    model = import_bertopic(tmp_path, "e" * 64)
    found, inside = model.assign(theirs["documents"]), theirs["with_outliers"] >= 0
    assert len(model) == 150 and 1990 <= inside.sum() < 2000
    np.testing.assert_array_equal(found[inside], theirs["with_outliers"][inside])
    assert (found >= 0).all() and model.keywords[7] == ("word7",)


@pytest.mark.parametrize("number", range(len(WORDS["groups"])))
def test_the_ten_keywords_weigh_what_theirs_do(number: int) -> None:
    """Of equal weights the order is free; theirs rounds the mean length of a class down."""
    chosen = class_words(WORDS["groups"], 10)[number]
    weights = WORDS["weights"][number]
    best = sorted(weights.values(), reverse=True)[:10]
    assert len(set(chosen)) == 10
    assert [weights[word] for word in chosen] == pytest.approx(best, rel=1e-8)


class FixedLogits:
    """A model whose logits are those of the golden rows; checks what its decoder reads."""

    device = "cpu"

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __call__(self, *, decoder_input_ids: Any, **_: Any) -> Any:
        width = decoder_input_ids.shape[1]
        for row, read in zip(self.rows, decoder_input_ids.numpy(), strict=True):
            counts = np.array(LOSS["label_weights"][row][:width]) > 0
            wanted = np.array(LOSS["decoder_input_ids"][row][:width])
            np.testing.assert_array_equal(read[counts], wanted[counts])
        logits: F64 = np.array([LOSS["logits"][row] for row in self.rows])[:, :width]
        return SimpleNamespace(logits=torch.tensor(logits))


@pytest.mark.parametrize(
    ("rows", "loss"),
    [([0, 1, 2, 3], LOSS["loss"]), *(([row], LOSS["losses"][row]) for row in range(4))],
)
def test_the_loss_of_a_batch_and_of_each_record(rows: list[int], loss: float) -> None:
    given = []
    for row in rows:
        ids = [
            token for token, there in zip(LOSS["ids"][row], LOSS["mask"][row], strict=True) if there
        ]
        given.append(
            ([5, 6, 7, *ids[1:]], 3)
        )  # a source of three tokens, then the text and its end
    found = float(seq2seq_loss(FixedLogits(rows), given, first=LOSS["ids"][0][0]))
    assert found == pytest.approx(loss, rel=1e-6)
