"""`privsyn node`: what the owner sees, a key that stays, and a withdrawal that erases."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.node.failures import Failures
from privsyn_flower.client_apps.node.lifetime import Spent, cost, spent_epsilon
from privsyn_flower.client_apps.node.node_log import note_answer, note_refusal
from privsyn_flower.client_apps.node.past_vectors import store_vector
from privsyn_flower.client_apps.node.policy import Policy, check_member, load_roster
from privsyn_flower.client_apps.node.records import RECORDS_FILE, NodeRecords
from privsyn_flower.data import EmbeddingCache
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.protocol.wire import WireError
from tests.rigs import command_line

privsyn = partial(command_line.privsyn, "node")
SECRET = "the user's own words"


def test_status_changes_nothing(tmp_path: Path) -> None:
    result = privsyn("status", "--folder", tmp_path / "node")
    assert result.exit_code == 0
    assert "lifetime-epsilon = 10.0" in result.stdout
    assert "answered nothing" in result.stdout and "does not exist" in result.stdout
    assert not (tmp_path / "node").exists()


def test_status_after_a_round(tmp_path: Path) -> None:
    NodeRecords(tmp_path / RECORDS_FILE).take(
        "r\x1b[2J", "votes", 3, 2, ["a", "b"], 2.0, 1e-18, Policy()
    )
    facts = json.loads(privsyn("status", "--folder", tmp_path, "--json").stdout)
    assert facts["records"]["users"] == 2
    assert facts["records"]["runs"][0]["round"] == 3
    assert facts["policy"]["min-noise-multiplier"] == 1.0
    assert facts["key"] is None
    text = privsyn("status", "--folder", tmp_path).stdout
    assert "last round 3, attempt 2; 1 answers" in text
    assert "\x1b" not in text  # the server chose the run's name


def test_status_says_when_no_epsilon_can_be_told(tmp_path: Path) -> None:
    """Of users whose integers were too coarse: JSON has no infinity."""

    def show(*options: str) -> str:
        return privsyn("status", "--folder", tmp_path, *options).stdout

    records = NodeRecords(tmp_path / RECORDS_FILE)
    records.take("r", "votes", 1, 1, ["a"], 20.0, 1e-18, Policy())
    facts = json.loads(show("--json"))
    assert facts["records"]["max_spent_epsilon"] == pytest.approx(0.189, abs=0.001)
    assert "most spent by a user: epsilon = 0.189" in show()
    with sqlite3.connect(tmp_path / RECORDS_FILE) as database:
        database.execute("UPDATE users SET distance = 1.0")
    database.close()

    def number(name: str) -> None:
        pytest.fail(f"{name} is no JSON")

    facts = json.loads(show("--json"), parse_constant=number)
    assert facts["records"]["max_spent_epsilon"] is None
    assert "most spent by a user: all (in integers too coarse for any epsilon)" in show()


def test_status_names_where_the_limits_come_from(tmp_path: Path) -> None:
    text = privsyn("status", "--folder", tmp_path).stdout
    assert "policy: the defaults: no policy file was named" in text
    policy, config, bare = (tmp_path / name for name in ("policy.toml", "node.toml", "bare.toml"))
    policy.write_text("min-cohort = 7\n")
    config.write_text(f'data = "x"\ncache = "{tmp_path}/node"\npolicy = "{policy}"\n')
    text = privsyn("status", "--node-config", config).stdout
    for line in (f"folder = {tmp_path}/node\n", f"policy: {policy}\n", "min-cohort = 7\n"):
        assert line in text
    bare.write_text('data = "x"\n')
    text = privsyn("status", "--node-config", bare, "--folder", tmp_path).stdout
    assert f"policy: the defaults: {bare} names no policy file" in text
    facts = json.loads(privsyn("status", "--node-config", config, "--json").stdout)
    assert (facts["policy_file"], facts["policy"]["min-cohort"]) == (str(policy), 7)
    shown = privsyn("status", "--folder", tmp_path, "--json")
    assert json.loads(shown.stdout)["policy_file"] is None
    config.write_text("data =")
    result = privsyn("status", "--node-config", config)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "node.toml is no node config" in result.stderr


def test_status_has_runs_that_are_named_like_a_stage(tmp_path: Path) -> None:
    records = NodeRecords(tmp_path / RECORDS_FILE)
    records.mark("study/share", "votes", 2, 1)
    records.mark_stage("share", "another", "votes", 1, 1)
    text = privsyn("status", "--folder", tmp_path).stdout
    assert "run 'study/share', 'votes': last round 2, attempt 1; 1 answers" in text
    assert "another" not in text


def test_status_says_whose_data_failed(tmp_path: Path) -> None:
    assert "raised nothing" in privsyn("status", "--folder", tmp_path).stdout
    failures = Failures()
    failures.add("answer", NameError(SECRET), 3)
    failures.write(tmp_path, Ticket("r\x1b[2J", "update", 4, 2), 5)
    text = privsyn("status", "--folder", tmp_path).stdout
    assert "round 4, attempt 2: 3 of 5 users gave no vector: NameError" in text
    assert SECRET not in text and "\x1b" not in text
    facts = json.loads(privsyn("status", "--folder", tmp_path, "--json").stdout)
    assert facts["failures"][0]["error"] == "NameError"


def test_status_takes_a_policy_file(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("min-cohort = 7\n")
    assert "min-cohort = 7" in privsyn("status", "--folder", tmp_path, "--policy", policy).stdout
    policy.write_text("min-cohor = 7\n")
    result = privsyn("status", "--folder", tmp_path, "--policy", policy)
    assert result.exit_code == 2
    assert "did you mean 'min-cohort'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_status_says_that_records_were_lost(tmp_path: Path) -> None:
    NodeRecords(tmp_path / RECORDS_FILE).forget("a")
    (tmp_path / RECORDS_FILE).unlink()
    result = privsyn("status", "--folder", tmp_path)
    assert result.exit_code == 2
    assert "is gone" in result.stderr


def test_key_is_made_once(tmp_path: Path) -> None:
    first = privsyn("key", "--folder", tmp_path / "node").stdout.strip()
    assert len(bytes.fromhex(first)) == 32
    assert privsyn("key", "--folder", tmp_path / "node").stdout.strip() == first
    shown = json.loads(privsyn("status", "--folder", tmp_path / "node", "--json").stdout)
    assert shown["key"] == first
    (tmp_path / "node" / "identity.key").chmod(0o644)
    result = privsyn("key", "--folder", tmp_path / "node")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "0644" in result.stderr


def test_a_new_key_takes_the_place_of_one_that_is_revoked(tmp_path: Path) -> None:
    node, path = tmp_path / "node", tmp_path / "roster.json"
    NodeRecords(node / RECORDS_FILE).take("r", "votes", 1, 1, ["ann"], 9.0, 1e-18, Policy())
    old = privsyn("key", "--folder", node).stdout.strip()
    (node / "identity.key").unlink()
    new = privsyn("key", "--folder", node).stdout.strip()
    rows = [
        {"name": "a", "key": old, "weight": 5, "revoked": True},
        {"name": "a-2", "key": new, "weight": 5},
    ]
    path.write_text(json.dumps(rows))
    assert "1 nodes, weight 5; 1 revoked" in privsyn("roster", "check", path).stdout
    assert check_member(load_roster(path), bytes.fromhex(new), 5).name == "a-2"
    with pytest.raises(WireError, match="revoked"):
        check_member(load_roster(path), bytes.fromhex(old), 5)
    kept = json.loads(privsyn("status", "--folder", node, "--json").stdout)["records"]
    assert kept["users"] == kept["max_participations"] == 1


def test_forget_withdraws_and_erases(tmp_path: Path) -> None:
    def embed(texts: list[str]) -> np.ndarray:
        return np.asarray([np.frombuffer(text.encode()[:16], np.uint8) for text in texts], float)

    users = {"ann": [SECRET], "bob": ["quite another text"]}
    EmbeddingCache(tmp_path / "embeddings", "m").get(users, embed)
    with NodeRecords(tmp_path / RECORDS_FILE).file.transaction() as database:
        database.execute("INSERT INTO vectors VALUES ('r', 'update', 1, ?)", ("0" * 32,))
    store_vector(tmp_path / "past", "0" * 32, np.ones(3, dtype=np.int64))
    trace = embed([SECRET]).astype(np.float32).tobytes()
    rows = tmp_path / "embeddings" / "embeddings.sqlite"
    assert trace in rows.read_bytes()
    result = privsyn("forget", "ann", "--folder", tmp_path)
    assert result.exit_code == 0
    assert "embeddings erased" in result.stdout and "sums of earlier rounds" in result.stdout
    assert not list((tmp_path / "past").iterdir())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in files:
        assert trace not in path.read_bytes()
        assert SECRET.encode() not in path.read_bytes()
        assert b"ann" not in path.read_bytes()
    assert embed(users["bob"]).astype(np.float32).tobytes() in rows.read_bytes()
    records = NodeRecords(tmp_path / RECORDS_FILE)
    assert records.withdrawn(["ann", "bob"]).tolist() == [True, False]
    assert privsyn("forget", "ann", "--folder", tmp_path).exit_code == 0


def test_an_id_that_the_node_never_had_is_an_error(tmp_path: Path) -> None:
    node, data, config = (tmp_path / name for name in ("node", "users.jsonl", "node.toml"))
    node.mkdir()
    data.write_text('{"user_id": "bob", "text": "of bob"}\n')
    config.write_text(f'data = "{data}"\ncache = "{node}"\n')
    for options in (("--folder", node), ("--node-config", config)):
        result = privsyn("forget", "anne", *options)
        assert result.exit_code == 2 and "never had this id, and nobody was" in result.stderr
        assert list(node.iterdir()) == []
    result = privsyn("forget", "bob", "--node-config", config)  # who has not taken part yet
    assert result.exit_code == 0 and "takes part in nothing from now on" in result.stdout
    assert privsyn("forget", "anne", "--node-config", config, "--unknown").exit_code == 0
    records = NodeRecords(node / RECORDS_FILE)
    assert records.withdrawn(["anne", "bob", "carl"]).tolist() == [True, True, False]
    assert privsyn("forget", "anne", "--folder", node).exit_code == 0  # known by now
    assert privsyn("forget", "carl", "--folder", node).exit_code == 2
    assert not records.withdrawn(["carl"]).any()


def test_status_tells_answers_refusals_and_users_at_a_limit(tmp_path: Path) -> None:
    spent = cost(2.0, 1e-18)
    records, policy = NodeRecords(tmp_path / RECORDS_FILE), tmp_path / "policy.toml"
    for rnd in (1, 2):
        records.take("r", "votes", rnd, 1, ["a", "b"][:rnd], 2.0, 1e-18, Policy())
        note_answer(tmp_path, Ticket("r", "votes", rnd, 1), spent)
    note_refusal(tmp_path, "policy", "why")
    text = privsyn("status", "--folder", tmp_path).stdout
    assert "answers = 2, refusals: policy 1\n" in text and "protocol " in text
    assert "users at a limit, for whom zeros are sent = 0\n" in text
    policy.write_text("max-participations = 2\n")  # a had two
    facts = json.loads(privsyn("status", "--folder", tmp_path, "--policy", policy, "--json").stdout)
    assert facts["records"]["at_limit"] == 1 and facts["refusals"] == {"policy": 1}
    assert facts["versions"]["flower"] and facts["disk"]["used_bytes"] > 1000
    # Two answers of mu = 1/2 were given; a third one would take `a` beyond this lifetime.
    lifetime = spent_epsilon(Spent(2 * spent.gaussian, 2 * spent.distance), 1e-6)
    policy.write_text(f"lifetime-epsilon = {lifetime * 1.01}\n")
    facts = json.loads(privsyn("status", "--folder", tmp_path, "--policy", policy, "--json").stdout)
    assert facts["records"]["at_limit"] == 1


def _node(folder: Path) -> Node:
    facts = Hello(2, 0, deployed=True)
    return Node(facts, folder, "", "", Policy(), None, dict)


def test_nothing_is_forgotten_where_no_node_is(tmp_path: Path) -> None:
    result = privsyn("forget", "anne", "--folder", tmp_path / "nodes")
    assert result.exit_code == 2 and "name its `cache` with --folder" in result.stderr
    assert not (tmp_path / "nodes").exists()
    result = privsyn("forget", "  ", "--folder", tmp_path)
    assert result.exit_code == 2 and "is no id" in result.stderr
    assert not list(tmp_path.iterdir())


def test_roster_check(tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    rows = [
        {"name": "a", "key": "01" * 32, "weight": 5},
        {"name": "b", "key": "02" * 32, "weight": 7, "revoked": True},
    ]
    path.write_text(json.dumps(rows))
    result = privsyn("roster", "check", path)
    assert result.exit_code == 0
    assert "1 nodes, weight 5; 1 revoked" in result.stdout
    path.write_text(json.dumps(rows + rows[:1]))
    result = privsyn("roster", "check", path)
    assert result.exit_code == 2
    assert "twice" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [["status"], ["key"], ["forget", "a", "--unknown"]])
def test_no_model_library_is_loaded(tmp_path: Path, command: list[str]) -> None:
    code = (
        "import sys\n"
        "from privsyn_flower.app.cli.node import node_app\n"
        f"node_app({[*command, '--folder', str(tmp_path)]!r}, standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'scipy', 'pandas', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
