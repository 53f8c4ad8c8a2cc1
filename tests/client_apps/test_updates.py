"""The update handler: bounded users, trained one at a time, and refusals before any text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

from privsyn_flower.client_apps import updates
from privsyn_flower.client_apps.answers import Participants, guarded
from privsyn_flower.client_apps.answers import reply as answered
from privsyn_flower.client_apps.main import update
from privsyn_flower.client_apps.node.device import Node, open_node
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.updates import UPDATE, rehearse_update, update_tokens
from privsyn_flower.common.randomness import seeded
from privsyn_flower.privacy.clipping import clip_l2
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.correlated.participation import Participation
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.noise import (
    decode_sum,
    encoded_length,
    integer_plan,
    matrix_options,
)
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.parameters import pack_parameters
from privsyn_flower.training import LocalTraining, trained_layout
from privsyn_flower.training.low_rank import initial_parameters, trained_patterns
from privsyn_flower.training.models import LoadedLM, load_model
from tests.conftest import loopback_message, node_context, sentences
from tests.rigs.models import one_thread  # noqa: F401 - a fixture
from tests.rigs.updates import (
    CLIP,
    INDICATOR,
    OPTIONS,
    TICKET,
    USERS,
    WEIGHT,
    answer,
    base,  # noqa: F401
    decoded,
    even,  # noqa: F401 - a fixture
    node,
    noise,
    private,
    question,
    start,
)
from tests.rigs.wire import refusal
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture


def reply(query: Query, device: Node) -> Any:
    message = wire.ask(query, TICKET, noise(query), 1, WEIGHT, 60.0)
    return guarded(message, lambda: answered(message, node_context({}), device, UPDATE))


def one_delta(base: Path, query: Query, user: str, parameters: Any = None) -> Any:
    """One user's delta from the model itself, without the handler."""
    options = LocalTraining.from_options(query.options)
    rng = seeded(options.seed, query.rotation.hex(), "order", user)
    with load_model(base, "cpu").load(parameters or start(base), options.trained) as model:
        return model.train(USERS[user], options, rng)


def test_the_answer_is_the_sum_of_clipped_deltas(tmp_path: Path, base: Path, loopback: Any) -> None:
    query = question(base)
    message = reply(query, node(tmp_path, base))
    residues = wire.read_answer(message, TICKET, encoded_length(query), 32).residues
    got = decode_sum(residues, query, noise(query))
    deltas = {user: one_delta(base, query, user) for user in USERS}
    norms = {user: np.linalg.norm(d) for user, d in deltas.items() if d is not None}
    assert set(norms) == {"short", "some", "long", "canary"}
    assert min(norms.values()) < CLIP < max(norms.values())  # both cases are there
    want = sum(clip_l2(delta, CLIP) for delta in deltas.values() if delta is not None)
    within = sum(1 if norm <= CLIP else -1 for norm in norms.values())
    # Four users' coordinates are rounded to neighbouring integers.
    unit = 1 / noise(query).scale
    assert np.abs(got[:-1] - want).max() < 8 * unit < 1e-3 * np.abs(want).max()
    assert got[-1] == pytest.approx(within * INDICATOR * CLIP, abs=8 * unit)


@pytest.mark.usefixtures("even")
def test_no_user_changes_another_and_none_counts_for_more_than_the_sensitivity(
    tmp_path: Path, base: Path
) -> None:
    """Brute force over neighbours, in the integers that travel."""
    query, device = question(base), node(tmp_path, base)
    whole = answer(query, device, USERS)
    for name in USERS:
        rest = answer(query, device, {n: texts for n, texts in USERS.items() if n != name})
        alone = answer(query, device, {name: USERS[name]})
        assert np.array_equal(whole - rest, alone)
        assert int(alone @ alone) <= noise(query).sensitivity ** 2
        assert alone.any() == (name not in ("empty", "blank"))


@pytest.mark.slow
@pytest.mark.usefixtures("even")
def test_ten_thousand_examples_move_the_mean_by_no_more_than_the_clip_allows(
    tmp_path: Path, base: Path
) -> None:
    """Flower's own weighting by examples would give such a user 10,000 times the weight."""
    options = replace(OPTIONS, learning_rate=50.0, batch_size=2500, sequence_length=3)
    query, device = question(base, options=options), node(tmp_path, base)
    many = {"many": [f"{number} lemmas" for number in range(10_000)]}
    others = {name: USERS[name] for name in ("short", "some", "canary")}
    without = decoded(answer(query, device, others), query)
    moved = decoded(answer(query, device, {**others, **many}), query) - without
    assert np.linalg.norm(moved[:-1]) == pytest.approx(CLIP, rel=1e-3)
    assert moved[-1] == pytest.approx(-INDICATOR * CLIP, rel=1e-3)  # it would be more


@pytest.mark.usefixtures("even")
def test_who_does_not_take_part_does_not_count(tmp_path: Path, base: Path) -> None:
    query, device = question(base), node(tmp_path, base)
    got = answer(query, device, USERS, [True, False, False, True, True, False])
    kept = {name: USERS[name] for name in ("short", "canary")}
    assert np.array_equal(got, answer(query, device, kept))
    assert not answer(query, device, USERS, [False] * 6).any()


@pytest.mark.usefixtures("even")
def test_a_repeated_question_has_the_same_answer(tmp_path: Path, base: Path) -> None:
    """After a restart, too; another round has another order of the texts."""
    from privsyn_flower.training import models

    query, device = question(base), node(tmp_path, base)
    first = answer(query, device, USERS)
    models._load.cache_clear()
    again = answer(query, device, dict(reversed(USERS.items())))
    assert np.array_equal(first, again)
    other = question(base, rotation=bytes(32))
    whole = [decoded(answer(q, device, {"long": USERS["long"]}), q) for q in (query, other)]
    assert np.abs(whole[0] - whole[1]).max() > 1e-4


@pytest.mark.usefixtures("even")
def test_rows_of_a_matrix_have_another_order_in_each_round(tmp_path: Path, base: Path) -> None:
    """Their rotation is the whole run's, so it does not name the round."""
    plain, device, users = question(base), node(tmp_path, base), {"long": USERS["long"]}
    rows = matrix_options(IntegerMatrix((2, 1), Participation(4)))
    query, one = replace(plain, options={**plain.options, **rows}), np.ones(1, dtype=bool)
    plan: Any = integer_plan(plain, noise(plain))
    sums = [
        decoded(
            updates.user_updates(asked, users, Participants(one, one, rnd), plan, device), plain
        )
        for asked, rnd in ((query, 1), (query, 1), (query, 2), (plain, 1), (plain, 2))
    ]
    assert np.array_equal(sums[0], sums[1]) and np.array_equal(sums[3], sums[4])
    assert np.abs(sums[0] - sums[2]).max() > 1e-4


class RustPanic(BaseException):
    """What a panic in a Rust tokenizer is to Python."""


@pytest.mark.usefixtures("even")
@pytest.mark.parametrize("error", [MemoryError("diary"), RustPanic("diary"), ValueError("diary")])
def test_one_users_failure_is_that_users_zeros(
    tmp_path: Path, base: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-way through a training as well: the next user starts from the round's parameters."""
    query, device = question(base), node(tmp_path, base)
    users = {name: USERS[name] for name in ("some", "short")}
    want = answer(query, device, {"short": USERS["short"]})
    real = LoadedLM._backward

    def broken(self: LoadedLM, *given: Any) -> None:
        broken.calls += 1
        if broken.calls == 2:  # the second of two steps on "some"
            raise error
        real(self, *given)

    broken.calls = 0
    monkeypatch.setattr(LoadedLM, "_backward", broken)
    assert np.array_equal(answer(query, device, users), want)
    assert broken.calls > 2
    log = (tmp_path / "node" / "node.log").read_text()
    assert "one user's training failed" in log and "diary" in log


@pytest.mark.usefixtures("even")
def test_a_model_that_diverges_is_its_users_zeros(tmp_path: Path, base: Path) -> None:
    """NaN in one delta reaches no sum, and the indicator does not count that user either."""
    options = replace(OPTIONS, learning_rate=1e3, weight_decay=1e5, epochs=4)
    query, device = question(base, options=options), node(tmp_path, base)
    integers = answer(query, device, {"some": USERS["some"], "blank": [""]})
    with load_model(base, "cpu").load(start(base)) as model:
        delta = model.train(USERS["some"], options, seeded(0))
    assert delta is not None and not np.isfinite(delta).all()
    assert not integers.any()


def test_memory_is_tried_on_made_up_tokens_first(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that is too large is refused whatever the texts are, not for one long text."""
    from privsyn_flower.training import models

    def full(self: LoadedLM, rows: Any, *more: Any) -> Any:
        assert {token for row, _ in rows for token in row} == {0}
        raise MemoryError

    models._load.cache_clear()  # what was rehearsed in this process is not tried again
    monkeypatch.setattr(LoadedLM, "_backward", full)
    query, device = question(base), node(tmp_path, base)
    assert refusal(rehearse_update, query, device) is Refusal.MEMORY
    assert UPDATE.rehearse is rehearse_update


def test_low_rank_factors_are_answered(tmp_path: Path, base: Path, loopback: Any) -> None:
    trained = trained_patterns(base, "lora", factors="up")
    factors = initial_parameters(base, "lora", rank=2, factors="up")
    options = replace(OPTIONS, trained=trained)
    query = question(base, factors, options, indicator=0.0)
    layout = trained_layout(factors, query.options)
    assert query.length == layout.length < sum(array.size for array in factors.values())
    assert all(name.endswith(".up") for name in layout.names)
    message = reply(query, node(tmp_path, base, lambda: {"some": USERS["some"]}))
    residues = wire.read_answer(message, TICKET, encoded_length(query), 32).residues
    got = decode_sum(residues, query, noise(query))
    want = clip_l2(one_delta(base, query, "some", factors), CLIP)
    assert np.abs(got - want).max() < 2 / noise(query).scale < 1e-3 * np.abs(want).max()


def test_nothing_private_is_in_the_reply(
    tmp_path: Path, base: Path, loopback: Any, caplog: Any, capfd: Any
) -> None:
    query = question(base)
    message = reply(query, node(tmp_path, base))
    record = message.content.config_records["answer"]
    assert set(record) == {"protocol", "run", "query", "round", "attempt", "code", "vector"}
    assert len(record["vector"]) == encoded_length(query) * 4
    said = repr({key: record[key] for key in set(record) - {"vector"}}) + caplog.text
    assert "xylophone" not in said + "".join(capfd.readouterr())
    assert list(message.content.array_records) == list(message.content.metric_records) == []


Change = Callable[[Query, Path], dict[str, Any]]


def other_options(**values: Any) -> Change:
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in values.items()}
    return lambda query, _base: {"options": {**query.options, **given}}


def shipped(edit: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    return lambda _query, base: {"extra": {"parameters": pack_parameters(edit(start(base)))}}


def without(key: str) -> Change:
    return lambda query, _base: {"options": {k: v for k, v in query.options.items() if k != key}}


def bytes_of(array: Any) -> Change:
    return lambda _query, _base: {"extra": {"parameters": array}}


NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"
CHANGES: dict[str, Change] = {
    "another base": lambda query, base: {"model": "0" * 64},
    "another array beside": lambda query, base: {"extra": {**query.extra, "more": UP}},
    "rows": lambda query, base: {"rows": np.zeros((2, 3), np.int8), "scales": np.ones(2, "f4")},
    "longer": lambda query, base: {"length": query.length + 1},
    "without the indicator": lambda query, base: {"length": query.length - 1},
    "another bound": lambda query, base: {"bound": 2 * query.bound},
    "no clip": without("clip-norm"),
    "no indicator": without("indicator"),
    "a clip of zero": other_options(clip_norm=0.0),
    "an endless clip": other_options(clip_norm=math.inf),
    "a boolean clip": other_options(clip_norm=True),
    "a word": other_options(indicator="much"),
    "a negative indicator": other_options(indicator=-1.0),
    "not dense": other_options(encoding="votes"),
    "no rotation": without("rotation"),
    "half a rotation": other_options(rotation="00" * 16),
    "no hex": other_options(rotation="zz" * 32),
    "no options": without("training.epochs"),
    "steps without a bound": other_options(training__max_steps=0),
    "an unknown option": other_options(training__speed=1),
    "endless epochs": other_options(training__epochs=10**9),
    "beyond the positions": other_options(training__sequence_length=201),
    "nothing trained": other_options(training__trained="*.up"),
    "fewer trained": other_options(training__trained="*norm*"),
    "no bytes": bytes_of(np.zeros(0, np.uint8)),
    "not bytes": bytes_of(np.zeros(64, np.float32)),
    "too large": bytes_of(np.zeros(2_000_000, np.uint8)),
    "pickle": bytes_of(np.frombuffer(b"\x80\x04cposix\n" * 9, np.uint8)),
    "wrong shape": shipped(lambda arrays: {**arrays, NORM: np.ones(40, np.float32)}),
    "unknown": shipped(lambda arrays: {**arrays, "model.other": UP}),
    "not finite": shipped(lambda arrays: {**arrays, NORM: np.full(32, np.nan, np.float32)}),
    "whole numbers": shipped(lambda arrays: {**arrays, NORM: np.ones(32, np.int64)}),
    "half a pair": shipped(lambda arrays: {**arrays, "lm_head.weight.up": UP}),
    "factors of no linear layer": lambda query, base: {
        "length": 33 + len(initial_parameters(base, "full")[EMBEDDING]),
        "extra": {
            "parameters": pack_parameters(
                {
                    f"{EMBEDDING}.up": np.ones(
                        (len(initial_parameters(base, "full")[EMBEDDING]), 1), np.float32
                    ),
                    f"{EMBEDDING}.down": np.ones((1, 32), np.float32),
                }
            )
        },
    },
}
UP = np.ones((40, 1), np.float32)
CODES = {"another base": Refusal.MODEL}


@pytest.mark.parametrize("change", CHANGES)
def test_what_does_not_fit_is_refused_before_private_text_is_opened(
    tmp_path: Path, base: Path, loopback: Any, change: str
) -> None:
    good = question(base)
    query = replace(good, **CHANGES[change](good, base))
    message = wire.ask(query, TICKET, noise(good), 1, WEIGHT, 60.0)
    device = node(tmp_path, base, private)
    refused = guarded(message, lambda: answered(message, node_context({}), device, UPDATE))
    assert refusal(wire.read_answer, refused, TICKET, encoded_length(good), 32) is CODES.get(
        change, Refusal.MALFORMED
    )
    assert dict(refused.content.config_records["answer"]).keys() <= {
        "protocol", "run", "query", "round", "attempt", "code",
    }  # fmt: skip


def test_a_question_without_its_parameters_is_refused(
    tmp_path: Path, base: Path, loopback: Any
) -> None:
    """The head alone looks like this, so the answer itself has to look again."""
    message = reply(replace(question(base), extra={}), node(tmp_path, base))
    assert refusal(wire.read_answer, message, TICKET, 1, 32) is Refusal.MALFORMED


@pytest.mark.parametrize("steps", [100, 1 << 20])
def test_the_owner_bounds_what_a_question_computes(
    tmp_path: Path, base: Path, loopback: Any, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    query = question(base, options=replace(OPTIONS, max_steps=steps, epochs=1000))
    most = update_tokens(query)
    assert most == steps * 2 * 12
    allowed = Policy(
        queries=("update",), aggregation=("plain",), trusted_aggregator=True,
        min_surviving_weight=1.0, max_tokens=most,
    )  # fmt: skip
    longer = allowed.model_copy(update={"max_tokens": most - 1})
    for policy, load, expected in ((longer, private, "policy"), (allowed, dict, "ok")):
        message = reply(query, node(tmp_path, base, load, policy=policy))
        assert message.content["answer"]["code"] == expected
    assert (
        f"tokens of one user = {most} must be <= {most - 1}: policy key max-tokens" in caplog.text
    )


def test_a_node_without_the_base_refuses(tmp_path: Path, base: Path, loopback: Any) -> None:
    for folder in (None, tmp_path / "missing"):
        message = reply(question(base), node(tmp_path, folder, private))
        assert refusal(wire.read_answer, message, TICKET, 1, 32) is Refusal.MODEL


def test_a_device_trains_over_the_model_of_its_own_node_config(
    tmp_path: Path, base: Path, loopback: Any
) -> None:
    """The route: greeting and question both come as `train`, and an owner has to allow it."""
    data, policy, silent = (tmp_path / name for name in ("users.jsonl", "yes.toml", "no.toml"))
    data.write_text('{"user_id": "a", "text": "a river of stone"}\n')
    limits = 'aggregation = ["plain"]\nmin-noise-multiplier = 1e-3\ntrusted-aggregator = true\n'
    limits += "min-surviving-weight = 1.0\nlifetime-epsilon = 1e9\n"
    policy.write_text(limits + 'queries = ["update"]\n')
    silent.write_text(limits)  # the default answers other kinds only
    own = {"data": str(data), "weight": 6, "cache": str(tmp_path / "c"), "policy": str(policy)}
    query = question(base)
    message = wire.ask(query, TICKET, noise(query), 1, WEIGHT, 60.0)
    assert message.metadata.message_type == "train"

    def asked(config: dict[str, Any]) -> Any:
        found = update(message, node_context(config))
        return wire.read_answer(found, TICKET, encoded_length(query), 32)

    with pytest.raises(wire.WireError, match="missing-model"):
        asked(own)
    with pytest.raises(wire.WireError, match="policy"):
        asked({**own, "downstream": str(base), "policy": str(silent)})
    got = decode_sum(asked({**own, "downstream": str(base)}).residues, query, noise(query))
    assert np.abs(got).max() > 1e-3
    hello = greeting.hello(1, 60.0, "train")
    facts = greeting.read_hello(update(hello, node_context({**own, "downstream": str(base)})))
    assert (facts.weight, facts.deployed) == (6, True)


def test_a_train_message_of_another_strategy_is_refused(loopback: Any, tmp_path: Path) -> None:
    """Flower's own strategies send one with other records: nothing is trained, a code goes back."""
    data = tmp_path / "users.jsonl"
    data.write_text('{"user_id": "a", "text": "a river of stone"}\n')
    message = loopback_message(RecordDict({}), 1, "train")
    own = {"data": str(data), "cache": str(tmp_path / "c")}
    assert refusal(wire.accepted, update(message, node_context(own))) is Refusal.MALFORMED


@pytest.mark.slow
def test_a_simulated_node_starts_where_the_server_does(tmp_path: Path, base: Path) -> None:
    """After public fine-tuning the base is the fine-tuned folder, for training methods alone."""
    data, public = tmp_path / "users.jsonl", tmp_path / "public.jsonl"
    for path, seed in ((data, 3), (public, 4)):
        texts = enumerate(sentences(12, seed))
        lines = [json.dumps({"user_id": str(number), "text": text}) for number, text in texts]
        path.write_text("\n".join(lines) + "\n")
    run = {
        "method": "dp-fedavg",
        "training.public-steps": 2,
        "data.source": "files",
        "data.path": str(data),
        "data.public-path": str(public),
        "nodes": 2,
        "aggregation": "plain",
        "data.users": 4,
        "data.held-out-users": 0,
        "data.development-users": 0,
        "data.public-validation": 2,
        "data.public-pool": 8,
        "models.downstream": str(base),
        "models.device": "cpu",
        "evaluation.learning-rates": "0.001",
        "evaluation.batch-size": 2,
        "evaluation.sequence-length": 16,
        "cache": str(tmp_path / "cache"),
    }
    place = {"partition-id": 0, "num-partitions": 2}
    found = open_node(node_context(place, run)).downstream()
    assert found is not None and folder_fingerprint(found) != folder_fingerprint(base)
    again = open_node(node_context({**place, "partition-id": 1}, run)).downstream()
    assert again == found
    run |= {"method": "pretext"}
    del run["training.public-steps"]
    assert open_node(node_context(place, run)).downstream() == base
