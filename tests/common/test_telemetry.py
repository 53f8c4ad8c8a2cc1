"""Reports of libraries are off wherever a process of ours begins.

What that stops in real processes: tests/end_to_end/test_telemetry.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from privsyn_flower import NO_TELEMETRY
from privsyn_flower.app.local.simulation import NO_CLOUD_METADATA, flower_environment, private_ray

ROOT = Path(__file__).parents[2]
DEVICES = ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "ORT_DISABLE_TELEMETRY")
STARTERS = (
    "docs/examples/privsyn-node.service",
    "deploy/superlink/privsyn-superlink.service",
    "deploy/Dockerfile",
)
MANIFESTS = ("deploy/kubernetes/superlink.yaml", "deploy/kubernetes/supernode.yaml")


@pytest.mark.parametrize("module", ["privsyn_flower", "privsyn_flower.client_apps"])
def test_importing_the_package_switches_it_off_whatever_was_said(module: str) -> None:
    code = f"import json, os, {module}; print(json.dumps(dict(os.environ)))"
    environment = {**os.environ, **dict.fromkeys(NO_TELEMETRY, "on")}
    found = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert NO_TELEMETRY.items() <= json.loads(found).items()


def test_processes_that_are_started_have_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NO_TELEMETRY:
        monkeypatch.delenv(name, raising=False)
    assert NO_TELEMETRY.items() <= flower_environment(tmp_path, 1).items()
    assert NO_CLOUD_METADATA.items() <= private_ray(tmp_path).items()


def test_files_to_start_devices_and_servers_have_it_off() -> None:
    for name in DEVICES:
        for path in STARTERS:
            assert f"{name}={NO_TELEMETRY[name]}" in (ROOT / path).read_text()
        for path in MANIFESTS:
            row = f'{{name: {name}, value: "{NO_TELEMETRY[name]}"}}'
            assert row in (ROOT / path).read_text()


def test_each_switch_has_a_row() -> None:
    rows = (ROOT / "SECURITY.md").read_text().split("## What libraries would send")[1]
    assert [name for name, value in NO_TELEMETRY.items() if f"`{name}={value}`" not in rows] == []


def test_only_the_metadata_of_clouds_goes_to_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = pytest.importorskip("requests")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in NO_CLOUD_METADATA.items():
        monkeypatch.setenv(name, value)

    def proxy(url: str) -> str | None:
        found: str | None = requests.utils.select_proxy(
            url, requests.utils.get_environ_proxies(url)
        )
        return found

    for host in ("169.254.169.254", "metadata.google.internal"):
        assert proxy(f"http://{host}/computeMetadata/v1") == "http://127.0.0.1:9"
    for url in ("http://10.0.0.5:8000/v1", "https://huggingface.co", "http://127.0.0.1:8000"):
        assert proxy(url) is None
