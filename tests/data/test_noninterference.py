"""Without a benchmark nobody's text decides about anybody else's, nor about the public text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.config import DataConfig
from privsyn_flower.data import DataError, Federation, LabelledText, prepare
from privsyn_flower.data.groups import Group, Source
from privsyn_flower.data.partition import split
from privsyn_flower.data.users import Sample
from tests.rigs.users import write, write_jsonl

USERS, ROWS = 12, 3
LONG = " ".join(f"shared{k}" for k in range(13))  # what two near duplicates have in common
PUBLIC = [f"{LONG} public {i}" if i == 5 else f"public text number {i} of many" for i in range(40)]
OTHERS = [f"user {i} writes sample {k} here" for i in range(USERS) for k in range(ROWS)]
TARGET = "u4"
HOSTILE = {
    "the public texts": PUBLIC,
    "thirteen shared words": [f"they quote: {LONG} and go on"],
    "another user's texts": OTHERS[3:9],
    "everybody's texts": OTHERS,
    "no text": [""],
    "blanks": ["  ", "\t", "\n"],
    "no words": ["!!!", "🎉", "..."],
    "many": [f"text {i} of a user who never stops" for i in range(500)],
    "one": ["only this"],
    "repetitions": ["the very same"] * 9,
    "structure": ['"\nu5,"mine"\nu99,"mine', "a,b\tc", '{"user_id": "u5"}', "x\r\ny\rz", "\0"],
    "long": ["word " * 30_000, "x" * 150_000],
    "longer than a line may be": ['a "\\n' * 300_000],
}
KINDS = ("jsonl", "csv", "tsv", "parquet")
Rows = list[dict[str, Any]]


def population(own: list[str]) -> Rows:
    """Users in turn; TARGET's rows stand where its first one does."""
    rows: Rows = []
    for k in range(ROWS):
        for i in range(USERS):
            user = f"u{i}"
            if user != TARGET:
                rows.append(row(user, OTHERS[i * ROWS + k]))
            elif k == 0:
                rows += [row(user, text) for text in own]
    return rows


def row(user: str, text: str) -> dict[str, Any]:
    return {"user_id": user, "text": text, "label": f"class {len(text) % 3}"}


def prepared(folder: Path, kind: str, rows: Rows, **more: Any) -> Federation:
    folder.mkdir(exist_ok=True)
    public = [row(f"p{i}", text) for i, text in enumerate(PUBLIC)]
    values: dict[str, Any] = {
        "source": "files",
        "path": str(write(folder, kind, rows)),
        "public_path": str(write_jsonl(folder / "public.jsonl", public)),
        "users": 9,
        "seed": 1,
        "samples_per_user": 4,
        "held_out_users": 2,
        "development_users": 1,
        "public_pool": 20,
        "public_validation": 8,
    }
    return Federation(prepare(DataConfig(**{**values, **more}), folder / "cache"))


def seen(federation: Federation, whose: set[str]) -> dict[str, Any]:
    """All but what `whose` users hold: public bytes, who is a member in which order, and texts."""
    folder = federation.folder
    meta = {k: v for k, v in federation.meta.items() if k not in ("origin", "config")}
    public = [(folder / f"{name}.arrow").read_bytes() for name in ("public", "public_validation")]
    users = federation.shard(0, 1)
    kept = {u: [(t, getattr(t, "label", "")) for t in own] for u, own in users.items()}
    found: dict[str, Any] = {"meta": meta, "public": public, "members": list(users)}
    sides = (kept, federation.held_out("test"), federation.held_out("development"))
    found["texts"] = [{u: own for u, own in side.items() if u not in whose} for side in sides]
    return found


def plain(kind: str) -> list[str]:
    return ["the target's own words", "and some more of them"]


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["", "label"])
# Once read, a row is the same of every kind.
@pytest.mark.parametrize(("near", "kind"), [*(("own", kind) for kind in KINDS), ("keep", "jsonl")])
def test_one_users_texts_change_nothing_else(
    tmp_path: Path, kind: str, labels: str, near: str
) -> None:
    options = {"label_column": labels, "near_duplicates": near}
    before = prepared(tmp_path, kind, population(plain(kind)), **options)
    expected = seen(before, {TARGET})
    assert TARGET in before.shard(0, 1)
    for name, own in HOSTILE.items():
        after = prepared(tmp_path, kind, population(own), **options)
        assert after.folder != before.folder
        assert seen(after, {TARGET}) == expected, name
        assert len(after.shard(0, 1)[TARGET]) <= 4
    for side in (after.shard(0, 1), after.held_out("test")):
        for texts in side.values():
            assert all(isinstance(text, LabelledText) == bool(labels) for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "kind"), [*((False, kind) for kind in KINDS), (True, "jsonl")])
def test_one_rows_text_changes_one_hand_only(tmp_path: Path, kind: str, chunk: bool) -> None:
    """The uniform partition: rows are dealt by their position, whatever they hold."""
    options = {"partition": "uniform", "samples_per_user": 3, "users": 8, "seed": 3}
    options |= {"chunk": chunk, "sample_words": 4}
    rows = population(["the target's own words"])
    place = next(i for i, one in enumerate(rows) if one["user_id"] == TARGET)
    before = prepared(tmp_path, kind, rows, **options)
    (whose,) = [u for u, own in before.shard(0, 1).items() if "the target's own words" in own]
    expected = seen(before, {whose})
    for name, texts in HOSTILE.items():
        for text in texts[:3]:
            rows[place] = {**rows[place], "text": text}
            after = prepared(tmp_path, kind, rows, **options)
            assert seen(after, {whose}) == expected, name
            assert len(after.shard(0, 1)[whose]) <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_rows_as_users_and_dates(tmp_path: Path, kind: str) -> None:
    """Who is a member depends neither on a date nor on what a row holds."""
    rows = [{**row("x", text), "day": "2024-02-01"} for text in OTHERS]
    options = {"user_column": "", "users": 33, "date_column": "day", "date_from": "2024-01-01"}
    place = 7
    name = f"row-{place + 1}"
    before = prepared(tmp_path, kind, rows, **options)
    expected = seen(before, {name})
    assert name in before.shard(0, 1)
    for change in ({"day": "1999-01-01"}, {"day": "never"}, {"text": ""}, {"text": "a\nb\n\nc"}):
        changed = [{**one, **change} if i == place else one for i, one in enumerate(rows)]
        assert seen(prepared(tmp_path, kind, changed, **options), {name}) == expected, change


def test_thirteen_shared_words_remove_a_public_text_for_a_benchmark_only(tmp_path: Path) -> None:
    """What told two neighbours apart with certainty; and proof that the tests above can fail."""
    quoted = population(HOSTILE["thirteen shared words"])
    for near, difference in (("own", False), ("remove", True)):
        found = [
            seen(prepared(tmp_path, "jsonl", rows, near_duplicates=near, users=6), {TARGET})
            for rows in (population(plain("jsonl")), quoted)
        ]
        assert (found[0] != found[1]) is difference
        assert (found[0]["public"] != found[1]["public"]) is difference


def test_a_module_is_cut_by_position(tmp_path: Path) -> None:
    """Sections of a module are users: one's repetitions do not shift the next one's texts."""

    def users(texts: list[str]) -> dict[str, list[str]]:
        config = DataConfig(users=3, held_out_users=0, development_users=0, samples_per_user=3)
        source = Source([Group("module", tuple(map(Sample, texts)))], [])
        return {u.name: [s.text for s in u.samples] for u in split(source, config).private}

    texts = [f"text {i} about thing {i}" for i in range(9)]
    before, after = users(texts), users([texts[8]] * 3 + texts[3:])
    assert after.pop("module") == [texts[8]]
    assert before.pop("module") == texts[:3]
    assert before == after == {"module#1": texts[3:6], "module#2": texts[6:]}


@settings(max_examples=25, deadline=None)
@given(
    own=st.lists(
        st.one_of(
            st.text(max_size=40), st.sampled_from([*PUBLIC, *OTHERS, LONG, "", '"', "\r\n,\t"])
        ),
        min_size=1, max_size=12,
    ),
    kind=st.sampled_from(KINDS),
    labels=st.sampled_from(["", "label"]),
)  # fmt: skip
def test_whatever_a_user_writes(
    tmp_path_factory: pytest.TempPathFactory, own: list[str], kind: str, labels: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    own = [text.encode("utf-8", "replace").decode() for text in own]
    found = [
        seen(prepared(folder, kind, population(texts), label_column=labels), {TARGET})
        for texts in (plain(kind), own)
    ]
    assert found[0] == found[1]


def test_too_few_users_is_told_by_ids_alone(tmp_path: Path) -> None:
    """Whether a split is possible is public, too."""
    errors = []
    for own in (plain("csv"), [""], HOSTILE["structure"], HOSTILE["many"]):
        with pytest.raises(DataError) as caught:
            prepared(tmp_path, "csv", population(own), users=50)
        errors.append(str(caught.value))
    assert set(errors) == {errors[0]} and f"only {USERS - 3} such users" in errors[0]
