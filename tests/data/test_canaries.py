"""Made-up users in the places of private ones: by a coin each, and nobody else moves."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from privsyn_flower.common.files import DataError
from privsyn_flower.config import DataConfig, RunConfig
from privsyn_flower.data import Federation, prepare
from privsyn_flower.data.canaries import PREFIX, SUFFIX, canaries

LONG = " and so on and on, as such texts do when nobody stops them in time"
POOL = [f"text {i} has some words of its own and the number {i} in it{LONG}" for i in range(50)]
FLAT = {
    "data.source": "docstrings",
    "data.private-packages": "rich",
    "data.public-packages": "typer,click",
    "data.minority-packages": "",
    "data.minority-share": 0.0,
    "data.users": 30,
    "data.held-out-users": 2,
    "data.development-users": 0,
    "data.public-pool": 60,
    "data.public-validation": 8,
    "benchmark": True,
}


def test_a_canary_begins_as_a_public_text_and_ends_as_none() -> None:
    config = DataConfig(users=90, canaries=40, seed=3)
    made = canaries(POOL, config)
    assert made == canaries(POOL, config) and made != canaries(
        POOL, DataConfig(users=90, canaries=40)
    )
    assert len({one.place for one in made}) == len({one.text for one in made}) == 40
    begins = {" ".join(text.split()[:PREFIX]) for text in POOL}
    words = {word for text in POOL for word in text.split()}
    for one in made:
        own = one.text.split()
        assert len(own) == PREFIX + SUFFIX and " ".join(own[:PREFIX]) in begins
        assert set(own[PREFIX:]) <= words and one.text not in POOL


def test_coins_are_fair_and_each_canarys_own() -> None:
    coins = [
        [one.present for one in canaries(POOL, DataConfig(users=50, canaries=50, seed=seed))]
        for seed in range(40)
    ]
    assert 0.45 < sum(map(sum, coins)) / 2000 < 0.55
    assert len({tuple(own) for own in coins}) == 40


def test_a_script_without_spaces_is_cut_by_characters() -> None:
    texts = [
        f"{chr(0x4E00 + i)}我们今天去公园散步然后回家吃饭看电视再睡觉了吧好的" for i in range(9)
    ]
    (made,) = canaries(texts, DataConfig(users=9, canaries=1))
    assert len(made.text) == PREFIX + SUFFIX and " " not in made.text


def test_too_few_public_texts_are_an_error() -> None:
    with pytest.raises(DataError, match=r"data.canaries = 51: .* the public pool has 50; lower it"):
        canaries(POOL, DataConfig(users=90, canaries=51))


def test_only_the_canaries_places_change(tmp_path: Path) -> None:
    plain, made = (
        Federation(prepare(RunConfig.from_flat(FLAT | {"data.canaries": n}).data, tmp_path))
        for n in (0, 12)
    )
    before, after = list(plain.shard(0, 1).items()), list(made.shard(0, 1).items())
    own = {one.place: one for one in made.canaries()}
    assert len(own) == 12 and {one.present for one in own.values()} == {True, False}
    assert len(before) == len(after) == 30 and plain.canaries() == []
    for place, (user, texts) in enumerate(after):
        if place in own:
            held = [own[place].text] * 8 if own[place].present else []
            assert (user, list(texts)) == (own[place].name, held)
        else:
            assert (user, list(texts)) == (before[place][0], list(before[place][1]))
    assert made.public() == plain.public()
    assert dict(made.held_out("test")) == dict(plain.held_out("test"))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"benchmark": False}, "data.canaries = 12: made-up users take the places"),
        ({"data.canaries": 31}, "data.canaries = 31 exceeds data.users = 30"),
    ],
)
def test_canaries_are_for_a_benchmark_and_no_more_than_users(
    more: dict[str, object], told: str
) -> None:
    with pytest.raises((ValidationError, ValueError), match=told):
        RunConfig.from_flat({**FLAT, "data.canaries": 12, **more})
