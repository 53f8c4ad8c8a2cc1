"""Batches drawn as they are needed, what is held meanwhile, and the learning rate's schedules."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

from privsyn_flower.evaluation.rows import TokenRows, row_lengths
from privsyn_flower.evaluation.tuning import Plateau, Tuning, batches, learning_rate_factor

PAPER = Tuning(0, 65_536, 64, 2e-4, epochs=20)  # PrE-Text, appendix D.2 (1)


def cut(rows, tuning, start=0):
    """The batches as rows of ids."""
    lengths = row_lengths(rows)
    return [
        [list(rows[r][:k]) for r, k in zip(b.rows.tolist(), b.tokens.tolist(), strict=True)]
        for b in batches(lengths, tuning, start)
    ]


def listed(rows, tuning):
    """All batches of equal tokens at once, from the definition: what streaming has to equal."""
    usable = [row for row in rows if len(row) > 1]
    rng = np.random.default_rng(tuning.seed)
    result, waiting = [], []
    for _ in range(tuning.steps):
        batch, room = [], tuning.batch_tokens
        while room > 0:
            waiting = waiting or rng.permutation(len(usable)).tolist()
            batch.append(usable[waiting.pop()][: room + 1])
            room -= len(batch[-1]) - 1
        result.append(batch)
    return result


def some_rows(seed=0, count=30, shortest=1, longest=20):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(shortest, longest, size=count)
    return [rng.integers(99, size=size).tolist() for size in sizes]


def test_streamed_batches_are_those_of_a_list() -> None:
    tuning = Tuning(steps=25, batch_size=4, length=16, learning_rate=1e-3, seed=3)
    rows = some_rows()
    expected = listed(rows, tuning)
    assert cut(rows, tuning) == expected == cut(TokenRows(rows), tuning)
    assert {sum(len(row) - 1 for row in batch) for batch in expected} == {64}
    assert cut(rows, tuning, start=17) == expected[17:]


def test_every_text_is_read_before_one_is_read_again() -> None:
    rows = [[i, i, i] for i in range(10)]
    for texts in (False, True):
        tuning = Tuning(5, 2, 2, 1e-3, texts=texts)
        order = [row[0] for batch in cut(rows, tuning) for row in batch]
        assert sorted(order) == list(range(10))


def test_batches_of_texts_go_on_into_the_next_pass() -> None:
    rows = [[i] * 3 for i in range(7)]
    tuning = Tuning(5, 4, 8, 1e-3, seed=6, texts=True)
    found = cut(rows, tuning)
    assert [len(batch) for batch in found] == [4] * 5
    rng = np.random.default_rng(6)
    order = np.concatenate([rng.permutation(7) for _ in range(3)])[:20]
    assert [row[0] for batch in found for row in batch] == order.tolist()
    assert cut(rows, tuning, start=2) == found[2:]


def test_an_epoch_reads_every_text_once_and_ends_with_what_is_left() -> None:
    rows = [[i] * (2 + i % 5) for i in range(10)]
    tuning = Tuning(0, 4, 8, 1e-3, epochs=3)
    found = cut(rows, tuning)
    assert [len(batch) for batch in found] == [4, 4, 2] * 3 and tuning.steps_of(10) == 9
    for first in (0, 3, 6):
        order = [row[0] for batch in found[first : first + 3] for row in batch]
        assert sorted(order) == list(range(10))
    assert found[:3] != found[3:6]
    assert all(row == rows[row[0]] for batch in found for row in batch)  # none is cut
    assert cut(rows, tuning, start=4) == found[4:]


def test_the_papers_steps() -> None:
    """20 epochs of 2,000,000 texts by 65,536, and 80 of 1,000,000 by 160."""
    assert PAPER.steps_of(2_000_000) == 20 * 31
    assert Tuning(0, 160, 64, 2e-4, epochs=80).steps_of(1_000_000) == 500_000
    assert Tuning(0, 160, 64, 2e-4, epochs=80).steps_of(72_000) == 36_000


def test_a_batch_of_the_papers_size() -> None:
    lengths = np.full(131_072 + 5, 64)
    sizes = [len(batch.rows) for batch in batches(lengths, PAPER)]
    assert sizes == [65_536, 65_536, 5] * 20


@pytest.mark.slow
@pytest.mark.parametrize("way", [{}, {"texts": True}, {"epochs": 2000}])
def test_memory_does_not_grow_with_the_number_of_steps(way: dict) -> None:
    """Twenty thousand steps hold what a hundred do."""
    size = 1 if way == {} else 8
    lengths = np.full(50 * size, 8)

    def peak(steps: int) -> int:
        own = way | ({"epochs": steps // 50} if "epochs" in way else {})  # of 50 steps
        drawn = batches(lengths, Tuning(steps, size, 7, 1e-3, **own))
        tracemalloc.start()
        count = sum(1 for _ in drawn)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == steps
        return top

    peak(100)
    assert peak(20_000) < peak(100) + 20_000  # bytes: one a step would be too many


@pytest.mark.parametrize("texts", [False, True])
def test_nothing_to_train_on_is_refused(texts: bool) -> None:
    with pytest.raises(ValueError, match="the set is empty"):
        next(batches(np.array([1] * (not texts)), Tuning(1, 1, 4, 1e-3, texts=texts)))
    with pytest.raises(ValueError, match=r"3 passes over no text .evaluation.epochs.*set is empty"):
        Tuning(1, 1, 4, 1e-3, epochs=3).steps_of(0)


def test_rows_are_lists_in_less_memory() -> None:
    rows = some_rows(shortest=0)
    kept = TokenRows(rows)
    assert kept == rows and len(kept) == 30 and list(kept) == rows
    assert kept[-1] == rows[-1] and kept[3:9:2] == rows[3:9:2] and kept[5] == rows[5]
    assert kept.lengths.tolist() == [len(row) for row in rows]
    assert kept._ids.nbytes == 4 * sum(map(len, rows))
    with pytest.raises(IndexError):
        kept[30]
    assert len(TokenRows([])) == 0 and not TokenRows([]) and kept != rows[:-1]


def test_learning_rate_rises_and_falls_to_zero() -> None:
    factors = [learning_rate_factor(step, 100) for step in range(100)]
    assert max(factors) == pytest.approx(1.0)
    assert factors[0] == pytest.approx(0.1) and factors[-1] < 0.02
    assert learning_rate_factor(0, 1) > 0


def by(schedule, warm_up, steps=40):
    tuning = Tuning(steps, 1, 8, 1e-3, schedule=schedule, warm_up=warm_up)
    return [learning_rate_factor(step, steps, tuning) for step in range(steps)]


def test_the_default_is_a_tenth_of_warm_up_and_a_linear_fall() -> None:
    assert by("linear", 0.1) == [learning_rate_factor(step, 40) for step in range(40)]
    expected = [min((s + 1) / 4, (40 - s) / 36) for s in range(40)]
    assert by("linear", 0.1) == pytest.approx(expected)


def test_schedules_without_warm_up_are_those_of_transformers() -> None:
    import torch
    from transformers import get_scheduler

    for ours, theirs in (("linear", "linear"), ("cosine", "cosine"), ("constant", "constant")):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = get_scheduler(theirs, optimizer, num_warmup_steps=0, num_training_steps=40)
        rates = []
        for _ in range(40):
            rates.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        assert by(ours, 0.0) == pytest.approx(rates, abs=1e-12)


def test_a_warm_up_comes_before_every_schedule() -> None:
    for schedule in ("linear", "cosine", "constant"):
        factors = by(schedule, 0.25)
        assert factors[:10] == pytest.approx([(s + 1) / 10 for s in range(10)], abs=0.03)
        assert max(factors) == pytest.approx(1.0)
    assert by("constant", 0.25)[10:] == [1.0] * 30
    assert by("cosine", 0.25)[25] == pytest.approx(0.5, abs=0.02)


def test_it_is_reached_when_the_lowest_loss_is_too_long_ago() -> None:
    plateau = Plateau.of(8)
    assert plateau.every == 2
    for step, loss in ((0, 4.0), (2, 3.0), (4, 3.5), (6, 2.5), (8, 2.5)):
        plateau.add(step, loss)
        assert not plateau.reached(step)
    assert plateau.best == 6, "of equal losses the first"
    plateau.add(14, float("nan"))
    assert plateau.reached(14) and plateau.best == 6
    assert plateau.figures(14) == {
        "steps": 14, "kept_step": 6, "public_validation_loss": 2.5, "loss_before": 4.0,
        "converged": True,
    }  # fmt: skip


def test_it_goes_on_from_a_checkpoint() -> None:
    plateau, other = Plateau(1, 2), Plateau(1, 2)
    plateau.add(0, 2.0)
    plateau.add(1, 3.0)
    other.restore(json.loads(json.dumps(plateau.losses)))
    assert other == plateau
    other.add(2, 3.0)
    assert other.reached(2)
    with pytest.raises(ValueError):
        Plateau.of(1).best  # noqa: B018
