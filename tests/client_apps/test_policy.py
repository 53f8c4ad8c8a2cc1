"""The policy file: safe defaults, errors that name key and bound, refusals by code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.client_apps.node.policy import (
    Policy,
    check_cohort,
    check_member,
    check_query,
    check_work,
    load_policy,
    load_roster,
)
from privsyn_flower.config import ConfigError
from privsyn_flower.protocol.wire import Refusal, WireError

QUERY: dict[str, Any] = {
    "aggregation": "secure",
    "kind": "votes",
    "noise_multiplier": 1.0,
    "min_weight": 10.0,
    "colluding": 0.0,
    "length": 20_000,
    "neighbors": 16,
    "model": "m1",
    "round": 200,
}
KEYS = [bytes([i]) * 32 for i in range(3)]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def roster_toml(*rows: str) -> str:
    return "".join(f"[[nodes]]\n{row}\n" for row in rows)


def entry(i: int, **extra: Any) -> str:
    values = {"name": f"n{i}", "key": KEYS[i].hex(), "weight": i + 1, **extra}
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())


def test_the_defaults_allow_their_own_bounds() -> None:
    check_query(load_policy(None), **QUERY)
    check_cohort(Policy(), weights=[5, 3, 2], min_weight=10.0)
    assert Policy().max_tokens == 500_000
    check_work(Policy(), 500_000)


@pytest.mark.parametrize(
    ("policy", "change", "key"),
    [
        ({}, {"kind": "update"}, "policy key queries"),
        ({"queries": ("update",)}, {"kind": "update", "length": 20_000_001}, "max-parameters"),
        ({"queries": ("update",), "max_parameters": 9}, {"kind": "update"}, "max-parameters"),
        ({}, {"source": "aggregator"}, "trusted-aggregator"),
    ],
)
def test_what_an_owner_must_allow_for_training(
    policy: dict[str, Any], change: dict[str, Any], key: str
) -> None:
    with pytest.raises(WireError, match=key) as caught:
        check_query(Policy(**policy), **QUERY | change)
    assert caught.value.code is Refusal.POLICY
    allowed = Policy(queries=("votes", "update"), trusted_aggregator=True, max_parameters=10**8)
    check_query(allowed, **QUERY | {"source": "aggregator"} | change)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"aggregation": "plain"}, "aggregation"),
        ({"kind": "weights"}, "queries"),
        ({"noise_multiplier": 0.999}, "min-noise-multiplier"),
        ({"noise_multiplier": float("nan")}, "min-noise-multiplier"),
        ({"min_weight": 9.9}, "min-surviving-weight"),
        ({"min_weight": float("inf")}, "min-surviving-weight"),
        ({"min_weight": 1_000_001.0}, "max-surviving-weight"),
        ({"colluding": -0.1}, "min-colluding-share"),
        ({"length": 20_001}, "max-candidates"),
        ({"neighbors": 17}, "max-neighbors"),
        ({"past_vectors": 1}, "max-past-vectors"),
        ({"round": 201}, "max-rounds-per-run"),
        ({"round": float("nan")}, "max-rounds-per-run"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused(change: dict[str, Any], key: str) -> None:
    with pytest.raises(WireError, match=key) as caught:
        check_query(Policy(), **{**QUERY, **change})
    assert caught.value.code is Refusal.POLICY
    assert str(next(iter(change.values()))) in str(caught.value)


def test_models_and_colluders_of_the_owners_choice() -> None:
    policy = Policy(allowed_models=("m1", "m2"), min_colluding_share=0.1)
    check_query(policy, **{**QUERY, "colluding": 0.1})
    with pytest.raises(WireError, match="allowed-models"):
        check_query(policy, **{**QUERY, "colluding": 0.1, "model": "m3"})
    with pytest.raises(WireError, match=r"min-colluding-share"):
        check_query(policy, **{**QUERY, "colluding": 0.05})


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"weights": [], "min_weight": 10.0}, "min-cohort"),
        ({"weights": [50, 50], "min_weight": 10.0}, "min-cohort"),
        ({"weights": [2] * 9, "min_weight": 20.0}, "W_min = 20"),
        ({"weights": [5] * 5, "min_weight": 20.0, "colluding": 5.5}, "5.5 assumed colluding"),
        ({"weights": [5] * 5, "min_weight": 9.0}, "min-surviving-weight"),
        ({"weights": [5] * 5, "min_weight": 10.0, "colluding": -1.0}, "colluding"),
        ({"weights": [5] * 5, "min_weight": 10.0, "colluding": float("nan")}, "nan"),
        ({"weights": [250_001] * 4, "min_weight": 10.0}, "max-population"),
        ({"weights": [400_000] * 4, "min_weight": 1_200_000.0}, "max-surviving-weight"),
        ({"weights": [985, 5, 5, 5], "min_weight": 700.0}, "max-member-share"),
        ({"weights": [13, 6, 6], "min_weight": 10.0}, "max-member-share"),
        ({"weights": [10**9, 5, 5, 5], "min_weight": 15.0}, "max-population"),
    ],
)
def test_too_few_are_refused(values: dict[str, Any], word: str) -> None:
    with pytest.raises(WireError, match=word) as caught:
        check_cohort(Policy(), **values)
    assert caught.value.code is Refusal.POLICY


def test_the_owners_share_of_colluders_holds_for_the_sum() -> None:
    policy = Policy(min_colluding_share=0.2)
    check_cohort(policy, weights=[10] * 5, min_weight=40.0, colluding=10.0)
    for each in range(10, 100):  # the server's share, as a weight and as a share again
        colluding = 0.2 * 3 * each
        check_cohort(policy, weights=[each] * 3, min_weight=10.0, colluding=colluding)
        check_query(policy, **{**QUERY, "colluding": colluding / (3 * each)})
    with pytest.raises(WireError, match="min-colluding-share"):
        check_cohort(policy, weights=[10] * 5, min_weight=40.0, colluding=9.0)


@given(
    weights=st.lists(st.integers(1, 1000), min_size=3, max_size=12),
    share=st.floats(0.05, 0.95), least=st.floats(0.3, 1.0),
)  # fmt: skip
def test_one_liar_takes_no_more_than_its_share_of_the_noise(
    weights: list[int], share: float, least: float
) -> None:
    """docs/threat-model.md: whoever it is, the others hold (1 - share) of the noise's variance."""
    min_weight = least * sum(weights)
    policy = Policy(max_member_share=share, min_surviving_weight=1.0)
    try:
        check_cohort(policy, weights=weights, min_weight=min_weight)
    except WireError:
        return
    for liar in weights:
        assert (sum(weights) - liar) / min_weight >= (1 - share) * (1 - 1e-6)


def test_a_rota_is_company_for_a_turn_and_noise_of_all() -> None:
    check_query(Policy(), **QUERY | {"min_weight": 40.0, "cycle": 4})
    with pytest.raises(WireError, match="min-surviving-weight"):
        check_query(Policy(), **QUERY | {"min_weight": 40.0, "cycle": 5})
    with pytest.raises(WireError, match="max-surviving-weight"):
        check_query(Policy(), **QUERY | {"min_weight": 1_000_001.0, "cycle": 4})


def test_a_question_that_computes_too_long_is_refused() -> None:
    with pytest.raises(WireError, match="max-tokens") as caught:
        check_work(Policy(max_tokens=99), 100)
    assert caught.value.code is Refusal.POLICY


@given(
    noise=st.floats(0.01, 100), least=st.floats(0.01, 100), length=st.integers(1, 10**6),
    most=st.integers(1, 10**6),
)  # fmt: skip
def test_bounds_are_sharp(noise: float, least: float, length: int, most: int) -> None:
    policy = Policy(min_noise_multiplier=least, max_candidates=most)
    allowed = noise >= least and length <= most
    try:
        check_query(policy, **{**QUERY, "noise_multiplier": noise, "length": length})
    except WireError:
        assert not allowed
    else:
        assert allowed


def test_a_file_overrides_the_defaults(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.toml",
        'aggregation = ["secure", "plain"]\nmin-noise-multiplier = 2\nroster = "r.toml"\n',
    )
    policy = load_policy(path)
    assert policy.aggregation == ("secure", "plain")
    assert policy.min_noise_multiplier == 2
    assert policy.roster_path == tmp_path / "r.toml"
    assert policy.lifetime_epsilon == Policy().lifetime_epsilon


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("min-nois-multiplier = 1.0", ["min-nois-multiplier", "min-noise-multiplier"]),
        ("min_cohort = 3", ["min_cohort", "did you mean 'min-cohort'"]),
        ("min-cohort = 0", ["min-cohort = 0", "greater than or equal to 1"]),
        ('min-cohort = "3"', ["min-cohort = '3'"]),
        ("min-noise-multiplier = 0.0", ["min-noise-multiplier", "greater than 0"]),
        ("min-noise-multiplier = nan", ["min-noise-multiplier", "finite"]),
        ('aggregation = ["plian"]', ["aggregation", "plian", "'secure' or 'plain'"]),
        ('queries = "votes"', ["queries", "votes"]),
        ("require-roster = true", ["require-roster", "set roster"]),
        ("max-surviving-weight = 9.0", ["max-surviving-weight = 9", "min-surviving-weight = 10"]),
        ("max-member-share = 1.5", ["max-member-share = 1.5", "less than or equal to 1"]),
        ("a = [", ["not valid TOML"]),
    ],
)
def test_wrong_files_are_explained(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path / "p.toml", text)
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    for word in ["p.toml", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "p.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"p\.toml"):
        load_policy(path)


def test_a_roster_keeps_the_revoked_and_refuses_them(tmp_path: Path) -> None:
    path = write(tmp_path / "r.toml", roster_toml(entry(0), entry(1, revoked=True)))
    roster = load_roster(path)
    assert list(roster) == KEYS[:2]
    assert check_member(roster, KEYS[0], 1).name == "n0"
    for key, weight, word in [(KEYS[1], 2, "revoked"), (KEYS[2], 3, "not in"), (KEYS[0], 2, "1")]:
        with pytest.raises(WireError, match=word) as caught:
            check_member(roster, key, weight)
        assert caught.value.code is Refusal.POLICY


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_roster_as_json(tmp_path: Path, wrapped: bool) -> None:
    rows = [{"name": "a", "key": KEYS[0].hex().upper(), "weight": 4}]
    path = write(tmp_path / "r.json", json.dumps({"nodes": rows} if wrapped else rows))
    assert load_roster(path)[KEYS[0]].weight == 4


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (roster_toml(entry(0), entry(1, key=KEYS[0].hex())), "twice"),
        (roster_toml(entry(1, key="AB" * 32), entry(0, key="ab" * 32)), "twice"),
        (roster_toml(entry(0), entry(1, name="n0")), "'n0' appears twice"),
        (roster_toml(entry(0, key="ab" * 31)), "node 1: key"),
        (roster_toml(entry(0), entry(1, weight=0)), "node 2: weight = 0"),
        (roster_toml(entry(0, owner="me")), "owner"),
        ("", "no nodes"),
        ("[[node]]\n" + entry(0), "'nodes'"),
        ("nodes = [3]", "node 1"),
    ],
)
def test_wrong_rosters_are_explained(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load_roster(write(tmp_path / "r.toml", text))


@pytest.mark.parametrize("text", ["[", "[" * 100_000, "3", "[]", '"nodes"'])
def test_wrong_json_rosters_are_explained(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"r\.json"):
        load_roster(write(tmp_path / "r.json", text))
