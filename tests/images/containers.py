"""The manifests' containers, started by podman, or by bubblewrap in an image's root file system.

Both are as closed as on a cluster: nothing to write but volumes and /tmp, no capability, and of
the network what this process has (`make image-test` leaves it loopback).
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

USER = 10001  # the images' account
RUNTIMES = ([], ["--runtime", "runc"])  # crun refuses some machines' cgroups
LIMITS = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]  # Podman's may be too high
CLOSED = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]


class Container(NamedTuple):
    """What a manifest says of a container, and the folders here that are its volumes."""

    spec: Mapping[str, Any]
    volumes: Mapping[str, Path]

    def command(self, other: tuple[str, ...]) -> list[str]:
        """The manifest's own, or another one."""
        return list(other or (*self.spec["command"], *self.spec.get("args", ())))

    def environment(self) -> list[tuple[str, str]]:
        """What the manifest sets beside the image's own."""
        return [(row["name"], row["value"]) for row in self.spec.get("env", ())]

    def mounts(self) -> list[tuple[Path, str, bool]]:
        """(folder or file here, its place inside, whether it is read only)."""
        rows = [m for m in self.spec["volumeMounts"] if m["name"] in self.volumes]
        places = [(self.volumes[m["name"]] / m.get("subPath", ""), m) for m in rows]
        return [(here, m["mountPath"], m.get("readOnly", False)) for here, m in places]


def podman(*arguments: str) -> str:
    """What podman printed. Raises CalledProcessError, and OSError where there is no podman."""
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@functools.cache
def podman_run() -> list[str]:
    """How podman starts containers here. Raises OSError with its reason where it cannot."""
    for runtime in RUNTIMES:
        run = ["podman", *runtime, "run", "--rm", "--pull", "never", "--network", "host"]
        run += [*CLOSED, *LIMITS]
        tried = [*run, "--entrypoint", "true", podman("images", "--quiet").splitlines()[0]]
        done = subprocess.run(tried, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return run
    raise OSError(done.stderr.strip())


def by_podman(of: Container, *other: str) -> list[str]:
    """The command that starts a container, or another command in it."""
    first, *rest = of.command(other)
    command = [*podman_run(), "--entrypoint", first]
    for name, value in of.environment():
        command += ["--env", f"{name}={value}"]
    for here, place, read_only in of.mounts():
        command += ["--volume", f"{here}:{place}{':ro' if read_only else ''}"]
    return [*command, of.spec["image"], *rest]


@functools.cache
def root_of(image: str) -> Path:
    """Where an image's files can be read, without a copy."""
    return Path(podman("image", "mount", image))


def settings_of(image: str) -> dict[str, Any]:
    """Its account, environment and working directory."""
    settings: dict[str, Any] = json.loads(podman("image", "inspect", image))[0]["Config"]
    return settings


def by_namespace(of: Container, *other: str) -> list[str]:
    """As by_podman, in namespaces around the image's files. Raises OSError without bubblewrap."""
    if shutil.which("bwrap") is None:
        raise OSError("no bwrap: it is in Debian's package bubblewrap")
    settings = settings_of(of.spec["image"])
    command = ["bwrap", "--unshare-all", "--share-net", "--die-with-parent", "--clearenv"]
    command += ["--uid", str(USER), "--gid", str(USER)]
    command += ["--ro-bind", str(root_of(of.spec["image"])), "/"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    command += ["--tmpfs", "/etc/privsyn"]  # places of volumes are made in it
    for here, place, read_only in of.mounts():
        command += ["--ro-bind" if read_only else "--bind", str(here), place]
    for name, value in [line.partition("=")[::2] for line in settings["Env"]] + of.environment():
        command += ["--setenv", name, value]
    return [*command, "--chdir", settings["WorkingDir"], *of.command(other)]


# How a container is started, and whose its volumes must be here.
STARTERS = {"podman": (by_podman, USER), "namespace": (by_namespace, os.getuid())}
