"""Who took part, by spans of text and by the noisy sums of votes and scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.inspect.attacks import BY_TEXT, NotMeasured, answer, answers, releases
from privsyn_flower.app.inspect.membership import auc
from privsyn_flower.app.inspect.texts import Texts
from privsyn_flower.config import load_config
from privsyn_flower.data.users import Sample, texts_of
from privsyn_flower.protocol.question import Query
from privsyn_flower.queries.votes import shard_votes
from privsyn_flower.runs import RunFolder
from privsyn_flower.text.embedders import NgramEmbedder
from tests.app.inspect.rigs import make_run, people, sentence, texts

EMBEDDER = NgramEmbedder(512)


def test_a_span_that_public_text_has_tells_nothing() -> None:
    public = ["one two three four five six"]
    given = texts(["one two three four five six", "nine eight seven"], {}, public=public)
    score = BY_TEXT["spans"](given)
    users = {
        "a": ["one two three four five"],
        "b": ["x nine eight seven", "y"],
        "c": ["q"],
        "d": ["one two three four five, then nine eight"],  # beside what is public
    }
    assert score(users).tolist() == [0.0, 3.0, 0.0, 2.0]


def test_without_seeds_there_are_no_votes() -> None:
    with pytest.raises(NotMeasured, match="no seeds with votes"):
        BY_TEXT["votes"](texts(["a"], {"p": ["b"]}))


def asked(kind: str, rng: np.random.Generator, size: int = 120, **options: Any) -> Query:
    candidates = EMBEDDER.embed([sentence(rng) for _ in range(size)])
    if kind == "votes":
        return Query.votes(candidates, bound=1.0, model=EMBEDDER.fingerprint, **options)
    groups = [4] * (size // 4)
    return Query.scores(
        candidates, bound=1.0, model=EMBEDDER.fingerprint, score="centred", groups=groups
    )


def run_of(
    folder: Path, users: Any, queries: list[Query], noise: float, rest: Any = None
) -> tuple[Texts, Any]:
    """A run whose rounds asked half of these users, drawn by coins, and all of the rest."""
    rng, rest = np.random.default_rng(3), rest or {}
    members = rng.integers(2, size=len(users)).astype(bool)
    run = RunFolder(make_run(folder, ["x"], **{"data.users": len(users) + len(rest)}))
    for rnd, query in enumerate(queries, start=1):
        total = answers(query, users, EMBEDDER)[members].sum(axis=0)
        total += answer(query, list(rest.values()), EMBEDDER)
        run.save_query(rnd, query)
        run.save_release(rnd, total + noise * rng.normal(size=len(total)))
        row = {"round": rnd, "noise_std": noise, "surviving_weight": len(users) + len(rest)}
        run.save_checkpoint(rnd, {}, row)
    given = texts(["x"], rest)
    return replace(given, run=(run.path, load_config(run.path / "config.toml"))), members


@pytest.mark.parametrize("kind", ["votes", "scores"])
def test_with_little_noise_the_sums_tell_everybody_and_with_much_nobody(
    kind: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    users = people("p", 60, rng, texts=2)
    queries = [asked(kind, rng) for _ in range(2)]
    for noise, least, most in ((0.0, 1.0, 1.0), (0.01, 0.95, 1.0), (100.0, 0.2, 0.8)):
        given, members = run_of(tmp_path / str(noise), users, queries, noise)
        found = releases(given)(users)
        assert least <= auc(found[members], found[~members]) <= most
    assert np.abs(found - 0.5).max() < 0.01  # nothing is known: a coin each


def test_what_is_known_of_other_people_is_taken_off(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    users, rest = people("p", 40, rng, texts=2), people("q", 300, rng, texts=2)
    given, members = run_of(tmp_path / "run", users, [asked("votes", rng, 80)] * 3, 0.3, rest)
    found = releases(given)(users)
    assert auc(found[members], found[~members]) > 0.9
    found = releases(replace(given, private={}))(users)
    assert auc(found[members], found[~members]) < 0.9, "others' votes hide them"


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: (run / "releases" / "round-0001.npz").write_bytes(b""),
        lambda run: (run / "queries" / "round-0001.npz").write_bytes(b"PK\3\4 no archive"),
        lambda run: (run / "checkpoints" / "round-0001.json").write_text("{}"),
        lambda run: (run / "checkpoints" / "round-0001.json").write_text("{"),
        lambda run: RunFolder(run).save_release(1, np.zeros(3)),
        lambda run: RunFolder(run).save_release(1, np.full(20, np.nan)),
        lambda run: RunFolder(run).save_checkpoint(1, {}, {"round": 1, "surviving_weight": 4}),
        lambda run: RunFolder(run).save_checkpoint(
            1, {}, {"round": 1, "noise_std": None, "surviving_weight": 4}
        ),
        lambda run: RunFolder(run).save_checkpoint(
            1, {}, {"round": 1, "noise_std": -1.0, "surviving_weight": 4}
        ),
    ],
)
def test_a_damaged_folder_is_named(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    users = people("p", 8, rng)
    given, _ = run_of(tmp_path / "run", users, [asked("votes", rng, 20)], 1.0)
    damage(tmp_path / "run")
    with pytest.raises(NotMeasured, match=f"question in {tmp_path}/run is damaged"):
        releases(given)(users)


def test_each_vector_is_what_a_device_adds_to_the_sum() -> None:
    rng = np.random.default_rng(1)
    labels = ("a", "b")
    users = texts_of(
        {
            f"p{i}": [Sample(sentence(rng), str(rng.choice(["a", "b", "c"]))) for _ in range(3)]
            for i in range(9)
        }
    )
    classes = [labels[i % 2] for i in range(20)]
    rows = EMBEDDER.embed([text for own in users.values() for text in own])
    for query in (
        asked("votes", rng, 20),
        asked("votes", rng, 20, classes=classes, labels=labels),
        asked("votes", rng, 20).by_class(labels),
    ):
        named = [("a", "b", "c").index(text.label) for own in users.values() for text in own]  # type: ignore[attr-defined]
        own_class = np.where(np.array(named) < 2, named, -1)
        whole = shard_votes(
            rows,
            np.repeat(np.arange(9), 3),
            query.question(),
            bound=1.0,
            samples_cap=8,
            classes=max(1, len(query.labels)),
            sample_classes=own_class if query.labels else None,
            candidate_classes=query.extra.get("classes"),
        )
        found = answers(query, users, EMBEDDER)
        assert found.shape == (9, query.length) and whole.sum() > 0
        np.testing.assert_allclose(found.sum(axis=0), whole, rtol=1e-12)


def no_embedder() -> NgramEmbedder:
    raise AssertionError("a run without votes has no embedder")


def test_what_gives_nothing_to_guess_by_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    with pytest.raises(NotMeasured, match="no noisy sums"):
        releases(replace(texts(["x"], {}), load_embedder=no_embedder))
    given, _ = run_of(tmp_path / "run", people("p", 8, rng), [asked("votes", rng, 20)], 1.0)
    with pytest.raises(NotMeasured, match="another embedder"):
        releases(replace(given, load_embedder=lambda: NgramEmbedder(256)))
    query = asked("votes", rng, 20).by_class(("a", "b"))
    with pytest.raises(NotMeasured, match="by class, and no text here"):
        answers(query, people("p", 2, rng), EMBEDDER)
