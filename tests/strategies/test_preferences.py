"""Ranking and pairing, beside what the paper's code does on the same scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.strategies.synthesis.preferences import (
    Responses,
    preference_pairs,
    rank_responses,
    score_facts,
)
from privsyn_flower.text.prompts import Prompt

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text("utf-8"))


def test_the_papers_preference_dataset() -> None:
    case, texts = golden("popri_preference_dataset.json"), golden("texts.json")["synthetic"]
    scores = np.load(GOLDEN / "popri_scores.npz")["clip_noise0"].reshape(case["K"], case["J"])
    responses = [texts[k * case["J"] : (k + 1) * case["J"]] for k in range(case["K"])]
    pairs = preference_pairs(
        case["prompts"], responses, scores, rejected_rank=case["reject_rank_zero_indexed"] + 1
    )
    assert pairs == case["preference_dataset"]


def test_a_text_that_occurs_twice_has_the_score_of_its_own_place() -> None:
    case = golden("popri_chunk_sort.json")
    width = case["rank_samples"]
    responses = [case["A"][:width], case["A"][width:]]
    scores = np.array(case["B"]).reshape(2, width)
    ranked: list[list[str]] = [[], []]
    for rank in range(2, width + 1):
        for k, pair in enumerate(preference_pairs("pq", responses, scores, rejected_rank=rank)):
            ranked[k] = ranked[k] or [pair["chosen"]]
            ranked[k].append(pair["rejected"])
    assert ranked == case["correct"] != case["result"]


def test_selection_by_rank() -> None:
    scores, order = [3.0, -1.0, 7.0, 7.0, 0.0, 2.5, -4.0, 1.0, 0.0, 9.0], [9, 2, 3, 0, 5]
    texts = [[str(i) for i in range(10)]]
    for place, rejected in enumerate(order[1:], start=2):
        ranking = rank_responses(texts, [scores], rejected_rank=place)
        assert (ranking.chosen.tolist(), ranking.rejected.tolist()) == ([9], [rejected])


def test_ties_keep_the_order_of_the_responses() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 2, (50, 40)).astype(float)
    texts = [[f"{k} {j}" for j in range(40)] for k in range(50)]
    for rank in (2, 17, 40):
        ranking = rank_responses(texts, scores, rejected_rank=rank)
        for k, row in enumerate(scores):
            order = sorted(range(40), key=lambda j, row=row: -row[j])  # Python's sort is stable
            assert (ranking.chosen[k], ranking.rejected[k]) == (order[0], order[rank - 1])


def test_identical_texts_are_dropped_and_counted() -> None:
    responses = [["a", "a", "b"], ["c", "d", "c"]]
    ranking = rank_responses(responses, [[3, 2, 1], [3, 2, 1]], rejected_rank=2)
    assert (ranking.identical, ranking.prompts.tolist()) == (1, [1])
    pairs = preference_pairs(["p", "q"], responses, [[3, 2, 1], [3, 2, 1]], rejected_rank=2)
    assert pairs == [{"prompt": "q", "chosen": "c", "rejected": "d"}]


def test_unusable_responses_are_in_no_pair() -> None:
    responses = [["", "b", "c", "d"], ["", "", "c", "d"], ["", "", "", "d"], [""] * 4]
    scores = np.tile([9.0, 3.0, 2.0, 1.0], (4, 1))
    ranking = rank_responses(responses, scores, rejected_rank=3)
    assert ranking.prompts.tolist() == [0, 1]
    assert ranking.chosen.tolist() == [1, 2]
    assert ranking.rejected.tolist() == [3, 3]
    assert (ranking.unusable, ranking.shortened, ranking.identical) == (2, 1, 0)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_pairs_against_a_slow_ranking(data: Any) -> None:
    count, width = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 6))
    rank = data.draw(st.integers(2, width))
    texts = st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=width, max_size=width)
    responses = data.draw(st.lists(texts, min_size=count, max_size=count))
    values = st.lists(st.integers(-2, 2), min_size=width, max_size=width)
    scores = data.draw(st.lists(values, min_size=count, max_size=count))
    expected, counts = [], {"identical": 0, "unusable": 0, "shortened": 0}
    for k, (row, own) in enumerate(zip(responses, scores, strict=True)):
        usable = sorted((j for j in range(width) if row[j]), key=lambda j, own=own: -own[j])
        if len(usable) < 2:
            counts["unusable"] += 1
            continue
        worse = usable[min(rank, len(usable)) - 1]
        if row[usable[0]] == row[worse]:
            counts["identical"] += 1
            continue
        counts["shortened"] += len(usable) < rank
        expected.append({"prompt": str(k), "chosen": row[usable[0]], "rejected": row[worse]})
    prompts = [str(k) for k in range(count)]
    assert preference_pairs(prompts, responses, scores, rejected_rank=rank) == expected
    ranking = rank_responses(responses, scores, rejected_rank=rank)
    assert {name: getattr(ranking, name) for name in counts} == counts


@pytest.mark.parametrize(
    ("responses", "scores", "rank", "text"),
    [
        ([["a", "b"]], [[1.0, np.nan]], 2, "finite"),
        ([["a", "b"]], [[1.0, 2.0]], 3, r"popri\.rejected-rank = 3 must lie in \[2, 2\]"),
        ([["a", "b"]], [[1.0, 2.0]], 1, "rejected-rank = 1"),
        ([["a", "b"]], [1.0, 2.0], 2, "shape"),
        ([["a", "b"], ["c"]], [[1.0, 2.0]] * 2, 2, "needs 2 responses"),
        ([["a", "b"]], [[1.0, 2.0]] * 2, 2, "shape"),
    ],
)
def test_what_cannot_be_ranked(responses: Any, scores: Any, rank: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        preference_pairs(["p"] * len(responses), responses, scores, rejected_rank=rank)


def test_prompts_and_responses_belong_together() -> None:
    with pytest.raises(ValueError, match="2 prompts"):
        preference_pairs(["p", "q"], [["a", "b"]], [[1.0, 2.0]], rejected_rank=2)


def responses_of(*texts: list[str]) -> Responses:
    return Responses([Prompt(f"p{k}", f"c{k}") for k in range(len(texts))], list(texts))


def test_each_prompt_asks_about_distinct_usable_responses_in_order() -> None:
    made = responses_of(
        ["a", "", "a", "b"], ["a", "a", "", "a"], ["", "", "", ""], ["d", "c", "a", ""]
    )
    assert made.places == [[0, 3], [], [], [0, 1, 2]]
    assert made.texts_to_score == ["a", "b", "d", "c", "a"]
    assert (made.groups, made.classes) == ([2, 3], ["c0", "c3"])
    scores = made.matrix(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert scores.tolist() == [[1, 0, 1, 2], [0] * 4, [0] * 4, [3, 4, 5, 0]]
    with pytest.raises(ValueError, match=r"\(4,\) for 5 responses"):
        made.matrix(np.zeros(4))


def test_responses_on_disk_are_the_same(tmp_path: Path) -> None:
    made = responses_of(["a\u2028é", ""], ["b", "c"])
    made.save(tmp_path / "r.json")
    assert Responses.load(tmp_path / "r.json") == made


def test_signal_to_noise_is_that_of_the_variances() -> None:
    rng = np.random.default_rng(0)
    sizes = [10] * 2000
    within, between = rng.normal(0, 2.0, 20000), np.repeat(rng.normal(0, 4.0, 2000), 10)
    noisy = within + between + rng.normal(0, 0.5, 20000)
    facts = score_facts(noisy, sizes, 0.5)
    assert facts["score_std"] == pytest.approx(noisy.std())
    assert facts["signal_to_noise_within"] == pytest.approx(4 / 0.25, rel=0.05)
    assert facts["signal_to_noise"] == pytest.approx(20 / 0.25, rel=0.1)
    pure = score_facts(rng.normal(0, 0.5, 20000), sizes, 0.5)
    assert pure["signal_to_noise"] < 0.05 and pure["signal_to_noise_within"] < 0.05
