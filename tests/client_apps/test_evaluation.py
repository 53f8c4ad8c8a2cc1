"""The evaluation handler: exact sums of bounded users, one at a time, and refusals before text."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps.answers import Participants, guarded
from privsyn_flower.client_apps.answers import reply as answered
from privsyn_flower.client_apps.evaluation import (
    EVALUATION,
    check_evaluation,
    evaluation_tokens,
    rehearse_evaluation,
    user_evaluations,
)
from privsyn_flower.client_apps.main import evaluation
from privsyn_flower.client_apps.node.device import Node, open_node
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.data import LabelledText
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.privacy.encoding.quantize import decode
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise, integer_plan
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.queries.metrics import metrics_bound
from privsyn_flower.text.models.lm_metrics import Scorer
from tests.conftest import node_context, sentences
from tests.rigs.evaluation import (
    CAPS,
    base,  # noqa: F401
    question,
)
from tests.rigs.models import one_thread  # noqa: F401 - a fixture
from tests.rigs.wire import refusal
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

TICKET = Ticket("run", "evaluation", 1, 1)
NOISE = Noise(1e-6, 2.0**26, 32, 5.0)  # hardly any, and yet many integers
CANARY = "xylophone-quetzal-7391"
USERS = {
    "short": [LabelledText("a river of stone", "nature")],
    "some": sentences(3, 1),
    "huge": ["theorem lemma proof " * 3500, *sentences(50, 2)],
    "canary": [f"{CANARY} is what only I would write", f"and {CANARY} again"],
    "empty": [],
    "blank": ["", ""],
}


def node(tmp_path: Path, base: Path | None, load: Any = lambda: USERS, **facts: Any) -> Node:
    return Node(
        facts=Hello(weight=6, partition=0, deployed=False),
        cache=tmp_path / "node",
        embedder="ngram-64",
        device="cpu",
        policy=facts.get("policy"),
        noise_seed=None,
        load=load,
        downstream=lambda: base,
    )


def reply(query: Query, device: Node) -> Any:
    message = wire.ask(query, TICKET, NOISE, 1, 6, 60.0)
    context = node_context({})
    return guarded(message, lambda: answered(message, context, device, EVALUATION))


def answer(query: Query, device: Node, users: Any, participants: Any = None) -> Any:
    """The node's integers for these users, without noise."""
    everybody = np.ones(len(users), dtype=bool)
    takes = Participants(everybody, everybody if participants is None else np.array(participants))
    return user_evaluations(query, users, takes, integer_plan(query, NOISE), device)


def by_hand(base: Path, texts: list[str]) -> tuple[int, int, float]:
    """Tokens, right predictions and clipped nats of the base on one user, row by row."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base, split_special_tokens=True)
    model = AutoModelForCausalLM.from_pretrained(base)
    tokens, correct, nats = 0, 0, 0.0
    for text in texts:
        ids = tokenizer(text)["input_ids"][: CAPS.sequence_length][: CAPS.max_tokens - tokens + 1]
        with torch.inference_mode():
            scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for position in range(len(ids) - 1):
            tokens += 1
            correct += int(scores[position].argmax()) == ids[position + 1]
            nats += min(-float(scores[position, ids[position + 1]]), CAPS.max_loss)
    return tokens, correct, nats


def test_the_answer_is_the_sum_of_what_users_count(
    tmp_path: Path, base: Path, loopback: Any
) -> None:
    query = question(base)
    message = reply(query, node(tmp_path, base))
    residues = wire.read_answer(message, TICKET, 5, 32).residues
    got = decode(residues, integer_plan(query, NOISE))
    sums = np.array([by_hand(base, texts) for texts in USERS.values()]).sum(axis=0)
    want = sums / np.array([60, 60, 60 * 9.0])
    # each of six users is rounded to the nearest integer, and there is a millionth of noise
    assert got[:3] == pytest.approx(want, abs=4 / 1800)
    assert got[4] > got[2]  # the other model is worse at it
    assert 0 < got[0] < 6 and sums[0] > 100


@pytest.mark.slow
def test_one_user_changes_the_answer_by_at_most_the_sensitivity(tmp_path: Path, base: Path) -> None:
    query, device = question(base), node(tmp_path, base)
    whole = answer(query, device, USERS)
    alone = {name: answer(query, device, {name: texts}) for name, texts in USERS.items()}
    for name in USERS:
        rest = answer(query, device, {n: texts for n, texts in USERS.items() if n != name})
        assert np.array_equal(whole - rest, alone[name])  # nobody changes another's digits
        assert int(alone[name] @ alone[name]) <= NOISE.sensitivity**2
    assert alone["huge"][0] == int(
        NOISE.sensitivity / metrics_bound(2)
    )  # at its cap, and not beyond
    assert not alone["empty"].any() and not alone["blank"].any()


def test_texts_between_bos_and_eos_count_as_on_the_server(tmp_path: Path, base: Path) -> None:
    query = question(base, caps=replace(CAPS, special_tokens="bos-eos"))
    own = {"short": USERS["short"]}
    got = decode(answer(query, node(tmp_path, base), own), integer_plan(query, NOISE))
    server = Downstream(base, length=CAPS.sequence_length, special_tokens="bos-eos")
    loss, right, tokens = server.user_sums({"short": server.encode(own["short"])})[0]
    assert got[:3] == pytest.approx([tokens / 60, right / 60, loss / 60 / 9.0], abs=1e-3)
    assert tokens == by_hand(base, own["short"])[0] + 1
    endless = tmp_path / "endless"
    shutil.copytree(base, endless)
    settings = json.loads((endless / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (endless / "tokenizer_config.json").write_text(json.dumps(settings))
    query = question(endless, caps=replace(CAPS, special_tokens="bos-eos"))
    with pytest.raises(WireError, match="has no BOS or no EOS") as error:
        check_evaluation(query, node(tmp_path, endless))
    assert error.value.code is Refusal.MALFORMED


def test_who_does_not_take_part_does_not_count(tmp_path: Path, base: Path) -> None:
    query, device = question(base), node(tmp_path, base)
    got = answer(query, device, USERS, [True, False, False, True, True, False])
    kept = {name: USERS[name] for name in ("short", "canary")}
    assert np.array_equal(got, answer(query, device, kept))
    assert not answer(query, device, USERS, [False] * 6).any()


class RustPanic(BaseException):
    """What a panic in a Rust tokenizer is to Python."""


@pytest.mark.parametrize("where", ["encode", "sums"])
@pytest.mark.parametrize("error", [MemoryError("diary"), RustPanic("diary"), ValueError("diary")])
def test_one_users_failure_is_that_users_zeros(
    tmp_path: Path, base: Path, where: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything else would let one user's text remove the others'."""
    real = getattr(Scorer, where)

    def broken(self: Scorer, texts: Any, *args: Any, **kwargs: Any) -> Any:
        if where == "sums":
            broken.calls += 1
            if broken.calls == 4:  # the second user under the second model
                raise error
        elif texts == USERS["some"]:
            raise error
        return real(self, texts, *args, **kwargs)

    broken.calls = 0
    query, device = question(base), node(tmp_path, base)
    users = {name: USERS[name] for name in ("short", "some")}
    want = answer(query, device, {"short": USERS["short"]})
    monkeypatch.setattr(Scorer, where, broken)
    assert np.array_equal(answer(query, device, users), want)
    assert "diary" in (tmp_path / "node" / "node.log").read_text()


def test_memory_is_tried_on_made_up_tokens_first(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that is too large is refused whatever the texts are, not for one long text."""

    def full(self: Scorer, rows: Any, most: float) -> Any:
        assert {token for row in rows for token in row} == {0}
        raise MemoryError

    monkeypatch.setattr(Scorer, "sums", full)
    query, device = question(base), node(tmp_path, base)
    assert refusal(rehearse_evaluation, query, device) is Refusal.MEMORY
    assert EVALUATION.rehearse is rehearse_evaluation


def test_a_token_beyond_the_embedding_is_its_users_zeros(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU it would end the model for everybody."""
    from privsyn_flower.text.models import lm_metrics

    real = lm_metrics.encode

    def beyond(tokenizer: Any, texts: Any, *more: Any) -> Any:
        return [[10**6, 1]] if texts[0] in USERS["some"] else real(tokenizer, texts, *more)

    query, device = question(base), node(tmp_path, base)
    want = answer(query, device, {"short": USERS["short"]})
    monkeypatch.setattr(lm_metrics, "encode", beyond)
    users = {name: USERS[name] for name in ("short", "some")}
    assert np.array_equal(answer(query, device, users), want)


def test_nothing_private_is_in_the_reply(
    tmp_path: Path, base: Path, loopback: Any, caplog: Any, capfd: Any
) -> None:
    message = reply(question(base), node(tmp_path, base))
    record = message.content.config_records["answer"]
    assert set(record) == {"protocol", "run", "query", "round", "attempt", "code", "vector"}
    assert len(record["vector"]) == 5 * 4
    said = repr(dict(record)) + caplog.text + "".join(capfd.readouterr())
    assert "xylophone" not in said and list(message.content.array_records) == []


def tampered(base: Path, change: str) -> Query:
    """A question about the base with one thing wrong."""
    query = question(base)
    options, extra = dict(query.options), dict(query.extra)
    first = extra["model-a"]
    changes: dict[str, dict[str, Any]] = {
        "another base": {"model": "0" * 64},
        "a model is missing": {"extra": {"model-a": first}},
        "another name": {"extra": {"model-a": first, "model-c": first}},
        "more models": {"extra": {**extra, "model-c": first}},
        "rows": {"rows": np.zeros((2, 3), np.int8), "scales": np.ones(2, np.float32)},
        "wrong length": {"length": 7},
        "no models": {"length": 1, "options": {**options, "models": 0}, "extra": {}},
        "too many": {"length": 35, "options": {**options, "models": 17}},
        "a boolean": {"length": 3, "options": {**options, "models": True}},
        "text": {"options": {**options, "max-tokens": "many"}},
        "no tokens": {"options": {**options, "max-tokens": 0}},
        "endless": {"options": {**options, "max-tokens": 1 << 40}},
        "short": {"options": {**options, "sequence-length": 1}},
        "longer than a batch": {"options": {**options, "sequence-length": 2049}},
        "beyond the positions": {"options": {**options, "sequence-length": 201}},
        "infinite": {"options": {**options, "max-loss": math.inf}},
        "other ends": {"options": {**options, "special-tokens": "eos"}},
        "a wide gap": {"options": {**options, "gap": 1.5}},
        "no gap": {"options": {k: v for k, v in options.items() if k != "gap"}},
        "negative": {"options": {**options, "max-loss": -1.0}},
        "no bytes": {"extra": {**extra, "model-a": np.zeros(0, np.uint8)}},
        "not bytes": {"extra": {**extra, "model-a": np.zeros(64, np.float32)}},
        "too large": {"extra": {**extra, "model-a": np.zeros(1_000_000, np.uint8)}},
        "pickle": {"extra": {**extra, "model-a": np.frombuffer(b"\x80\x04cposix\n" * 9, np.uint8)}},
        "wrong shape": {"extra": question(base, {"a": {}, "b": {"model.norm.weight": UP}}).extra},
        "unknown": {"extra": question(base, {"a": {}, "b": {"model.other": UP}}).extra},
        "not finite": {
            "extra": question(base, {"a": {}, "b": {"model.norm.weight": UP[:32] / 0.0}}).extra
        },
    }
    return replace(query, **changes[change])


UP = np.ones(40, np.float32)
CODES = {"another base": Refusal.MODEL}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    "change",
    ["another base", "a model is missing", "another name", "more models", "rows", "wrong length",
     "no models", "too many", "a boolean", "text", "no tokens", "endless", "short",
     "beyond the positions", "infinite", "negative", "a wide gap", "no gap", "no bytes",
     "not bytes", "too large", "pickle", "wrong shape", "unknown", "not finite"],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_private_text_is_opened(
    tmp_path: Path, base: Path, loopback: Any, change: str
) -> None:
    message = reply(tampered(base, change), node(tmp_path, base, private))
    assert refusal(wire.read_answer, message, TICKET, 5, 32) is CODES.get(change, Refusal.MALFORMED)
    assert dict(message.content.config_records["answer"]).keys() <= {
        "protocol", "run", "query", "round", "attempt", "code",
    }  # fmt: skip


def private() -> Any:
    pytest.fail("private text was opened for a query that must be refused")


def test_a_question_without_its_models_is_refused(
    tmp_path: Path, base: Path, loopback: Any
) -> None:
    """The head alone looks like this, so the answer itself has to look again."""
    message = reply(replace(question(base), extra={}), node(tmp_path, base))
    assert refusal(wire.read_answer, message, TICKET, 5, 32) is Refusal.MALFORMED


def test_a_node_without_the_base_refuses(tmp_path: Path, base: Path, loopback: Any) -> None:
    for folder in (None, tmp_path / "missing"):
        message = reply(question(base), node(tmp_path, folder, private))
        assert refusal(wire.read_answer, message, TICKET, 5, 32) is Refusal.MODEL


def test_the_owners_policy_comes_first(tmp_path: Path, base: Path, loopback: Any) -> None:
    device = node(tmp_path, base, private, policy=Policy(aggregation=("plain",)))
    message = reply(question(base), device)
    assert refusal(wire.read_answer, message, TICKET, 5, 32) is Refusal.POLICY


def test_the_owner_bounds_what_a_question_computes(
    tmp_path: Path, base: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    query = question(base)
    most = evaluation_tokens(query)
    assert most == 60 * int(query.options["models"]) > 60
    policy = Policy(
        queries=("evaluation",), aggregation=("plain",), min_noise_multiplier=1e-9,
        min_surviving_weight=1.0, max_tokens=most - 1, trusted_aggregator=True,
    )  # fmt: skip
    message = reply(query, node(tmp_path, base, private, policy=policy))
    assert message.content["answer"]["code"] == Refusal.POLICY
    assert (
        f"tokens of one user = {most} must be <= {most - 1}: policy key max-tokens" in caplog.text
    )


def test_a_device_evaluates_over_the_model_of_its_own_node_config(
    tmp_path: Path, base: Path, loopback: Any
) -> None:
    """The route: neither the run config nor the message says which folder is opened."""
    data, policy, silent = (tmp_path / name for name in ("users.jsonl", "yes.toml", "no.toml"))
    data.write_text('{"user_id": "a", "text": "a river of stone"}\n')
    limits = 'aggregation = ["plain"]\nmin-noise-multiplier = 1e-3\n'
    limits += "min-surviving-weight = 1.0\nlifetime-epsilon = 1e9\n"
    policy.write_text(limits + 'queries = ["evaluation"]\n')
    silent.write_text(limits)  # the default answers other kinds only
    own = {"data": str(data), "weight": 6, "cache": str(tmp_path / "c"), "policy": str(policy)}
    run = {"models.downstream": str(base)}
    query = question(base)

    noise = replace(NOISE, multiplier=1e-3)

    def asked(config: dict[str, Any]) -> Any:
        message = wire.ask(query, TICKET, noise, 1, 6, 60.0)
        reply = evaluation(message, node_context({**own, "device": "cpu", **config}, run))
        return wire.read_answer(reply, TICKET, 5, 32).residues

    for config, code in (
        ({}, Refusal.MODEL),
        ({"downstream": str(tmp_path)}, Refusal.MODEL),
        ({"downstream": str(base), "policy": str(silent)}, Refusal.POLICY),
    ):
        assert refusal(asked, config) is code
    got = decode(asked({"downstream": str(base)}), integer_plan(query, NOISE))
    assert got[0] == pytest.approx(by_hand(base, ["a river of stone"])[0] / 60, abs=0.03)


def test_a_simulated_node_has_the_runs_downstream_model(base: Path) -> None:
    run = {"models.downstream": str(base)}
    context = node_context({"partition-id": 0, "num-partitions": 4}, run)
    assert open_node(context).downstream() == base
