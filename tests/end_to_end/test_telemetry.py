"""Every kind of process, in miniature, where nothing leaves: no library looks up a name, calls
anybody beyond loopback, or writes where nothing of ours is kept."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from privsyn_flower import NO_TELEMETRY
from privsyn_flower.app.cli.ending import NOT_USABLE
from privsyn_flower.app.local.simulation import NO_CLOUD_METADATA
from tests.end_to_end.conftest import RAY
from tests.end_to_end.sealed import Seen, impossible, sealed
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # pytest finds the fixture by name

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
EMBEDDER = "minilm-int8"  # by ONNX Runtime
HOME, RUNS = "/sealed/home", "/sealed/runs"
CACHE, DATA = f"{HOME}/.cache/privsyn-flower/", f"{HOME}/.local/share/privsyn-flower/"

# Votes by ONNX Runtime, alignment by TRL, a language model's text, every tracker.
SIMULATION = """
method = "popri"
trackers = "tensorboard,mlflow,wandb"
{mini}
[popri]
prompts = 4
responses = 3
examples = 1
rejected-rank = 3
learning-rate = 1e-3
epochs = 1
batch-size = 6
lora-rank = 2
"""
TRAINING = """
method = "dp-fedavg"
aggregation = "plain"
{mini}
[training]
parameters = "layers"
layers = "*norm*"
max-steps = 1
batch-size = 4
clip-norm = 0.5
public-steps = 0
"""


FIGURE = "from privsyn_flower.evaluation.drawing import pyplot; pyplot().figure()"
CREATE = """
import json, sys
from pathlib import Path
from privsyn_flower.app.local.federation import create
folder, users, config = map(Path, sys.argv[1:])
create(folder, [users], nodes=3, node_config=json.loads(config.read_text()))
"""
ANSWERS = """
from urllib.request import urlopen
urlopen("http://127.0.0.1:39091/health", timeout=2)
"""
POLICY = """
min-noise-multiplier = 2.0
queries = ["votes", "update", "evaluation"]
aggregation = ["secure", "plain"]
"""


@pytest.fixture(scope="module", autouse=True)
def allowed() -> None:
    if why := impossible():
        pytest.skip(f"no world can be sealed here: {why}")


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """A new account's, who has set nothing; its home is empty."""
    binaries = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return {
        "PATH": binaries,
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
        **RAY,
    }


def test_the_sealed_world_sees_what_leaves(tmp_path: Path, environment: dict[str, str]) -> None:
    code = """
import pathlib, socket, tempfile
for address in ("198.51.100.7", "2001:db8::7"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    socket.socket(family, socket.SOCK_DGRAM).sendto(b"hello", (address, 4318))
try:
    socket.create_connection(("telemetry.example.org", 443), timeout=5)
except OSError:
    pathlib.Path.home().joinpath("device-id").write_text("1")
"""
    command = f"mkdir -p {HOME} && {sys.executable} -c '{code}'"
    seen = sealed(tmp_path, [[command]], environment, 60)
    assert seen.codes == [0], seen.output
    assert seen.lookups == ["telemetry.example.org"]
    assert seen.calls == ["198.51.100.7:4318", "2001:db8::7:4318"]
    assert seen.files == [f"{HOME}/device-id"]


@pytest.fixture(scope="module")
def configurations(
    mini: Path,
    causal_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with popri.toml, votes.toml and training.toml, and the app `tabular`."""
    folder = tmp_path_factory.mktemp("telemetry")
    changes = {
        "rounds = 2": "rounds = 1\nstage-timeout = 600.0\nround-timeout = 600.0",
        "simulation-seeded-noise = true": "",
        str(mini / "cache"): CACHE,
        'embedder = "ngram-64"': f'embedder = "{EMBEDDER}"\n{{models}}',
        "samples = 0": "samples = 6\nmin-words = 1\nmax-tokens = 16",
    }
    text = (mini / "mini.toml").read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    models = f'generator = "{causal_folder}"\ndownstream = "{causal_folder}"'
    common, rest = text.replace("{models}", models).split("[pretext]")
    deployed = common.replace(f'path = "{mini / "users.jsonl"}"', 'path = ""')
    deployed = deployed.replace("users = 40", "users = 60")
    deployed = deployed.replace("rounds = 1", "rounds = 1\nnoise-multiplier = 2.0")
    (folder / "policy.toml").write_text(POLICY)
    node = {"embedder": EMBEDDER, "device": "auto", "downstream": str(causal_folder)}
    (folder / "node.json").write_text(json.dumps({**node, "policy": f"{folder}/policy.toml"}))
    expand = "[expand]" + rest.split("[expand]")[1]
    (folder / "popri.toml").write_text(SIMULATION.format(mini=common) + expand)
    (folder / "votes.toml").write_text(f'aggregation = "plain"\n{deployed}[pretext]{rest}')
    (folder / "training.toml").write_text(TRAINING.format(mini=deployed))
    shutil.copytree(ROOT / "examples" / "private-drop-in" / "after", folder / "tabular")
    return folder


@pytest.fixture(scope="module")
def seen(
    mini: Path,
    configurations: Path,
    tmp_path_factory: pytest.TempPathFactory,
    environment: dict[str, str],
) -> Seen:
    """Of a simulation, devices that vote and train, a drop-in app, and the commands."""
    users, federation, run = mini / "users.jsonl", f"{RUNS}/federation", f"{RUNS}/popri"
    home = f"mkdir -p {HOME} {RUNS}"
    unusable = f"test $? = {NOT_USABLE}"  # what a generator writes that has learned nothing
    simulated = [
        home,
        f"privsyn run {configurations}/popri.toml --set run-folder={run} || {unusable}",
        f"privsyn report {run} --html {RUNS}/report.html",
        f"privsyn publish {run} {RUNS}/published --license cc0-1.0",
        f"privsyn data check {users}",
        f"privsyn plan {configurations}/votes.toml",
        f"{sys.executable} -c '{FIGURE}'",
    ]
    # As docs/flwr-run.md says for Flower's own command.
    plain = {**NO_TELEMETRY, **NO_CLOUD_METADATA, "FLWR_HOME": f"{RUNS}/flower"}
    plain |= {"RAY_TMPDIR": f"{RUNS}/ray"}
    variables = " ".join(f"{name}={value}" for name, value in plain.items())
    deployed = [
        home,
        f"{sys.executable} -c '{CREATE}' {federation} {users} {configurations}/node.json",
        f"privsyn federation start {federation}",
        *(
            f"privsyn run {configurations}/{kind}.toml --federation {federation} "
            f"--set run-folder={RUNS}/{kind} || {unusable}"
            for kind in ("votes", "training")
        ),
        f"privsyn federation stop {federation}",
        # `flwr run` would wait 15 s for a SuperLink, on a busy machine too little.
        f"env {variables} flower-superlink --insecure --simulation --isolation subprocess "
        f"--host 127.0.0.1 --port 39091 > {RUNS}/superlink.log 2>&1 & "
        f"until {sys.executable} -c '{ANSWERS}' 2> /dev/null; do sleep 1; done; "
        f"env {variables} flwr run {configurations}/tabular --stream "
        "--run-config 'clinics=3 rounds=1' "
        "--federation-config 'num-supernodes=3 client-resources-num-cpus=1'",
    ]
    world = tmp_path_factory.mktemp("world")
    return sealed(world, [simulated, deployed], environment, timeout=3400)


def test_every_kind_of_process_ends_well(seen: Seen) -> None:
    assert set(seen.codes) == {0}, seen.output


def test_nobody_is_looked_up_or_called(seen: Seen) -> None:
    assert (seen.lookups, seen.calls) == ([], [])


def test_nothing_is_written_but_runs_caches_and_data(seen: Seen) -> None:
    homes = (CACHE, DATA, f"{RUNS}/", f"{HOME}/privsyn-runs/", f"{HOME}/.cache/uv/")
    others = [file for file in seen.files if not file.startswith(homes)]
    assert [file for file in others if not re.fullmatch(r"/tmp/uv-[0-9a-f]+\.lock", file)] == []
