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
    assert {"newest", "oldest-flower"} <= {row["target"] for row in matrix["include"]}


def test_the_newest_versions_are_tried_without_the_tested_ones() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\nnewest:")[2].partition("\n\n")[0]
    recipe = recipe.replace("grep '^torch==' constraints.txt >", "")  # which alone stays
    assert "--upgrade-strategy eager" in recipe and "constraints.txt" not in recipe
    assert "$(VENV)/" not in recipe and "$(BIN)" not in recipe


def test_the_oldest_flower_that_is_tried_is_the_oldest_that_is_allowed() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\noldest-flower:")[2]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (floor,) = (row for row in project["dependencies"] if row.startswith("flwr>="))
    assert re.findall(r'"flwr==(.*?)\.\*"', recipe) == re.findall(r">=(.*?),", floor)


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


RELEASE = WORKFLOW.with_name("release.yml")


def test_a_release_is_tried_before_it_is_published() -> None:
    release = yaml.safe_load(RELEASE.read_text("utf-8"))
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    jobs = release["jobs"]
    assert set(jobs) == {"build", "try", "test", "publish"}
    assert jobs["publish"]["needs"] == ["build", "try", "test"]
    built = [step.get("run", "") for step in jobs["build"]["steps"]]
    # Nothing else runs where the wheel is made, and no index but PyPI's is asked.
    assert [run for run in built if run][1:] == [
        "python -m pip install -c constraints.txt build twine",
        "python -m build",
        "python -m twine check --strict dist/*",
    ]
    assert "INDEX_URL" not in RELEASE.read_text("utf-8")
    tested = [step.get("run", "") for step in jobs["test"]["steps"]]
    assert [run for run in tested if run] == ["make install", "make lint", "make fast"]
    assert any('test "$GITHUB_REF_NAME" = "v$version"' in run for run in built)
    checks = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["make"]["strategy"]["matrix"]
    assert jobs["try"]["strategy"]["matrix"]["python"] == checks["python"]
    assert jobs["try"]["steps"][-1]["run"] == "python scripts/check_wheel.py dist"


def test_only_the_job_that_publishes_may_and_it_runs_none_of_our_code() -> None:
    text = RELEASE.read_text("utf-8")
    release = yaml.safe_load(text)
    assert release["permissions"] == {"contents": "read"} and "secrets." not in text
    rights = {name: job.get("permissions") for name, job in release["jobs"].items()}
    assert rights.pop("publish") == {"id-token": "write"} and not any(rights.values())
    publish = release["jobs"]["publish"]
    assert publish["environment"]["name"] == "pypi"
    names = [step["uses"].partition("@")[0] for step in publish["steps"]]
    assert names == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert not any("run" in step for step in publish["steps"])


def test_the_release_pins_its_actions_to_commits() -> None:
    used = re.findall(r"uses: (.+)", RELEASE.read_text("utf-8"))
    pinned = re.compile(
        r"(actions/[a-z-]+|pypa/gh-action-pypi-publish)@[0-9a-f]{40} # v\d+\.\d+\.\d+"
    )
    assert len(used) == 10 and all(pinned.fullmatch(action) for action in used)
    commits = {action.partition("@")[0]: action for action in used}
    assert set(used) == set(commits.values())  # one commit of each


def test_the_wheel_is_checked_as_the_index_does() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    recipe = makefile.partition("\nwheel:")[2].partition("\n\n")[0]
    steps = [line.partition("$(BIN)/python ")[2] for line in recipe.splitlines()[2:]]
    assert steps == [
        "-m build",
        "-m twine check --strict dist/*",
        "scripts/check_wheel.py dist",
    ]
    matrix = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["make"]["strategy"]["matrix"]
    assert {"wheel", "hub"} <= {row["target"] for row in matrix["include"]}


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
