"""deploy/: manifests that are valid, closed and name what is really there, and a Dockerfile."""

from __future__ import annotations

import http.server
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import yaml
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

from privsyn_flower import __version__
from privsyn_flower.app.local.layout import AUTHORITY, CERTIFICATE, KEY, write_certificates
from privsyn_flower.app.local.loopback_guard import COMMANDS
from privsyn_flower.app.local.processes import free_port
from privsyn_flower.client_apps.node.device import NODE_KEYS
from privsyn_flower.client_apps.node.policy import load_policy
from privsyn_flower.common.files import ledger_folder, node_home

DEPLOY = Path(__file__).parent.parent / "deploy"
FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
ALL = [doc for file in FILES for doc in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
DEBIAN = "docker.io/library/debian:bookworm-slim"  # the Makefile makes it where no registry is
NGINX = shutil.which("nginx")


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in ALL if d["kind"] == kind and d["metadata"]["name"] == name]
    return dict(found)


def pods() -> list[dict[str, Any]]:
    return [doc["spec"]["template"]["spec"] for doc in ALL if "template" in doc.get("spec", {})]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


SUPERLINK, PROXY = named("Deployment", "superlink")["spec"]["template"]["spec"]["containers"]
(SUPERNODE,) = named("StatefulSet", "supernode")["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("version", ["1.29", kubernetes_validate.latest_version()])
def test_manifests_are_valid(version: str) -> None:
    for doc in ALL:
        kubernetes_validate.validate(doc, version, strict=True)
    broken = {**named("Service", "superlink"), "spec": {"port": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_every_container_is_restricted_and_bounded() -> None:
    assert {len(containers(pod)) for pod in pods()} == {2}
    for pod in pods():
        context = pod["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not any("hostPath" in volume for volume in pod["volumes"])
        for one in containers(pod):
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert one["resources"]["requests"]["memory"] and one["resources"]["limits"]["memory"]
            assert not one["image"].endswith(":latest") and ":" in one["image"]
        for one in pod["containers"]:
            assert "livenessProbe" in one and ({"startupProbe", "readinessProbe"} & set(one))


def test_only_the_proxy_listens_and_only_nodes_reach_it() -> None:
    assert [one for pod in pods() for one in containers(pod) if "ports" in one] == [PROXY]
    (port,) = {p["containerPort"] for p in PROXY["ports"]}
    hosts = [shlex.join(one["args"]) for one in (SUPERLINK, SUPERNODE)]
    assert all("--host 127.0.0.1" in words for words in hosts)
    policies = [doc["spec"] for doc in ALL if doc["kind"] == "NetworkPolicy"]
    everybody = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert policies[0] == everybody  # nothing is allowed but by those below
    (allowed,) = [policy for policy in policies if policy.get("ingress")]
    assert allowed["podSelector"]["matchLabels"] == {"app": "superlink"}
    ((rule),) = allowed["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app": "supernode"}}}]
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]
    (service,) = named("Service", "superlink")["spec"]["ports"]
    assert service["port"] == port and service["targetPort"] == PROXY["ports"][0]["name"]
    address = SUPERNODE["args"][SUPERNODE["args"].index("--superlink") + 1]
    assert address == f"superlink.privsyn.svc:{port}"


def test_a_nodes_state_survives_and_its_data_is_read_only() -> None:
    spec = named("StatefulSet", "supernode")["spec"]
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert claims == {"state", "data"}
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    mounts = {one["name"]: one for one in SUPERNODE["volumeMounts"]}
    assert mounts["data"]["readOnly"] and not mounts["state"].get("readOnly")
    node = tomllib.loads(named("ConfigMap", "supernode")["data"]["node.toml"])
    assert set(node) <= NODE_KEYS
    state, data = mounts["state"]["mountPath"], mounts["data"]["mountPath"]
    assert PurePosixPath(node["cache"]).is_relative_to(state)
    assert PurePosixPath(node["data"]).is_relative_to(data)
    assert named("Deployment", "superlink")["spec"]["strategy"] == {"type": "Recreate"}


def test_the_nodes_policy_is_one(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(named("ConfigMap", "supernode")["data"]["policy.toml"])
    policy = load_policy(path)
    assert [str(mode) for mode in policy.aggregation] == ["secure"]
    # A node reads it for each query, and a mount by subPath would never change.
    node = tomllib.loads(named("ConfigMap", "supernode")["data"]["node.toml"])
    (config,) = [one for one in SUPERNODE["volumeMounts"] if one["name"] == "config"]
    assert node["policy"] == f"{config['mountPath']}/policy.toml" and "subPath" not in config


def test_paths_of_the_commands_are_mounted() -> None:
    for pod in pods():
        volumes = {volume["name"] for volume in pod["volumes"]} | {"state", "data"}
        for one in containers(pod):
            mounts = one["volumeMounts"]
            assert {mount["name"] for mount in mounts} <= volumes
            words = shlex.join([*one["command"], *one.get("args", [])])
            for path in re.findall(r"/(?:etc|var|data)[\w./-]*", words):
                assert any(
                    PurePosixPath(path).is_relative_to(mount["mountPath"]) for mount in mounts
                ), path


@pytest.mark.parametrize("one", [SUPERLINK, SUPERNODE], ids=lambda one: one["name"])
def test_the_flags_are_flowers(one: dict[str, Any]) -> None:
    """Each flag is one of the installed Flower's, with or without a value as it wants."""
    *start, command = one["command"]
    assert start == ["python", "-P", "-m", "privsyn_flower.app.local.loopback_guard"]
    assert command in COMMANDS
    program = Path(sys.executable).parent / command
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    usage = re.sub(r"\s+", " ", text.split("options:")[0])
    words = one["args"]
    assert words
    for at, word in enumerate(words):
        if word.startswith("--"):
            value = at + 1 < len(words) and not words[at + 1].startswith("--")
            found = re.search(rf"[\[|] ?{re.escape(word)}( [A-Z{{][^\]|]*)?[ \]|]", usage)
            assert found, f"{command} has no {word}"
            assert bool(found[1] and found[1].strip()) == value, word
    deprecated = re.findall(
        r"(--[\w-]+) [A-Z_]+\s+(?:This argument is deprecated|Deprecated)", text
    )
    assert deprecated and not set(deprecated) & set(words)


def test_the_first_start_makes_a_key_and_keeps_it(tmp_path: Path) -> None:
    pod = named("StatefulSet", "supernode")["spec"]["template"]["spec"]
    (key,) = pod["initContainers"]
    code = key["command"][-1].replace("/var/lib/privsyn", str(tmp_path))
    command = [sys.executable, *key["command"][1:-1], code]
    first, again = (subprocess.check_output(command, text=True) for _ in range(2))
    assert first == again == (tmp_path / "node-key.pub").read_text()
    assert first.startswith("ecdsa-sha2-nistp384 ")


@pytest.mark.parametrize("one", [SUPERLINK, SUPERNODE], ids=lambda one: one["name"])
def test_a_dead_server_fails_its_probe(one: dict[str, Any], tmp_path: Path) -> None:
    write_certificates(tmp_path)
    port = one["args"][one["args"].index("--port") + 1]
    code = one["startupProbe"]["exec"]["command"][-1]
    assert port in code
    code = code.replace("/etc/privsyn/tls", str(tmp_path)).replace(port, str(free_port()))
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[str]:
    """The manifest's nginx on this machine, before a server that names what it was asked."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    write_certificates(tmp_path)

    class Echo(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.path.encode())

        def log_message(self, *_: Any) -> None:
            pass

    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / CERTIFICATE, tmp_path / KEY)
    upstream.socket = tls.wrap_socket(upstream.socket, server_side=True)
    threading.Thread(target=upstream.serve_forever, args=(0.01,), daemon=True).start()
    port, text = free_port(), named("ConfigMap", "superlink")["data"]["nginx.conf"]
    text = text.replace(" /tmp/", f" {tmp_path}/")
    for old, new in {
        "/etc/privsyn/tls/tls.crt": str(tmp_path / CERTIFICATE),
        "/etc/privsyn/tls/tls.key": str(tmp_path / KEY),
        "/etc/privsyn/tls/ca.crt": str(tmp_path / AUTHORITY),
        "listen 9092": f"listen 127.0.0.1:{port}",
        "127.0.0.1:8000": f"127.0.0.1:{upstream.server_port}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "nginx.conf").write_text(text)
    command = [NGINX, "-e", "stderr", "-c", str(tmp_path / "nginx.conf"), "-g", "daemon off;"]
    process = subprocess.Popen(
        command,
    )
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        upstream.shutdown()
        upstream.server_close()


def test_the_proxy_passes_the_nodes_interface_alone(proxy: str, tmp_path: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(tmp_path / AUTHORITY))

    def ask(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(proxy + path, context=trusted, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        try:
            ask("/health")
            break
        except urllib.error.URLError:
            time.sleep(0.05)
    assert ask("/v1/fleet/pull-messages") == (200, "/v1/fleet/pull-messages")
    assert ask("/health") == (200, "/health")
    inside = ("../control/start-run", "%2e%2e/control/start-run")
    others = ("/v1/control/start-run", "/v1/runtime/x", "/", "/docs")
    for path in (*others, *(f"/v1/fleet/{way}" for way in inside)):
        assert ask(path)[0] in (301, 400, 404), path


def test_the_dockerfile_names_what_is_there() -> None:
    lines = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text()).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    stages = [rest.split(" AS ")[1] for step, rest in steps if step == "FROM"]
    assert {"server", "node"} <= set(stages)
    pyproject = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"]
    seen: set[str] = set()
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for step, rest in steps:
        if step == "FROM":
            base, _, name = rest.partition(" AS ")
            assert base in seen or base in ("scratch", DEBIAN)
            seen.add(name)
        elif step == "COPY" and rest.startswith("--from="):
            assert rest.split()[0].removeprefix("--from=") in seen
        elif step == "COPY":
            for path in rest.split()[:-1]:
                assert (DEPLOY.parent / path).exists() and f"!{path}" in ignored, path
        for names in re.findall(r'"\.\[([\w,-]+)\]"', rest) + re.findall(r"EXTRAS=(\S+)", rest):
            assert set(names.split(",")) <= set(extras)
        assert not (step == "ADD" or "curl" in rest)
    assert f"DEBIAN := {DEBIAN}\n" in (DEPLOY.parent / "Makefile").read_text()
    assert [rest for step, rest in steps if step == "USER"] == ["10001:10001"]
    entries = [
        shlex.split(rest.strip("[]").replace(",", "")) for s, rest in steps if s == "ENTRYPOINT"
    ]
    assert entries == [SUPERLINK["command"], SUPERNODE["command"]]
    images = {
        one["image"] for pod in pods() for one in containers(pod) if "privsyn" in one["image"]
    }
    assert images == {f"privsyn-flower-{role}:{__version__}" for role in ("server", "node")}


def test_the_images_state_is_a_volume_and_a_nodes_folder_lies_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    (volume,) = re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE)
    assert re.findall(r"--home-dir (\S+)", text) == re.findall(r"^WORKDIR (/var\S+)", text, re.M)
    assert f"--home-dir {volume} " in text
    for one in (SUPERLINK, SUPERNODE):
        assert {"name": "HOME", "value": volume} in one["env"]
        assert {"name": "state", "mountPath": volume} in one["volumeMounts"]
    monkeypatch.setenv("HOME", volume)
    monkeypatch.delenv("XDG_DATA_HOME")
    assert node_home().is_relative_to(volume) and ledger_folder().is_relative_to(volume)


def test_a_request_to_the_proxy_is_bounded_within_the_servers_memory() -> None:
    text = named("ConfigMap", "superlink")["data"]["nginx.conf"]
    (bound,) = re.findall(r"client_max_body_size (\d+)m;", text)
    containers = named("Deployment", "superlink")["spec"]["template"]["spec"]["containers"]
    most = max(one["resources"]["limits"]["memory"] for one in containers if "Gi" in str(one))
    memory = int(most.removesuffix("Gi")) * 2**30
    assert FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE < int(bound) * 2**20 <= memory / 8
