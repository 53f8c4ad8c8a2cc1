"""PrE-Text's mask-filling on the inputs and outputs of its authors' code (houcharlie/PrE-Text at
21e6350, `variation.py`): what is masked, the order of the fills, and the draws that are left."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privsyn_flower.text.models.decoding import choose_tokens
from privsyn_flower.text.variation import MaskFill, mask_ranks

torch = pytest.importorskip("torch")

GOLDEN = Path(__file__).parents[1] / "golden" / "pretext_variation.json"
THEIRS: dict[str, Any] = json.loads(GOLDEN.read_text("utf-8"))
WORDS = 400  # of the deterministic model
MASK, PAD = 50264, 1  # RoBERTa's


class NextNumber(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A masked LM that is sure of the number after the one before a position."""

    def __init__(self) -> None:
        super().__init__()
        self.base_model = torch.nn.Identity()
        self.read: list[Any] = []

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        self.read.append(input_ids.clone())
        sure = torch.nn.functional.one_hot((input_ids.roll(1, dims=1) + 1) % WORDS, WORDS)
        states = SimpleNamespace(last_hidden_state=1e4 * sure.double())
        return SimpleNamespace(logits=self.base_model(states).last_hidden_state)


def filler(mask: int) -> MaskFill:
    """Fills one mask after another, as the authors' code; without a tokenizer."""
    made = object.__new__(MaskFill)
    made.passes, made.temperature, made.top_p, made.device = 0, 1.0, 1.0, "cpu"
    made.tokenizer = SimpleNamespace(mask_token_id=mask)
    made.model = NextNumber()
    made._banned = torch.zeros(WORDS, dtype=torch.bool)
    return made


@pytest.mark.parametrize("order", [(4, 3), (3, 4)])
def test_each_fill_sees_the_earlier_ones(order: tuple[int, int]) -> None:
    own = THEIRS["sequential_fill"]
    tokens = np.array(own["input"])
    ranks = np.full(tokens.shape, -1)
    ranks[0, list(order)] = (0, 1)
    model = filler(own["mask_id"])
    filled = model._fill(tokens, tokens != PAD, ranks, np.full(tokens.shape, 0.5))
    assert filled.tolist() == own["fill_order_{}_then_{}".format(*order)]
    assert [int((read == own["mask_id"]).sum()) for read in model.model.read] == [2, 1]


CASES = [case for case in THEIRS["collate_cases"] if "error" not in case]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['content_tokens']}-{c['mask']}")
def test_the_same_tokens_are_masked_where_as_many_are(case: dict[str, Any]) -> None:
    """Theirs takes the smallest number of the batch, special tokens counted; ours is the text's
    own. Of the shortest text they differ by at most one mask."""
    masked, sizes = np.array(case["input_ids"]), case["content_tokens"]
    content = (np.arange(masked.shape[1]) > 0) & (
        np.arange(masked.shape[1]) <= np.array(sizes)[:, None]
    )
    keys = np.ones(masked.shape)  # theirs are masked first, in their order
    for row, columns in enumerate(case["masked_cols_seed0"]):
        keys[row, columns] = np.arange(len(columns)) / 100
    ranks = mask_ranks(content, keys, case["mask"])
    counts = (ranks >= 0).sum(axis=1)
    assert counts.tolist() == [max(1, int(case["mask"] * n + 0.5)) for n in sizes]
    assert abs(int(counts.min()) - case["num_masks"]) <= 1
    same = np.flatnonzero(counts == case["num_masks"])
    first = filler(MASK)
    tokens = np.where(content, 100 + 7 * (np.arange(masked.shape[1]) - 1), masked)
    first._fill(tokens, masked != PAD, ranks, np.full(tokens.shape, 0.5))
    np.testing.assert_array_equal(first.model.read[0].numpy()[same], masked[same])
    for row in same:
        by_rank = ranks[row].argsort()[-case["num_masks"] :]
        assert by_rank.tolist() == case["masked_cols_seed0"][row]


def drawn(logits: Any, **options: Any) -> tuple[set[int], Any]:
    """The tokens that a thousand even uniforms draw, and the share of each."""
    uniforms = (torch.arange(1000, dtype=torch.float32) + 0.5) / 1000
    found = choose_tokens(logits.expand(1000, -1), uniforms, **options)
    return set(found.tolist()), torch.bincount(found, minlength=logits.shape[-1]) / 1000


def check_left(theirs: list[list[float | str]], logits: list[list[float]], **options: Any) -> None:
    """Ours are drawn in the proportions of the logits that theirs leaves."""
    for row, left in zip(torch.tensor(logits), theirs, strict=True):
        wanted = torch.tensor([float(value) for value in left])
        support, shares = drawn(row[None], **options)
        assert support == set(torch.isfinite(wanted).nonzero().flatten().tolist())
        torch.testing.assert_close(shares, wanted.softmax(-1), atol=2e-3, rtol=0)


def test_top_k_leaves_the_same_tokens() -> None:
    own = THEIRS["top_k"]
    check_left(own["result"], own["logits"], top_k=own["top_k"])


@pytest.mark.parametrize("top_p", THEIRS["top_p_with_F_imported"])
def test_top_p_leaves_the_same_tokens(top_p: str) -> None:
    """With the import that their file lacks; as it is shipped it raises NameError below 1."""
    check_left(
        THEIRS["top_p_with_F_imported"][top_p], THEIRS["top_k"]["logits"], top_p=float(top_p)
    )
