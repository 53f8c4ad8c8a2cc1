"""What is built and where it is tested: the wheel's files, the workflow's versions and rights."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path

import yaml

from scripts.check_wheel import differences, package_files

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def test_the_workflow_tests_the_versions_that_we_name() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]
    matrix = jobs["make"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [c.rpartition(" ")[2] for c in project["classifiers"] if ":: Python :: 3." in c]
    assert matrix["python"] == named
    assert project["requires-python"] == f">={named[0]}"
    assert {row["python"] for row in matrix["include"]} <= set(named)


def test_a_device_installs_nothing_that_is_the_servers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = [re.split(r"[<>=\[]", wanted)[0] for wanted in project["dependencies"]]
    assert sorted(names) == [
        "cryptography",
        "flwr",
        "numpy",
        "pydantic",
        "rich",
        "safetensors",
        "typer",
    ]
    extras = project["optional-dependencies"]
    assert extras["edge"] == ["onnxruntime>=1.24", "tokenizers>=0.21"]
    tested = {line.partition("==")[0].lower() for line in CONSTRAINTS.read_text().splitlines()}
    known = {
        re.split(r"[<>=\[]", wanted)[0].lower() for extra in extras.values() for wanted in extra
    }
    assert known - {"privsyn-flower", "pre-commit", "import-linter"} <= tested


def test_the_workflow_may_only_read_and_pins_its_actions() -> None:
    text = WORKFLOW.read_text("utf-8")
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert "secrets." not in text
    used = re.findall(r"uses: (.+)", text)
    assert used and all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)


def write_wheel(path: Path, names: set[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names | {"privsyn_flower-0.1.0.dist-info/METADATA"}:
            archive.writestr(name, "")
    return path


def test_a_wheel_without_data_files_is_seen(tmp_path: Path) -> None:
    held = package_files(ROOT)
    data = {"privsyn_flower/py.typed", "privsyn_flower/privacy/coefficients/blt.json"}
    data |= {f"privsyn_flower/assets/{m}/model.safetensors" for m in ("downstream", "infiller")}
    assert data < held
    assert differences(write_wheel(tmp_path / "whole.whl", held)) == []
    found = differences(write_wheel(tmp_path / "code.whl", held - data | {"tests/__init__.py"}))
    assert found == [*(f"lacks {name}" for name in sorted(data)), "has tests/__init__.py"]
