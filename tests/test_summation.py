"""`secure_sum` and `secure_vector`: the page's example, and what goes wrong on a node."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from privsyn_flower.privacy.noise.integer_noise import TooCoarse
from privsyn_flower.protocol.messaging import outgoing
from privsyn_flower.protocol.secure import RECORD
from privsyn_flower.secagg import SecaggError
from privsyn_flower.summation import content_digest, secure_sum, secure_vector
from tests.conftest import node_context

PAGE = Path(__file__).parents[1] / "docs" / "secure-sum.md"
Nodes = dict[int, Callable[[Message], Message]]


def node_of(folder: Path, node_id: int, handler: Any, **options: Any) -> Callable[..., Message]:
    answer = secure_vector(folder=folder / str(node_id), **options)(handler)
    context = node_context({}, node_id=node_id)
    return lambda message: answer(message, context)


def nodes_of(folder: Path, vectors: Any, **options: Any) -> Nodes:
    return {
        10 + i: node_of(folder, 10 + i, lambda message, context, v=vector: v, **options)
        for i, vector in enumerate(vectors)
    }


def summed(grid: Any, content: RecordDict | None = None, **options: Any) -> Any:
    asked: dict[str, Any] = {"message_type": "query.x", "length": 2, "largest": 100}
    asked |= {"timeout": 0.3, "stage_timeout": 0.3, "poll": 0.01, **options}
    return secure_sum(grid, grid.get_node_ids(), content or RecordDict(), **asked)


def test_integers_are_summed_exactly(tmp_path: Path, loopback: Any) -> None:
    got = summed(loopback(nodes_of(tmp_path, [[1, -2], [30, 4], [-100, 100]])))
    assert (got.dtype, got.tolist()) == (np.int64, [-69, 102])


def test_floats_are_summed_in_steps_of_the_scale(tmp_path: Path, loopback: Any) -> None:
    vectors = [np.array([0.5, -0.25]), np.array([1.0, 1.0]), np.array([0.1, 0.0])]
    got = summed(loopback(nodes_of(tmp_path, vectors)), largest=1.0, scale=1000.0)
    assert np.allclose(got, [1.6, 0.75], atol=1e-12)


@pytest.mark.parametrize(
    "bad",
    [[101, 0], [0.0, float("nan")], [float("-inf"), 0.0], [1], [[1, 1]], "text", None, [1j, 0]],
)
def test_what_is_no_vector_becomes_zeros(tmp_path: Path, loopback: Any, bad: Any) -> None:
    grid = loopback(nodes_of(tmp_path, [[1, 1], [2, 2], bad]))
    assert summed(grid).tolist() == [3, 3]
    log = tmp_path / "12" / "handler.log"
    assert "Error" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_handler_that_raises_says_nothing(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(message: Any, context: Any) -> Any:
        raise RuntimeError("private text")

    grid = loopback({**nodes_of(tmp_path, [[1, 1], [2, 2]]), 12: node_of(tmp_path, 12, fails)})
    assert summed(grid).tolist() == [3, 3]
    assert "private text" in (tmp_path / "12" / "handler.log").read_text()
    assert "private text" not in caplog.text
    for reply in grid.received:
        assert set(reply.content) == {RECORD}
        assert set(reply.content[RECORD]) == {"code", "data"}


NOISE = {"min_weight": 3, "noise_multiplier": 100.0, "sensitivity": 1.0}  # std 58 a node


@pytest.mark.parametrize("bad", [RuntimeError("private"), SystemExit(3), None, np.ones(2000, int)])
def test_the_noise_of_a_failing_handler_is_sent_all_the_same(
    tmp_path: Path, loopback: Any, bad: Any
) -> None:
    """Zeros of one node alone would show that its user made the handler fail."""
    calls: list[Message] = []

    def fails(message: Any, context: Any) -> Any:
        calls.append(message)
        if isinstance(bad, BaseException):
            raise bad
        return bad

    d = 2000
    grid = loopback({10 + i: node_of(tmp_path, 10 + i, fails, **NOISE) for i in range(3)})
    total = summed(grid, length=d, largest=4000)
    assert len(calls) == 3
    # Chi-square with 2,000 degrees: ten standard deviations of its own.
    assert abs(np.square(total).mean() / 100.0**2 - 1) < 10 * np.sqrt(2 / d)


def test_a_node_of_any_weight_moves_the_sum_by_its_sensitivity(
    tmp_path: Path, loopback: Any
) -> None:
    """One user more may make a node fail, and take all of its users' part out of the sum."""
    numbers = {"min_weight": 6, "noise_multiplier": 1e-3, "sensitivity": 150_000.0, "weight": 2}
    weights = {10: 2, 11: 2, 12: 2}
    sums = []
    for last in ([0, 150_000], [0, 150_001]):
        grid = loopback(nodes_of(tmp_path, [[0, 0], [0, 0], last], **numbers))
        sums.append(summed(grid, largest=400_000, weights=weights, min_nodes=6))
    assert np.allclose(sums, [[0, 150_000], [0, 0]], atol=6.5 * 150)


def test_noise_is_on_top_of_the_handlers_vector(tmp_path: Path, loopback: Any) -> None:
    numbers = {"min_weight": 3, "noise_multiplier": 1e-3, "sensitivity": 150_000.0}
    grid = loopback(nodes_of(tmp_path, [[100_000, -100_000]] * 3, **numbers))
    total = summed(grid, largest=200_000)
    assert np.allclose(total, [300_000, -300_000], atol=6.5 * 150)
    assert not np.array_equal(total, summed(grid, largest=200_000))


@pytest.mark.parametrize(
    "asked", [{"largest": 1000}, {"largest": 5.0, "scale": 1000.0}, {"largest": 90, "length": 9}]
)
def test_a_sum_that_cannot_hold_the_noise_is_refused_before_the_handler(
    tmp_path: Path, loopback: Any, asked: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(message: Any, context: Any) -> Any:
        raise AssertionError("called")

    big = NOISE | {"noise_multiplier": 300.0}
    grid = loopback({10 + i: node_of(tmp_path, 10 + i, fails, **big) for i in range(3)})
    with pytest.raises(SecaggError):
        summed(grid, **asked)
    assert "noise of standard deviation 173" in caplog.text
    assert not (tmp_path / "10" / "handler.log").exists()


@pytest.mark.parametrize(
    "options",
    [{"noise_multiplier": 1.0}, {"sensitivity": 1.0}, {"noise_multiplier": -1.0, "sensitivity": 1}],
)
def test_noise_needs_both_of_its_numbers(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        secure_vector(**options)


@pytest.mark.parametrize(
    ("noise_multiplier", "sensitivity", "min_weight"), [(1.0, 63.0, 3), (8.0, 16.0, 5000)]
)
def test_noise_too_coarse_to_be_gaussian_is_refused_when_the_app_is_made(
    noise_multiplier: float, sensitivity: float, min_weight: int
) -> None:
    """A standard deviation of 64 for the sum and of 2 for a node, in integers, at least."""
    numbers = {"noise_multiplier": noise_multiplier, "min_weight": min_weight}
    with pytest.raises(TooCoarse, match=rf"sensitivity = {sensitivity:g} .*W_min = {min_weight}"):
        secure_vector(sensitivity=sensitivity, **numbers)
    secure_vector(sensitivity=4 * sensitivity, **numbers)


def test_a_node_of_a_huge_weight_is_left_alone(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    heavy = node_of(tmp_path, 13, lambda m, c: [1, 1], weight=8, max_share=1.0)
    nodes = {**nodes_of(tmp_path, [[1, 1]] * 3), 13: heavy}
    weights = {10: 1, 11: 1, 12: 1, 13: 8}
    with pytest.raises(SecaggError):
        summed(loopback(nodes), weights=weights, min_nodes=8)
    assert "one node has weight 8 of 11" in caplog.text
    own = {**nodes_of(tmp_path, [[1, 1]] * 3, max_share=0.8), 13: heavy}
    assert summed(loopback(own), weights=weights, min_nodes=8).tolist() == [4, 4]
    with pytest.raises(ValueError, match="max_share = 0"):
        secure_vector(max_share=0.0)


def test_the_content_reaches_the_handler_and_cannot_be_changed(
    tmp_path: Path, loopback: Any
) -> None:
    def scaled(message: Message, context: Any) -> Any:
        weights = message.content.array_records["weights"]["w"].numpy()
        return weights.astype(int) * int(message.content.config_records["options"]["times"])

    content = RecordDict({
        "weights": ArrayRecord({"w": Array(np.array([1.0, 2.0]))}),
        "options": ConfigRecord({"times": 3}),
    })  # fmt: skip
    nodes: Nodes = {i: node_of(tmp_path, i, scaled) for i in (1, 2, 3)}
    assert summed(loopback(nodes), content).tolist() == [9, 18]

    def tampered(message: Message) -> Message:
        if "options" in message.content:
            message.content.config_records["options"]["times"] = 30
        return nodes[3](message)

    with pytest.raises(SecaggError):
        summed(loopback({**nodes, 3: tampered}), content)


def test_every_change_of_the_content_shows() -> None:
    def of(array: Any, **options: Any) -> str:
        record = ArrayRecord({"w": Array(np.asarray(array))})
        return content_digest(RecordDict({"a": record, "o": ConfigRecord(options)}))

    contents = [of([1.0], k=1), of([2.0], k=1), of([[1.0]], k=1), of([1], k=1), of([1.0], k=1.0)]
    contents += [of([1.0], k=True), of([1.0], j=1), of([1.0], k=1, j=1), of([1.0], k="1")]
    assert len(set(contents)) == len(contents)
    assert of([1.0], k=1, j=2) == of([1.0], j=2, k=1)


def test_a_round_is_answered_once(tmp_path: Path, loopback: Any) -> None:
    grid = loopback(nodes_of(tmp_path, [[1, 1]] * 3))
    assert summed(grid, run="r", round=2).tolist() == [3, 3]
    for earlier in ({"round": 2}, {"round": 1, "attempt": 9}):
        with pytest.raises(SecaggError):
            summed(grid, run="r", **earlier)
    assert summed(grid, run="r", round=2, attempt=2).tolist() == [3, 3]
    assert summed(grid).tolist() == summed(grid).tolist() == [3, 3]  # fresh runs


def test_too_few_reveal_nothing(tmp_path: Path, loopback: Any) -> None:
    nodes = nodes_of(tmp_path, [[1, 1]] * 6)

    def silent_at_mask(node_id: int) -> Callable[[Message], Message | None]:
        answer = nodes[node_id]
        return lambda m: None if m.content[RECORD]["stage"] == "mask" else answer(m)

    one = {**nodes, 10: silent_at_mask(10)}
    assert summed(loopback(one)).tolist() == [5, 5]
    grid = loopback({**one, 11: silent_at_mask(11)})
    with pytest.raises(SecaggError, match="W_min"):
        summed(grid)
    assert "unmask" not in {m.content[RECORD]["stage"] for m in grid.sent}
    assert summed(grid, min_nodes=4).tolist() == [4, 4]
    with pytest.raises(SecaggError, match="W_min"):
        summed(grid, min_nodes=4, colluding=1)


def test_a_node_has_conditions_of_its_own(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = nodes_of(tmp_path, [[1, 1]] * 5, min_weight=4)
    assert summed(loopback(nodes)).tolist() == [5, 5]
    with pytest.raises(SecaggError):
        summed(loopback(nodes), min_nodes=3)
    assert "min_weight = 4" in caplog.text
    with pytest.raises(ValueError, match="weight = 0"):
        secure_vector(weight=0)(lambda message, context: [])


def test_weights_are_what_the_server_counts(tmp_path: Path, loopback: Any) -> None:
    grid = loopback(nodes_of(tmp_path, [[1, 1]] * 4, weight=2))
    with pytest.raises(SecaggError):
        summed(grid)
    assert summed(grid, weights=dict.fromkeys(range(10, 14), 2), min_nodes=8).tolist() == [4, 4]


def test_peers_are_trusted_on_first_use(tmp_path: Path, loopback: Any) -> None:
    nodes = nodes_of(tmp_path, [[1, 1]] * 4)
    summed(loopback(nodes))
    assert stat.S_IMODE((tmp_path / "10").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "10" / "secagg.sqlite").stat().st_mode) == 0o600
    (tmp_path / "13" / "identity.key").unlink()  # another node under a known id
    with pytest.raises(SecaggError):
        summed(loopback(nodes))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"largest": 2.0**54}, "does not fit 56 bits"),
        ({"largest": 0.1}, "at least 1"),
        ({"largest": float("inf")}, "finite"),
        ({"length": 0}, "length = 0"),
    ],
)
def test_numbers_that_cannot_be_are_named(
    tmp_path: Path, loopback: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        summed(loopback(nodes_of(tmp_path, [[1, 1]] * 3)), **options)
    with pytest.raises(ValueError, match="reserved"):
        summed(loopback({}), RecordDict({RECORD: ConfigRecord()}))


@pytest.mark.parametrize("largest", [2**40, 2**52])
def test_sums_near_the_modulus(tmp_path: Path, loopback: Any, largest: int) -> None:
    grid = loopback(nodes_of(tmp_path, [[largest, -largest]] * 3))
    assert summed(grid, largest=largest).tolist() == [3 * largest, -3 * largest]


def test_other_messages_are_refused(tmp_path: Path, loopback: Any) -> None:
    grid = loopback(nodes_of(tmp_path, [[1, 1]]))
    grid.push_messages([outgoing(RecordDict(), 10, "query.x", ttl=1.0)])
    (reply,) = grid.pull_messages(["m1"])
    assert reply.content[RECORD]["code"] == "secagg-malformed"


def example() -> list[str]:
    """The page's Python blocks: client, server, client with noise."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_pages_example(
    loopback: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME")
    names: list[dict[str, Any]] = [{} for _ in range(3)]
    for code, scope in zip(example(), names, strict=True):
        exec(compile(code, PAGE.name, "exec"), scope)
    client, server, noisy = names
    contexts = {i: node_context({}, node_id=i) for i in (1, 2, 3, 4)}
    grid = loopback({i: lambda m, c=c: client["app"](m, c) for i, c in contexts.items()})
    server["main"](grid, None)
    assert capsys.readouterr().out.strip() == "the sum is [8, 0, 4]"
    home = tmp_path / ".local/share/privsyn-flower/node/secagg"
    assert sorted(path.name for path in home.iterdir()) == ["1", "2", "3", "4"]
    contexts = {i: node_context({}, node_id=i) for i in range(8)}
    grid = loopback({i: lambda m, c=c: noisy["ages"](m, c) for i, c in contexts.items()})
    total = summed(grid, length=3, min_nodes=8, largest=100_000)
    assert 0 < np.abs(total / 1024 - [0, 0, 8]).max() < 40
