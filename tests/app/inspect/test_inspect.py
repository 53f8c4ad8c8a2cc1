"""An inspection as a whole: honest text does not ring, copied text does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from privsyn_flower.app.inspect import CHECKS, FILE, NOTE, described, inspect, save
from tests.app.inspect.rigs import people, sentence, texts


def test_honest_text_does_not_ring() -> None:
    rng = np.random.default_rng(1)
    given = texts([sentence(rng) for _ in range(300)], people("p", 60, rng), people("h", 60, rng))
    found = inspect(given)
    assert found["replay"]["rows"] == [] and found["replay"]["found"] == []
    assert found["copies"]["private"]["quantiles"]["1"] <= 5
    assert found["copies"]["equal"]["users"] == found["copies"]["held_out"]["users"] == 60
    value, low, high = found["membership"]["attacks"]["nearness"]["auc"]
    assert (
        low < 0.5 < high
        and low <= value <= high
        and found["membership"]["attacks"]["nearness"]["p_value"] > 0.05
    )


def test_copied_text_rings_in_every_check() -> None:
    rng = np.random.default_rng(2)
    private, held_out = people("p", 40, rng), people("h", 40, rng)
    private["p7"].append(f"write to Zoltan Quibble at zoltan@quibble.example {sentence(rng)}")
    copied = [own[-1] for own in private.values()]
    found = inspect(texts([*copied, *(sentence(rng) for _ in range(40))], private, held_out))
    assert found["copies"]["private"]["quantiles"]["0.5"] >= 14
    assert found["copies"]["held_out"]["quantiles"]["1"] <= 5
    assert found["copies"]["longest"][0]["row"] == 7
    value, low, _ = found["membership"]["attacks"]["nearness"]["auc"]
    assert (
        value > 0.9 and low > 0.8 and found["membership"]["attacks"]["nearness"]["p_value"] < 1e-6
    )
    values = {(one["kind"], one["value"]) for one in found["replay"]["found"]}
    assert {("e-mail", "zoltan@quibble.example"), ("name", "Zoltan Quibble")} <= values
    assert found["replay"]["rows"] == [7] and found["replay"]["users"] == 1
    told = described(found)
    assert told.startswith(NOTE) and "NOT covered by epsilon" in told
    assert (
        "zoltan@quibble.example (text 8)" in told
        and "40 private against 40 held-out users, AUC" in told
    )


def test_without_held_out_users_it_says_what_is_missing() -> None:
    rng = np.random.default_rng(3)
    found = inspect(texts([sentence(rng)], people("p", 3, rng)))
    assert set(found["copies"]) == {"private", "longest", "unspaced_texts"}
    assert all("expected" not in own for own in found["replay"]["kinds"].values())
    assert "no held-out users" in found["membership"]["missing"]
    assert "of people not measured: no held-out users (--held-out FILE)" in described(found)


def test_the_file_is_its_owners_alone_and_says_that_it_is_private(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    found = inspect(texts([sentence(rng)], people("p", 3, rng)))
    path = save(tmp_path, found)
    assert path == tmp_path / FILE and path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    told = json.loads(path.read_text())
    assert told == found and next(iter(told)) == "private" and told["private"] == NOTE
    assert CHECKS.keys() <= told.keys()
