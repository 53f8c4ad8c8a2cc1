"""A simulation in a Ray cluster: two nodes on this machine's loopback, under a token."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import privsyn_flower
from privsyn_flower.app.local.ray_cluster import ClusterError, check_cluster
from privsyn_flower.config import load_config
from tests.end_to_end.conftest import flwr, left_running, privsyn
from tests.ray_nodes import RayNode
from tests.rigs.run import command, finish, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.e2e]
ROOT = Path(__file__).parent.parent.parent
TOKEN = os.urandom(32).hex()
# A machine of its own, as far as these two places go: other code, and a cache that it alone sees.
ELSEWHERE = 'mount --bind "$1" "$2" && mount -t tmpfs none "$3" && shift 3 && exec "$@"'


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[RayNode, RayNode]]:
    """The first node and another, with two CPUs each."""
    nodes: list[RayNode] = []
    try:
        nodes.append(RayNode(TOKEN).wait())
        nodes.append(RayNode(TOKEN, address=nodes[0].address).wait())
        yield nodes[0], nodes[1]
    finally:
        for node in reversed(nodes):
            node.end()


@pytest.fixture(autouse=True)
def member(monkeypatch: pytest.MonkeyPatch) -> None:
    """What every process here needs to join: the token, and the address of loopback."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("RAY_ADDRESS", "")  # as unset; a run in this process sets it


def namespaces() -> list[str]:
    """The start of a command that sees mounts of its own; [] where the system has none for us."""
    flags = "-m" if os.getuid() == 0 else "-rm"
    command = ["unshare", flags, "sh", "-c"]
    if shutil.which("unshare") is None:
        return []
    tried = subprocess.run([*command, "mount -t tmpfs none /mnt"], capture_output=True, check=False)
    return command if tried.returncode == 0 else []


def test_a_wrong_address_or_token_is_refused(
    mini: Path, cluster: tuple[RayNode, RayNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mini / "nowhere"
    settings = ["--set", f"run-folder={folder}"]
    code, _, err = command("run", mini / "mini.toml", "--ray", "127.0.0.1:1", *settings, cwd=mini)
    assert code == 1 and "no Ray cluster answers at 127.0.0.1:1" in err[-1]
    assert not folder.exists()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "ab" * 32)
    with pytest.raises(ClusterError, match="asks for another token"):
        check_cluster(load_config(mini / "mini.toml"), cluster[0].address)


def test_a_machine_with_other_code_or_another_disk_is_named(
    mini: Path, tmp_path: Path, cluster: tuple[RayNode, RayNode]
) -> None:
    inside = namespaces()
    if not inside:
        pytest.skip("no mount namespaces here: another machine's disk cannot be played")
    config, code = load_config(mini / "mini.toml"), Path(privsyn_flower.__file__)
    cache = Path(config.cache)
    cache.mkdir(exist_ok=True)
    other = tmp_path / code.name
    other.write_bytes(code.read_bytes() + b"# older\n")
    address = cluster[0].address
    places = [str(other), str(code), str(cache)]
    third = RayNode(TOKEN, address=address, inside=[*inside, ELSEWHERE, "sh", *places])
    try:
        third.wait()
        with pytest.raises(ClusterError) as error:
            check_cluster(config, address)
    finally:
        third.end()
    lines = str(error.value).splitlines()
    assert len({line.partition("Ray node ")[2].partition(": ")[0] for line in lines}) == 1
    assert "code of privsyn-flower" in lines[0]
    assert f"cache = {cache} is not the folder of this name here" in lines[1]
    assert list(cache.glob(".ray-check-*")) == []


def test_plain_flwr_run_with_rays_address(
    mini: Path,
    tmp_path: Path,
    cluster: tuple[RayNode, RayNode],
    flower_environment: dict[str, str],
) -> None:
    config, folder = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(f'run-folder = "{folder}"\n' + (mini / "mini.toml").read_text())
    command = ["flwr", "run", str(ROOT / "app"), "--stream", "--run-config", str(config)]
    command += ["--federation-config", "num-supernodes=3 client-resources-num-cpus=1"]
    environment = flower_environment | {"RAY_ADDRESS": cluster[0].address}
    for _ in range(2):  # a simulation that a busy machine kept waiting for Ray ends with code 700
        result = flwr(command, environment, tmp_path)
        log = result.stdout + result.stderr
        if "exit-codes/700" not in log:
            break
        print(log, (tmp_path / "superlink.log").read_text())
    assert result.returncode == 0, log
    assert f"privsyn INFO Ray cluster at {cluster[0].address}: 2 nodes with 4 CPUs" in log
    assert "privsyn INFO rounds 2/2" in log and (folder / "report.html").exists()
    assert f"privsyn INFO result: {folder}\n" in log and "privsyn INFO verdict: " in log
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 2 and summary["synthetic_samples"] > 0


def test_a_machine_that_is_lost_in_mid_round_costs_no_release(
    mini: Path, cluster: tuple[RayNode, RayNode]
) -> None:
    head, worker = cluster
    folder, rounds = mini / "lost", 8
    settings = [f"run-folder={folder}", "nodes=4", f"rounds={rounds}"]  # each round needs all four
    chosen = [part for setting in settings for part in ("--set", setting)]
    process = privsyn("run", mini / "long.toml", "--ray", head.address, *chosen, cwd=mini)
    wait_for(folder / "run.log", process, "round 3: nodes 1/4")
    assert any(b"ClientAppActor" in _command(pid) for pid in worker.processes())
    worker.kill()
    code, out, err = finish(process)
    assert code == 0, "\n".join(err)
    assert out[-1] == str(folder)
    assert any("lost workers in mid-round" in line for line in err)
    assert any(f"{head.address}: 1 node with 2 CPUs" in line for line in err)
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in metrics] == list(range(1, rounds + 1))
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    kinds = {kind: [row["id"] for row in rows if row["kind"] == kind] for kind in
             ("reserve", "sent", "commit", "void")}  # fmt: skip
    assert len(kinds["commit"]) == rounds, "every round was released once"
    failed = set(kinds["reserve"]) - set(kinds["commit"])
    assert failed, "the attempt that lost its workers"
    assert failed - set(kinds["void"]) == failed & set(kinds["sent"]), "charged if it could be seen"
    assert json.loads((folder / "summary.json").read_text())["ended_early"] is None
    assert left_running(str(folder)) == []


def _command(pid: int) -> bytes:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""
