"""What one user alone wrote, found again; and hostile text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privsyn_flower.app.inspect.replay import described, measure, names_of, values_of
from tests.app.inspect.rigs import texts


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("mail Ann.B+x@Sub.Example.org.", {("e-mail", "ann.b+x@sub.example.org")}),
        ("see https://a.example/x?y=1, or (www.b.example).",
         {("url", "https://a.example/x?y=1"), ("url", "www.b.example")}),
        ("call +1 (555) 123-4567 now", {("phone", "15551234567"), ("number", "4567")}),
        ("call 15551234567", {("phone", "15551234567"), ("number", "15551234567")}),
        ("card 4111 1111 1111 1111", {("phone", "4111111111111111"), ("number", "4111"),
                                      ("number", "1111")}),
        ("pin ４２４２, room 12", {("number", "4242")}),
        ("no @ and 123 and a.b", set()),
    ],
)  # fmt: skip
def test_addresses_and_numbers(text: str, wanted: set[tuple[str, str]]) -> None:
    assert set(values_of(text)) == wanted


def test_names_are_capitalised_words_that_nobody_writes_otherwise() -> None:
    found = {
        value for _, value in names_of("Today Zoë O'Brien met LOL Rose. Márta", {"today", "rose"})
    }
    assert found == {"Zoë", "O'Brien", "Zoë O'Brien", "Márta"}


def test_a_value_counts_where_one_private_user_has_it_and_no_public_text() -> None:
    private = {"p0": ["a@x.org and b@x.org, Zoltan"], "p1": ["b@x.org c@x.org"], "p2": ["no more"]}
    synthetic = ["a@x.org b@x.org c@x.org", "zero", "ZOLTAN Zoltan a@x.org"]
    found = measure(texts(synthetic, private, public=["c@x.org"]))
    assert [(one["value"], one["user"], one["rows"]) for one in found["found"]] == [
        ("a@x.org", "p0", [0, 2]), ("Zoltan", "p0", [2])
    ]  # fmt: skip
    assert found["kinds"]["e-mail"] == {"hits": 1, "texts": 2, "users": 1, "candidates": 1}
    assert found["rows"] == [0, 2] and found["users"] == 1
    assert (
        measure(texts(synthetic, private, public=["c@x.org ZOLTAN"]))["kinds"]["name"]["hits"] == 0
    )


def test_chance_is_that_of_held_out_users_scaled_to_the_candidates() -> None:
    private = {f"p{i}": [f"number {1000 + i}"] for i in range(40)} | {"both": ["it was 7777"]}
    held_out = {f"h{i}": [f"number {2000 + i}"] for i in range(10)} | {"x": ["it was 7777"]}
    synthetic = ["1001 and 1002 and 1003 and 7777", "2001 2002"]
    own = measure(texts(synthetic, private, held_out))["kinds"]["number"]
    assert (own["candidates"], own["hits"]) == (41, 4)
    assert (own["compared"], own["compared_hits"]) == (40, 3)  # 7777 is a held-out user's, too
    assert (own["held_out_candidates"], own["held_out_hits"], own["expected"]) == (10, 2, 8.0)


def test_hostile_text_takes_linear_time_and_steers_no_terminal() -> None:
    rng = np.random.default_rng(0)
    pieces = ["a" * 50_000, "a." * 30_000, "1 " * 30_000, "1-" * 30_000, "@a" * 30_000,
              "a@" + "b-" * 30_000, "a@b." * 20_000, "http://" * 9_000, "A'" * 30_000,
              "Ab-" * 20_000, "\u202e\x1b[2J", "9" * 90_000]  # fmt: skip
    hostile = [piece[:40_000] for piece in pieces] + ["".join(rng.permutation(pieces))[:40_000]]
    escape = "http://evil.example/\x1b[2J\u202e<script> Mallory\x07"
    found = measure(texts([*hostile, escape], {"p": hostile, "q": [escape]}))
    assert "url" in {one["kind"] for one in found["found"]}
    for line in described(found):
        assert line.isprintable()


def test_an_ordinary_word_is_public_or_two_peoples() -> None:
    private = {"p": ["Zoltan, or zoltan, zoltan@x.org", "Gonna go"], "q": ["gonna"], "r": ["gonna"]}
    found = measure(texts(["Zoltan Gonna"], private))
    assert [one["value"] for one in found["found"]] == ["Zoltan"]


def test_names_that_chance_explains_refuse_nothing() -> None:
    """As many of held-out users' names are found: a text full of names replays nobody."""
    private = {f"p{i}": [f"i met Qzor{'abcdefghij'[i]} there"] for i in range(10)}
    held_out = {f"h{i}": [f"i met Vrim{'abcdefghij'[i]} there"] for i in range(10)}
    both = [own[0] for side in (private, held_out) for own in list(side.values())[:4]]
    found = measure(texts(both, private, held_out))
    assert found["kinds"]["name"]["hits"] == 4 and found["kinds"]["name"]["p_value"] > 0.5
    assert found["rows"] == [] and len(found["found"]) == 4
    mine = measure(texts([own[0] for own in private.values()], private, held_out))
    assert mine["kinds"]["name"]["p_value"] < 1e-4 and mine["rows"] == list(range(10))
    alone = measure(texts(both[:1], private))  # nothing says what chance would do
    assert alone["rows"] == [0]


def test_a_seed_that_replays_a_value_is_found() -> None:
    given = replace(
        texts(["nothing"], {"p": ["write to me@here.example"]}),
        seeds=[("a b c", 1.0), ("write to me@here.example", 2.0)],
    )
    found = measure(given)
    assert found["rows"] == [] and found["seeds"] == [1] and found["users"] == 1
    assert "    me@here.example (seed 2)" in described(found)
