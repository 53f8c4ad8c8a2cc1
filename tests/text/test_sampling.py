"""Drawing tokens by inversion: top-p of the authors' code, bans, edges, frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from privsyn_flower.text.models import decoding  # noqa: E402
from privsyn_flower.text.models.decoding import choose_tokens, penalise  # noqa: E402

LOGITS = torch.tensor([[3.0, 1.0, 2.0, 0.0, -1.0], [0.0, 0.5, 0.4, 2.0, 1.9]])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_frequencies(temperature: float, top_p: float) -> None:
    uniforms = torch.linspace(0, 1, 20001, dtype=torch.float64)[:-1]
    drawn = choose_tokens(
        LOGITS[:1].expand(20000, 5), uniforms, temperature=temperature, top_p=top_p
    )
    p = torch.softmax(LOGITS[0] / temperature, -1).numpy()
    order = np.argsort(-p)
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 20000, p / p.sum(), atol=2e-4)


def test_top_k_keeps_the_likeliest_before_top_p() -> None:
    p = torch.tensor([0.05, 0.4, 0.3, 0.15, 0.1])
    uniforms = torch.linspace(0, 1, 20001, dtype=torch.float64)[:-1]

    def shares(**options: Any) -> Any:
        drawn = choose_tokens(p.log().expand(20000, 5), uniforms, **options)
        return np.bincount(drawn, minlength=5) / 20000

    np.testing.assert_allclose(shares(top_k=3) * 0.85, [0, 0.4, 0.3, 0.15, 0], atol=1e-3)
    # Of the three, the first two have 0.7 / 0.85 > 0.8; of all, three are needed.
    np.testing.assert_allclose(shares(top_k=3, top_p=0.8) * 0.7, [0, 0.4, 0.3, 0, 0], atol=1e-3)
    assert (shares(top_p=0.8) > 0).sum() == 3
    for all_of_them in (0, 5, 99):
        np.testing.assert_allclose(shares(top_k=all_of_them), p, atol=1e-3)
    banned = torch.tensor([False, True, True, False, False])
    np.testing.assert_allclose(
        shares(top_k=2, banned=banned) * 0.25, [0, 0, 0, 0.15, 0.1], atol=1e-3
    )


def test_temperature_0_takes_the_likeliest() -> None:
    uniforms = torch.rand(50, dtype=torch.float64)
    logits = torch.randn(50, 30)
    drawn = choose_tokens(logits, uniforms, temperature=0.0)
    assert drawn.equal(logits.argmax(-1))
    banned = torch.arange(30) < 15
    drawn = choose_tokens(logits, uniforms, temperature=0.0, top_k=3, banned=banned)
    assert drawn.equal(logits[:, 15:].argmax(-1) + 15)


def test_banned_tokens_are_never_drawn_at_the_edges() -> None:
    """u = 0 and the largest u, with banned tokens first and last."""
    banned = torch.tensor([True, False, False, False, True])
    edges = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)  # the latter is 1.0 in float32
    for top_p in (1.0, 0.9, 1e-6):
        for _ in range(20):
            logits = torch.randn(2, 5) * 5
            drawn = choose_tokens(logits, edges, top_p=top_p, banned=banned)
            assert not banned[drawn].any()


def test_rows_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, uniforms = torch.randn(50, 7), torch.rand(50)
    whole = choose_tokens(logits, uniforms)
    monkeypatch.setattr("privsyn_flower.text.models.decoding.BLOCK_VALUES", 21)
    assert choose_tokens(logits, uniforms).equal(whole)
    assert choose_tokens(logits[10:12], uniforms[10:12]).equal(whole[10:12])


def test_repetition_penalty_of_the_library() -> None:
    """Tokens seen twice are made less likely once; whether a logit is positive or not."""
    from transformers import RepetitionPenaltyLogitsProcessor

    seen = torch.tensor([[0, 2, 0], [3, 4, 1]])
    expected = RepetitionPenaltyLogitsProcessor(1.5)(seen, LOGITS)
    assert penalise(LOGITS, seen, 1.5).equal(expected)
    assert not expected.equal(LOGITS)
    uniforms = torch.linspace(0, 1, 201)[:-1]
    drawn = choose_tokens(
        LOGITS[:1].expand(200, 5), uniforms, repetition_penalty=1.5, seen=seen[:1].expand(200, 3)
    )
    assert drawn.equal(choose_tokens(expected[:1].expand(200, 5), uniforms))


def test_ranks_of_equal_weights_do_not_matter() -> None:
    """The last bit of a logit changes at most what is drawn at the nucleus' edge."""
    logits = torch.zeros(1, 600)
    nudged = logits.clone()
    nudged[0, ::7] += 1e-7
    uniforms = torch.linspace(0, 1, 1001)[:-1]
    moved = choose_tokens(nudged.expand(1000, 600), uniforms, top_p=0.999)
    kept = choose_tokens(logits.expand(1000, 600), uniforms, top_p=0.999)
    assert float((moved == kept).float().mean()) > 0.9


@pytest.mark.parametrize("scale", [0.0, 0.5, 4.0, 30.0])
@pytest.mark.parametrize("ties", [False, True])
def test_ranking_the_likeliest_alone_keeps_the_same_tokens(scale: float, ties: bool) -> None:
    """In a large vocabulary: flat and steep rows, equal weights at the edge, tokens of none."""
    logits = torch.randn(12, 9000, generator=torch.manual_seed(0)) * scale
    logits = logits.round() if ties else logits
    logits[:, 100:900] = -torch.inf
    weights = torch.softmax(logits, -1)
    assert weights.shape[1] > 4 * decoding.LIKELY
    for top_p in (0.01, 0.5, 0.95, 0.999):
        ranked, order = weights.sort(dim=-1, descending=True, stable=True)
        ranked[ranked.cumsum(-1) - ranked >= top_p] = 0
        ranked[:, 0].clamp_(min=torch.finfo(ranked.dtype).tiny)
        want = torch.zeros_like(weights).scatter(1, order, ranked)
        assert torch.equal(decoding._nucleus(weights, top_p), want)
