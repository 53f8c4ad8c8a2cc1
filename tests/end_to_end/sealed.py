"""Commands in a world that nothing leaves: what they look up, whom they call, what they write.

`sealed` starts this file in namespaces of its own, which only root may make. There the one way out
is a TUN device, whose other end is read here, so that native code is seen too; the only resolver is
ours; and the machine's files lie under an overlay, whose upper layer is what was written.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TUN = Path("/dev/net/tun")
SET_INTERFACE, PLAIN_PACKETS = 0x400454CA, 0x1001  # TUNSETIFF; IFF_TUN | IFF_NO_PI
KERNELS_OWN = {0, 2, 58}  # protocols: hop-by-hop options, IGMP, ICMPv6
NETWORK = """
link set lo up
link set out0 addrgenmode none
addr add 10.9.0.1/24 dev out0
addr add fd09::1/64 dev out0 nodad
link set out0 up
route add default dev out0
-6 route add default dev out0
"""
TOO_LATE = 124
NAMESPACES = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]


@dataclass(frozen=True)
class Seen:
    """What came of the commands: their exit codes and output, and all that they tried.

    lookups: names; calls: "address:port", each once; files: written, changed or left, but for
    compiled Python, with folders that are empty.
    """

    codes: list[int]
    seconds: list[float]
    output: str
    lookups: list[str]
    calls: list[str]
    files: list[str]


def impossible() -> str:
    """Why no world can be sealed here; "" where it can."""
    if os.getuid() != 0 or not TUN.exists():
        return "namespaces with a TUN device are for root"
    done = subprocess.run([*NAMESPACES, "ip", "link"], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def sealed(
    folder: Path, lanes: Sequence[Sequence[str]], environment: Mapping[str, str], timeout: float
) -> Seen:
    """Run shell commands, those of a lane one after the other, the lanes at once.

    folder: empty, where the world is made; gone from sight with it. timeout: seconds for all; a
    command that is not done by then has the code TOO_LATE.
    """
    command = [*NAMESPACES, sys.executable, __file__]
    task = json.dumps([str(folder), lanes, dict(environment), timeout])
    done = subprocess.run(command, input=task, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Seen(**json.loads(done.stdout))


def main() -> None:
    """Inside: read the task from stdin, write what was seen to stdout."""
    folder, lanes, environment, timeout = json.loads(sys.stdin.read())
    deadline = time.monotonic() + timeout
    calls, lookups = _watch_network()
    upper, root = _overlay(Path(folder))
    chroot = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin") or "chroot"
    done: list[list[tuple[int, float, str]]] = [[] for _ in lanes]

    def follow(lane: list[str], results: list[tuple[int, float, str]]) -> None:
        for command in lane:
            began = time.monotonic()
            shell = [chroot, str(root), "/bin/bash", "-c", command]
            with tempfile.TemporaryFile("w+") as said:
                running = subprocess.Popen(
                    shell, env=environment, stdout=said, stderr=said, start_new_session=True
                )
                try:
                    code = running.wait(max(0.0, deadline - began))
                except subprocess.TimeoutExpired:
                    os.killpg(running.pid, signal.SIGKILL)
                    code = TOO_LATE
                said.seek(0)
                output = f"$ {command}\n{said.read()[-8000:]}\n"
            results.append((code, round(time.monotonic() - began, 1), output))

    threads = [threading.Thread(target=follow, args=pair) for pair in zip(lanes, done, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results = [result for lane in done for result in lane]
    seen = {
        "codes": [code for code, _, _ in results],
        "seconds": [seconds for _, seconds, _ in results],
        "output": "".join(output for _, _, output in results),
        "lookups": sorted(lookups),
        "calls": sorted(calls),
        "files": [*_left(upper), *_left(root / "dev/shm", "/dev/shm")],
    }
    print(json.dumps(seen))


def _watch_network() -> tuple[set[str], set[str]]:
    """Sets that fill with whom anybody calls, and with the names that anybody looks up."""
    device = os.open(TUN, os.O_RDWR)
    fcntl.ioctl(device, SET_INTERFACE, struct.pack("16sH22x", b"out0", PLAIN_PACKETS))
    for line in NETWORK.split("\n"):
        if line:
            subprocess.run(["ip", *line.split()], check=True)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    calls: set[str] = set()
    lookups: set[str] = set()

    def read_packets() -> None:
        while packet := os.read(device, 65536):
            six = packet[0] >> 4 == 6
            protocol, start, end = (packet[6], 24, 40) if six else (packet[9], 16, 20)
            header = 40 if six else 4 * (packet[0] & 15)
            if protocol not in KERNELS_OWN:
                address = ipaddress.ip_address(packet[start:end])
                port = int.from_bytes(packet[header + 2 : header + 4], "big")
                calls.add(f"{address}:{port}")

    def answer_names() -> None:
        while True:
            query, asker = server.recvfrom(4096)
            labels, place = [], 12
            while length := query[place]:
                labels.append(query[place + 1 : place + 1 + length].decode("ascii", "replace"))
                place += 1 + length
            lookups.add(".".join(labels))
            # No such name: the head with that code, and the question.
            server.sendto(query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12:], asker)

    for target in (read_packets, answer_names):
        threading.Thread(target=target, daemon=True).start()
    return calls, lookups


def _overlay(folder: Path) -> tuple[Path, Path]:
    """The upper layer, and the root of the machine's files below it."""
    _mount("-t", "tmpfs", "tmpfs", folder)
    upper, work, root = (folder / name for name in ("upper", "work", "root"))
    for path in (upper / "etc", work, root):
        path.mkdir(parents=True)
    (upper / "etc" / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    _mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root)
    _mount("-t", "proc", "proc", root / "proc")
    for name in ("dev", "sys"):
        _mount("--rbind", f"/{name}", root / name)
    _mount("-t", "tmpfs", "tmpfs", root / "dev" / "shm")
    return upper, root


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def _left(folder: Path, prefix: str = "") -> list[str]:
    found = []
    for place, folders, files in os.walk(folder):
        here = prefix + place.removeprefix(str(folder))
        if not folders and not files and not Path(here or "/").exists():  # not the machine's own
            found.append(f"{here}/")
        found += [f"{here}/{name}" for name in files if not place.endswith("__pycache__")]
    return sorted(set(found) - {"/etc/resolv.conf"})


if __name__ == "__main__":
    main()
