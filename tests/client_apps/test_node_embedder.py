"""A device's embedder is tried before a text is opened: what fails is a code, told to its owner."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps.node import embedder as module
from privsyn_flower.client_apps.node.failures import read_failures
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.common.files import file_digest
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.text import embedders, encoders
from tests.rigs.client_apps_votes import USERS, node, noise, reply, vector

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

DIMENSION = 8
POLICY = Policy.model_validate({"aggregation": ["plain"], "min-surviving-weight": 5.0})
GRAPH, TOKENIZER, FACTS = "model.onnx", "tokenizer.json", "embedder.json"
Damage = Callable[[Path], None]


def write_graph(path: Path, *, opset: int = 20, scale: float = 1.0) -> None:
    """The mean of the rows of a text's tokens, as an ONNX file."""
    from onnx import TensorProto, helper, numpy_helper

    table = scale * np.random.default_rng(0).normal(size=(64, DIMENSION)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("ReduceMean", ["rows", "axes"], ["row"], keepdims=0),
        ],
        "encoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "tokens"])],
        [helper.make_tensor_value_info("row", TensorProto.FLOAT, [1, DIMENSION])],
        [
            numpy_helper.from_array(table.astype(np.float32), "table"),
            numpy_helper.from_array(np.array([1]), "axes"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 10
    path.write_bytes(model.SerializeToString())


def write_facts(folder: Path, **changes: Any) -> None:
    """embedder.json of the files as they are; a change to None leaves a key out."""
    digests = {name: file_digest(folder / name) for name in (GRAPH, TOKENIZER)}
    facts = {"format": 1, "name": "small", "fingerprint": "0f" * 32, "dimension": DIMENSION}
    facts |= {"max-tokens": 16, "bits": 32, "files": digests, **changes}
    kept = {key: value for key, value in facts.items() if value is not None}
    (folder / FACTS).write_text(json.dumps(kept))


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder as `privsyn embedder export` makes it, of an encoder that is small."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path / "exported"
    folder.mkdir()
    words = {"[UNK]": 0} | {f"w{number}": number for number in range(1, 64)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / TOKENIZER))
    write_graph(folder / GRAPH)
    write_facts(folder)
    return folder


def ask(ticket: Ticket = Ticket("run", "votes", 1, 1), model: str = "0f" * 32) -> Any:
    query = Query.votes(np.eye(4, DIMENSION, dtype=np.float32), bound=1.0, model=model)
    return query, wire.ask(query, ticket, noise(2.0), 1, 5, 60.0)


def device(folder: Path, load: Any = lambda: USERS, **facts: Any) -> Any:
    given = {"embedder": str(folder), "deployed": True, "policy": POLICY, **facts}
    return node(folder.parent, load=load, **given)


def private() -> Any:
    pytest.fail("private text was opened for a query that must be refused")


def code(folder: Path, load: Any = private, **facts: Any) -> str:
    """What the server gets of a question to a device with this folder: a code and nothing else."""
    _, message = ask()
    (record,) = reply(message, device(folder, load, **facts)).content.values()
    assert not {"arrays", "bits"} & set(record) and str(folder) not in str(dict(record))
    return str(record["code"])


def renewed(change: Damage) -> Damage:
    """A damage that embedder.json agrees with."""

    def both(folder: Path) -> None:
        change(folder)
        write_facts(folder)

    return both


def cut(name: str) -> Damage:
    def half(folder: Path) -> None:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])

    return half


def text(content: str) -> Damage:
    return lambda folder: (folder / FACTS).write_text(content) and None


DAMAGES: dict[str, Damage] = {
    "another graph": lambda folder: write_graph(folder / GRAPH, scale=2.0),
    "no graph": lambda folder: (folder / GRAPH).unlink(),
    "half a graph": cut(GRAPH),
    "half a graph, exported so": renewed(cut(GRAPH)),
    "half a tokenizer": cut(TOKENIZER),
    "half a tokenizer, exported so": renewed(cut(TOKENIZER)),
    "no tokenizer": lambda folder: (folder / TOKENIZER).unlink(),
    "an opset of the future": renewed(lambda folder: write_graph(folder / GRAPH, opset=999)),
    "rows that are not finite": renewed(lambda folder: write_graph(folder / GRAPH, scale=np.inf)),
    "rows of another dimension": lambda folder: write_facts(folder, dimension=9),
    "not JSON": text('{"format": 1,'),
    "nested": text("[" * 100_000),
    "a list": text("[1]"),
    "not UTF-8": lambda folder: (folder / FACTS).write_bytes(b'{"format": "\xff"}') and None,
    "another format": lambda folder: write_facts(folder, format=2),
    "format true": lambda folder: write_facts(folder, format=True),
    "no files named": lambda folder: write_facts(folder, files={}),
    "files as a list": lambda folder: write_facts(folder, files=[GRAPH]),
    "one file named": lambda folder: write_facts(folder, files={GRAPH: "0" * 64}),
    "weights that are not there": lambda folder: write_facts(
        folder,
        files={name: file_digest(folder / name) for name in (GRAPH, TOKENIZER)}
        | {"model.onnx.data": "0" * 64},
    ),
    "a file elsewhere": lambda folder: write_facts(folder, files={"../x": "0" * 64}),
    "no fingerprint": lambda folder: write_facts(folder, fingerprint=None),
    "a number as fingerprint": lambda folder: write_facts(folder, fingerprint=7),
    "a word as fingerprint": lambda folder: write_facts(folder, fingerprint="minilm"),
    "dimension as text": lambda folder: write_facts(folder, dimension="8"),
    "dimension true": lambda folder: write_facts(folder, dimension=True),
    "a huge dimension": lambda folder: write_facts(folder, dimension=10**12),
    "no tokens": lambda folder: write_facts(folder, **{"max-tokens": 0}),
    "no length": lambda folder: write_facts(folder, **{"max-tokens": None}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_by_code_and_told_to_its_owner(
    exported: Path, loopback: Any, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    DAMAGES[damage](exported)
    assert code(exported) == Refusal.MODEL
    assert "refused" in caplog.text and str(exported) in caplog.text
    assert not (exported.parent / "node" / module.TRIED).exists()
    assert read_failures(exported.parent / "node") == []  # no user's data was at fault


def test_an_embedder_is_tried_once_for_its_files_and_runtime(
    exported: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    probe = module._probe
    monkeypatch.setattr(module, "_probe", lambda node: tried.append(node) or probe(node))
    rounds = iter(range(1, 9))

    def answered() -> int:
        ticket = Ticket("run", "votes", next(rounds), 1)
        query, message = ask(ticket)
        vector(reply(message, device(exported)), query, ticket)  # raises for a refusal
        return len(tried)

    assert [answered(), answered()] == [1, 1]
    monkeypatch.setattr(module, "_version", lambda name: "another")
    assert [answered(), answered()] == [2, 2]
    write_facts(exported, name="exported again")
    assert answered() == 3
    (exported.parent / "node" / module.TRIED).write_bytes(b"\xff")
    assert answered() == 4


def test_another_embedder_is_refused_before_it_is_tried(
    exported: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_probe", lambda node: pytest.fail("was loaded"))
    write_facts(exported, fingerprint="f0" * 32)
    assert code(exported) == Refusal.EMBEDDER


@pytest.mark.parametrize("missing", ["onnxruntime", "tokenizers"])
def test_a_missing_library_is_a_code_that_names_the_extra_here(
    exported: Path, loopback: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    assert code(exported) == Refusal.MODEL
    assert missing in caplog.text and "privsyn-flower[edge]" in caplog.text


class RustPanic(BaseException):
    """What a panic in a Rust tokenizer is to Python."""


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (MemoryError(), Refusal.MEMORY),
        (RustPanic("index out of bounds"), Refusal.MODEL),
        (OSError("a disk"), Refusal.MODEL),
    ],
)
def test_what_a_model_raises_when_it_is_tried(
    exported: Path, loopback: Any, monkeypatch: Any, error: BaseException, wanted: Refusal
) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(module, "_probe", fails)
    assert code(exported) == wanted


def test_a_session_without_memory(exported: Path, loopback: Any, monkeypatch: Any) -> None:
    """ONNX Runtime has an error class of its own for it."""
    import onnxruntime

    def session(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc")

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    assert code(exported) == Refusal.MEMORY


@pytest.mark.parametrize("error", [MemoryError("big"), RustPanic("w1"), RuntimeError("bad_alloc")])
def test_a_failure_over_users_texts_is_zeros_plus_noise(
    exported: Path, loopback: Any, monkeypatch: Any, error: BaseException
) -> None:
    """After the checks nothing may depend on texts: not the code, not whether there is one."""

    def fails(*arguments: Any, **options: Any) -> Any:
        raise error

    reply(ask()[1], device(exported, load=dict))  # tried
    monkeypatch.setattr(embedders, "load_embedder", fails)
    ticket = Ticket("run", "votes", 2, 1)
    query, message = ask(ticket)
    host = device(exported)
    got = vector(reply(message, host), query, ticket)
    assert np.isfinite(got).all() and np.abs(got).max() < 2.0 * 8  # noise of std 2 alone
    row = read_failures(host.cache)[0]
    assert row["error"] == type(error).__name__ and row["users"] == row["of"] == len(USERS)


def test_what_onnx_runtime_says_of_a_text_stays_in_its_error(
    exported: Path, loopback: Any, monkeypatch: Any, capfd: Any
) -> None:
    """Its own words name a token of the text: they are in no reply, no file and no output."""
    reply(ask()[1], device(exported, load=dict))  # tried
    token, said = 99_999_999, []

    def row(model: encoders.OnnxModel, text: str) -> Any:
        try:
            return model.session.run([encoders.ROW], {encoders.IDS: np.array([[token]])})
        except Exception as error:
            said.append(str(error))
            raise

    monkeypatch.setattr(encoders.OnnxModel, "row", row)
    ticket = Ticket("run", "votes", 2, 1)
    host = device(exported)
    answer = reply(ask(ticket)[1], host)
    assert read_failures(host.cache) and all(str(token) in text for text in said) and said
    files = [path.read_bytes() for path in host.cache.rglob("*") if path.is_file()]
    shown = [repr(dict(record)) for record in answer.content.config_records.values()]
    everything = b"".join(files) + "".join([*capfd.readouterr(), *shown]).encode()
    assert str(token).encode() not in everything and b"out of data bounds" not in everything


def test_the_log_that_cannot_be_kept_changes_nothing(
    exported: Path, loopback: Any, monkeypatch: Any
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(module, "write_atomic", full)
    query, message = ask()
    vector(reply(message, device(exported)), query)


def test_room_is_asked_for_before_a_library_is_loaded(
    exported: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece, of at least the libraries and the largest file; also where it worked before."""
    reply(ask()[1], device(exported, load=dict))  # tried
    taken: list[int] = []

    def full(size: int, dtype: Any) -> Any:
        taken.append(size)
        raise MemoryError("no room")

    monkeypatch.setattr(module.np, "empty", full)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)  # of other tests
    assert code(exported) == Refusal.MEMORY
    largest = max(path.stat().st_size for path in exported.iterdir())
    assert taken == [module.LIBRARIES + largest]


# Memory is really short: the process answers with a code and goes on. At 46 and 70 MB ONNX Runtime
# and the tokenizer would end it.
SHORT = """
import resource, sys
from pathlib import Path
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
import numpy as np
from privsyn_flower.client_apps.main import app, votes
from privsyn_flower.client_apps import votes as kind
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.text.embedders import embedder_fingerprint

folder, more = Path(sys.argv[1]), int(sys.argv[2])
model = embedder_fingerprint("minilm-int8")
query = Query.votes(np.eye(4, 384, dtype=np.float32), bound=1.0, model=model)
own = {"data": str(folder / "users.jsonl"), "weight": 2, "cache": str(folder / "cache"),
       "policy": str(folder / "policy.toml"), "embedder": "minilm-int8"}
noise = Noise(1.0, 4096.0, 32, 2.0)
message = wire.ask(query, Ticket("run", "votes", 1, 1), noise, 1, 2, 60.0)
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + more * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
reply = app(message, Context(1, 1, own, RecordDict(), {}))
print(reply.content["answer"]["code"] if "answer" in reply.content else list(reply.content.keys()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is Linux's")
@pytest.mark.parametrize(
    ("more", "wanted"),
    [(8, "out-of-memory"), (46, "out-of-memory"), (70, "out-of-memory"), (4000, "ok")],
)
def test_a_process_that_is_short_of_memory(tmp_path: Path, more: int, wanted: str) -> None:
    rows = [{"user_id": f"u{number}", "text": f"a private text {number}"} for number in range(2)]
    (tmp_path / "users.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "policy.toml").write_text('aggregation = ["plain"]\nmin-surviving-weight = 2.0\n')
    command = [sys.executable, "-c", SHORT, tmp_path, str(more)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == wanted, done.stdout + done.stderr
    assert "private text" not in done.stderr
