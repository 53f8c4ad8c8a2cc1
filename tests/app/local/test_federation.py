"""A federation's folder, certificates and keys, without its processes; the commands' errors."""

from __future__ import annotations

import json
import ssl
import stat
import tomllib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.app.local.federation import LocalFederation, find_run, hosted
from privsyn_flower.app.local.layout import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    create,
    write_certificates,
    write_node_key,
)
from privsyn_flower.app.local.processes import free_port
from privsyn_flower.app.local.simulation import FlowerError
from privsyn_flower.data import DataError, load_users
from privsyn_flower.runs import write_jsonl
from tests.conftest import sentences


def write_users(path: Path, names: range) -> Path:
    texts = sentences(len(names) * 2, seed=names.start + 1)
    rows = [
        {"user_id": f"u{name}", "text": text}
        for at, name in enumerate(names)
        for text in texts[2 * at : 2 * at + 2]
    ]
    write_jsonl(path, rows)
    return path


def config_of(folder: Path, number: int) -> dict[str, object]:
    return tomllib.loads((folder / f"node-{number}" / "node.toml").read_text())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_users_of_one_file_are_dealt_in_order(tmp_path: Path) -> None:
    data, folder = write_users(tmp_path / "users.jsonl", range(10)), tmp_path / "fed"
    create(folder, [data], nodes=4, node_config={"embedder": "ngram-64"})
    shards = [load_users(str(config_of(folder, n)["data"])) for n in range(4)]
    assert [len(shard) for shard in shards] == [3, 3, 2, 2]
    assert [config_of(folder, n)["weight"] for n in range(4)] == [3, 3, 2, 2]
    assert {u: t for shard in shards for u, t in shard.items()} == load_users(data)
    assert config_of(folder, 2)["embedder"] == "ngram-64"
    assert len({config_of(folder, n)["cache"] for n in range(4)}) == 4
    assert mode(folder / "node-0") == 0o700
    assert mode(folder / "node-0" / "users.jsonl") == 0o600
    with pytest.raises(FileExistsError, match="without --data"):
        create(folder, [data], nodes=4)


def test_a_federation_that_fails_to_start_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def start(federation: LocalFederation) -> None:
        done.append(f"start {len(federation.facts['nodes'])}")
        raise FlowerError("a node is not online")

    monkeypatch.setattr(LocalFederation, "start", start)
    monkeypatch.setattr(LocalFederation, "stop", lambda federation: done.append("stop"))
    data = write_users(tmp_path / "users.jsonl", range(10))
    config = {"embedder": "ngram-64"}
    with (
        pytest.raises(FlowerError, match="not online"),
        hosted(tmp_path / "fed", [data], nodes=4, node_config=config),
    ):
        pytest.fail("was not started")
    assert done == ["start 4", "stop"] and config_of(tmp_path / "fed", 3)["embedder"] == "ngram-64"


def test_one_file_per_node_stays_where_it_is(tmp_path: Path) -> None:
    files = [write_users(tmp_path / f"{n}.jsonl", range(10 * n, 10 * n + 2 + n)) for n in range(3)]
    create(tmp_path / "fed", files)
    for number, file in enumerate(files):
        config = config_of(tmp_path / "fed", number)
        assert (config["data"], config["weight"]) == (str(file), 2 + number)
        assert not (tmp_path / "fed" / f"node-{number}" / "users.jsonl").exists()
        assert "resources" not in config  # of no group


def test_the_last_nodes_are_weak(tmp_path: Path) -> None:
    create(tmp_path / "fed", [write_users(tmp_path / "u.jsonl", range(4))], nodes=4, weak=1)
    found = [config_of(tmp_path / "fed", number)["resources"] for number in range(4)]
    assert found == ["strong", "strong", "strong", "weak"]


def test_a_node_without_users_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    full = write_users(tmp_path / "full.jsonl", range(3))
    with pytest.raises(DataError):
        create(tmp_path / "fed", [full, tmp_path / "empty.jsonl"])
    with pytest.raises(DataError, match="num-partitions"):
        create(tmp_path / "fed", [full], nodes=4)


def test_certificates_are_what_tls_accepts_for_loopback_only(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    assert mode(tmp_path / KEY) == 0o600
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / CERTIFICATE, tmp_path / KEY)
    shake(server, tmp_path / AUTHORITY, "127.0.0.1")
    shake(server, tmp_path / AUTHORITY, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(server, tmp_path / AUTHORITY, "example.org")
    (tmp_path / "other").mkdir()
    write_certificates(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, tmp_path / "other" / AUTHORITY, "127.0.0.1")


def shake(server: ssl.SSLContext, authority: Path, name: str) -> None:
    """A TLS handshake in memory, the client trusting `authority` alone."""
    trusting = ssl.create_default_context(cafile=str(authority))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up, server_hostname=name)
    other = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() == "TLSv1.3"


def test_a_nodes_key_is_made_once_and_is_of_a_curve_flower_takes(tmp_path: Path) -> None:
    public = write_node_key(tmp_path / "key")
    first = (tmp_path / "key").read_bytes()
    assert write_node_key(tmp_path / "key") == public
    assert (tmp_path / "key").read_bytes() == first
    assert mode(tmp_path / "key") == 0o600
    key = load_ssh_private_key(first, password=None)
    known = load_ssh_public_key(public.read_bytes())
    assert isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == known
    assert key.curve.name == "secp384r1"


def test_a_process_of_somebody_else_is_neither_counted_nor_ended(tmp_path: Path) -> None:
    create(tmp_path / "fed", [write_users(tmp_path / "users.jsonl", range(3))])
    federation = LocalFederation(tmp_path / "fed")
    federation._write(port=free_port(), pid=1, nodes=[{"pid": 1, "node_id": "7"}])
    assert not federation._runs(1)
    federation.stop()  # would fail, or worse, on process 1
    assert federation.status()["nodes"][0]["pid"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["federation", "start", "none"], "start one with --data"),
        (["federation", "status", "none"], "holds no federation"),
        (["federation", "stop", "none"], "holds no federation"),
        (["run", "sim.toml", "--federation", "fed"], "data.path = 'users.jsonl'"),
        (["run", "real.toml"], "--federation"),
        (["run", "real.toml", "--federation", "fed"], "privsyn federation start"),
        (
            ["federation", "start", "new", "--data", "users.jsonl", "--policy", "p.toml"],
            "min-cohort",
        ),
    ],
)
def test_errors_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    create(tmp_path / "fed", [write_users(tmp_path / "users.jsonl", range(3))])
    keys = 'nodes = 3\n[data]\nsource = "files"\npublic-path = "p.jsonl"\nusers = 3\n'
    (tmp_path / "real.toml").write_text(keys)
    (tmp_path / "sim.toml").write_text(keys + 'path = "users.jsonl"\n')
    (tmp_path / "p.toml").write_text("min-cohor = 3\n")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (1, 2)
    assert words in result.output
    assert not (tmp_path / "new").exists()


def test_a_run_of_a_stopped_federation_is_not_found(tmp_path: Path) -> None:
    create(tmp_path / "fed", [write_users(tmp_path / "users.jsonl", range(3))])
    facts = {"federation": str(tmp_path / "fed"), "run_id": "5"}
    (tmp_path / "flower.json").write_text(json.dumps(facts))
    assert find_run(tmp_path) is None
    assert find_run(tmp_path / "elsewhere") is None
