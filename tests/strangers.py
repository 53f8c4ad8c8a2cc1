"""What listens, and another account that tries it."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  (a stranger may be unable to read Python's own files)
import ipaddress
import os
import socket
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path

NOBODY = 65534


@dataclass(frozen=True)
class Listener:
    """A TCP socket that listens, or a UDP socket, and the process that holds it."""

    pid: int
    kind: str
    address: str
    port: int
    command: str

    @property
    def reachable(self) -> str:
        """Where this machine connects to it."""
        return "127.0.0.1" if self.address in ("0.0.0.0", "::") or self.loopback else self.address

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        ip = ipaddress.ip_address(self.address)
        inner = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
        return (inner or ip).is_loopback


def descendants(pid: int) -> set[int]:
    """A process and all that came from it and still has it for an ancestor."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            rest = (entry / "stat").read_bytes().rpartition(b") ")[2].split()
            parents[int(entry.name)] = int(rest[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listeners(pids: set[int]) -> list[Listener]:
    """Every socket of these processes that waits for others, from /proc alone."""
    known = _waiting()
    found = []
    for pid in pids:
        entry = Path("/proc") / str(pid)
        with contextlib.suppress(OSError):
            command = (
                (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            )
            for descriptor in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    inode = str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]")
                    if inode in known:
                        found.append(Listener(pid, *known[inode], command))
    return found


def _waiting() -> dict[str, tuple[str, str, int]]:
    """Inode -> (kind, address, port) of everything on this machine that waits."""
    found = {}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in (Path("/proc/net") / kind).read_text().splitlines()[1:]:
            fields = line.split()
            if kind.startswith("tcp") and fields[3] != "0A":
                continue
            number, port = fields[1].split(":")
            words = [int(number[at : at + 8], 16) for at in range(0, len(number), 8)]
            family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
            address = socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
            found[fields[9]] = (kind, address, int(port, 16))
    return found


def spoken_to(
    port: int,
    path: str = "/",
    *,
    account: int | None = None,
    trusted: ssl.SSLContext | None = None,
) -> bytes:
    """What an HTTP server answers to a POST of nothing, as another account if one is named.

    b"": it hung up. Only root can become another account. trusted: for a server with TLS.
    """
    if account is None:
        return _post(port, path, trusted)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:  # nothing but sockets from here on: the parent has threads
        answer = b"not tried"
        try:
            os.setgroups([])
            os.setgid(account)
            os.setuid(account)
            answer = _post(port, path, trusted)
        except BaseException as error:
            answer = repr(error).encode()
        finally:
            os.write(theirs, answer)
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def _post(port: int, path: str, trusted: ssl.SSLContext | None) -> bytes:
    request = f"POST {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
    request += "Content-Type: application/protobuf\r\nContent-Length: 0\r\n\r\n"
    with socket.socket() as plain:
        plain.settimeout(10)
        plain.connect(("127.0.0.1", port))
        try:
            client = trusted.wrap_socket(plain, server_hostname="127.0.0.1") if trusted else plain
            client.sendall(request.encode())
            return b"".join(iter(lambda: client.recv(4096), b""))
        except (ConnectionError, ssl.SSLEOFError):
            return b""
