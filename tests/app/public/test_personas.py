"""The grid of personas: its size, each variable's values, and the draw."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from privsyn_flower.app.public.chats import AGES, APPS, DAYS, GENDERS, PERSONAS, TIMES, draw


def test_the_grid_has_the_papers_size() -> None:
    sizes = [len(values) for values in (GENDERS, AGES, TIMES, DAYS, APPS)]
    assert sizes == [2, 44, 3, 40, 7]
    assert len(PERSONAS) == len(set(PERSONAS)) == 73_920


@pytest.mark.parametrize("place", range(5))
def test_every_value_of_a_variable_is_as_common_as_the_others(place: int) -> None:
    counts = Counter(persona[place] for persona in PERSONAS)
    assert set(counts) == set((GENDERS, AGES, TIMES, DAYS, APPS)[place])
    assert len(set(counts.values())) == 1


def test_a_draw_is_seeded_without_repetition_and_the_beginning_of_a_longer_one() -> None:
    few = draw(500, np.random.default_rng(3))
    assert few == draw(2000, np.random.default_rng(3))[:500]
    assert few != draw(500, np.random.default_rng(4))
    assert len(set(few)) == 500
    assert set(draw(len(PERSONAS), np.random.default_rng(0))) == set(PERSONAS)


def test_a_draw_is_uniform() -> None:
    """Each of 44 ages is expected 909 times in 40,000; five standard deviations are 150."""
    counts = Counter(persona.age for persona in draw(40_000, np.random.default_rng(0)))
    assert set(counts) == set(AGES)
    assert max(abs(count - 40_000 / 44) for count in counts.values()) < 150


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"chat\.personas = 73921"):
        draw(73_921, np.random.default_rng(0))
