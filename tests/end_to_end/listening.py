"""What a run opens on this machine, and what comes of trying each port with and without leave."""

from __future__ import annotations

import http.client
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from tests.strangers import NOBODY, Listener, spoken_to

# One harmless question for each of Ray's servers: the GCS, the raylet's two ports, a worker.
RAY = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetSystemConfig",
    "/ray.rpc.ObjectManagerService/FreeObjects",
    "/ray.rpc.CoreWorkerService/NumPendingTasks",
)
# The next task that waits at a SuperLink or SuperNode, with its token. None does.
TASK = "/v1/runtime/acquire-task"
IN, OUT = {"OK"}, {"refused"}


@dataclass(frozen=True)
class Tried:
    """A listening socket, and what it says to its owner and to a stranger.

    stranger: without Ray's token; at Flower's servers another account, or None where the tests
    are not run by root, who alone can become one.
    """

    listener: Listener
    owner: set[str]
    stranger: set[str] | None


def tried(listener: Listener, authority: Path | None = None) -> Tried:
    """Try one. authority: the certificates of a SuperLink with TLS."""
    if "flower-super" not in listener.command:
        return Tried(listener, _ray_says(listener, _token(listener)), _ray_says(listener, ""))
    tls = "flower-superlink" in listener.command and authority is not None
    trusted = ssl.create_default_context(cafile=str(authority)) if tls else None
    stranger = None
    if os.getuid() == 0:
        stranger = _word(spoken_to(listener.port, TASK, account=NOBODY, trusted=trusted))
    return Tried(listener, _word(spoken_to(listener.port, TASK, trusted=trusted)), stranger)


def _word(answer: bytes) -> set[str]:
    return OUT if not answer else IN if answer.startswith(b"HTTP/1.1 200") else {str(answer)}


def _token(listener: Listener) -> str:
    """The token of the Ray that this process belongs to; only its own account can read it.

    Some of Ray's processes write their title over their environment: then a parent's has it.
    """
    pid = listener.pid
    while pid > 1:
        place = Path("/proc") / str(pid)
        for line in (place / "environ").read_bytes().split(b"\0"):
            name, _, value = line.partition(b"=")
            if name == b"RAY_AUTH_TOKEN" and len(value) == 64:
                return value.decode()
        pid = int((place / "stat").read_bytes().rpartition(b") ")[2].split()[1])
    return ""


def _ray_says(listener: Listener, token: str) -> set[str]:
    header = [("authorization", f"Bearer {token}")] if token else []
    if "RuntimeEnvAgent" in listener.command:
        return _agent_says(listener, dict(header))
    found = set()
    for question in RAY:
        with grpc.insecure_channel(f"{listener.reachable}:{listener.port}") as channel:
            try:
                # A process of Ray's may listen before it answers: then the question waits.
                channel.unary_unary(question)(b"", timeout=10, metadata=header, wait_for_ready=True)
                found.add("OK")
            except grpc.RpcError as error:
                code = error.code().name
                found.add("refused" if code == "UNAUTHENTICATED" else code)
    return found - {"UNIMPLEMENTED"}  # asked of another kind of server


def _agent_says(listener: Listener, headers: dict[str, str]) -> set[str]:
    connection = http.client.HTTPConnection(listener.reachable, listener.port, timeout=10)
    connection.request("POST", "/get_or_create_runtime_env", b"", headers)
    status = connection.getresponse().status
    connection.close()
    return {200: IN, 401: OUT}.get(status, {str(status)})
