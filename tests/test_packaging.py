"""What is built and where it is tested: the wheel's files, the workflow's versions and rights."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from scripts import secagg_package
from scripts.check_wheel import (
    LARGE,
    MODELS,
    MOST_BYTES,
    differences,
    package_files,
    wanted_files,
)
from scripts.site_versions import add

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
        "click",
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
        "python -m build --outdir dist/privsyn-flower",
        "python -m build --wheel --outdir dist/privsyn-flower-models packages/models",
        "python scripts/secagg_package.py build/secagg",
        "python -m build --outdir dist/privsyn-secagg build/secagg",
        "python -m twine check --strict dist/*/*",
    ]
    assert "INDEX_URL" not in RELEASE.read_text("utf-8")
    tested = [step.get("run", "") for step in jobs["test"]["steps"]]
    assert [run for run in tested if run] == ["make install", "make lint", "make fast"]
    assert any('test "$GITHUB_REF_NAME" = "v$version"' in run for run in built)
    checks = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["make"]["strategy"]["matrix"]
    assert jobs["try"]["strategy"]["matrix"]["python"] == checks["python"]
    assert jobs["try"]["steps"][-1]["run"] == "python -m scripts.check_wheel dist"


def test_only_the_job_that_publishes_may_and_it_runs_none_of_our_code() -> None:
    text = RELEASE.read_text("utf-8")
    release = yaml.safe_load(text)
    assert release["permissions"] == {"contents": "read"} and "secrets." not in text
    rights = {name: job.get("permissions") for name, job in release["jobs"].items()}
    assert rights.pop("publish") == {"id-token": "write"} and not any(rights.values())
    publish = release["jobs"]["publish"]
    packages = publish["strategy"]["matrix"]["package"]
    assert sorted(packages) == sorted(name.replace("_", "-") for name in wanted_files())
    assert publish["environment"]["name"] == "pypi-${{ matrix.package }}"
    assert publish["steps"][-1]["with"] == {"packages-dir": "dist/${{ matrix.package }}/"}
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
        "-m build --outdir dist/privsyn-flower",
        "-m build --wheel --outdir dist/privsyn-flower-models packages/models",
        "scripts/secagg_package.py build/secagg",
        "-m build --outdir dist/privsyn-secagg build/secagg",
        "-m twine check --strict dist/*/*",
        "-m scripts.check_wheel dist",
    ]
    matrix = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["make"]["strategy"]["matrix"]
    assert {"wheel", "hub"} <= {row["target"] for row in matrix["include"]}


def write_wheel(path: Path, names: set[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names | {"privsyn_flower-0.1.0.dist-info/METADATA"}:
            archive.writestr(name, "")
    return path


def test_a_wheel_without_data_files_is_seen(tmp_path: Path) -> None:
    held = wanted_files()["privsyn_flower"]
    data = {"privsyn_flower/py.typed", "privsyn_flower/privacy/coefficients/blt.json"}
    data |= {f"privsyn_flower/assets/{m}/model.safetensors" for m in ("downstream", "infiller")}
    assert data < held
    assert differences(write_wheel(tmp_path / "whole.whl", held), held) == []
    code = write_wheel(tmp_path / "code.whl", held - data | {"tests/__init__.py"})
    lacking = [*(f"lacks {name}" for name in sorted(data)), "has tests/__init__.py"]
    assert differences(code, held) == lacking


def test_a_main_wheel_that_is_too_large_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path / "privsyn_flower-0.1.0-py3-none-any.whl", {"a"})
    assert differences(wheel, {"a"}) == []
    monkeypatch.setattr("scripts.check_wheel.MOST_BYTES", 10)
    assert differences(wheel, {"a"}) == [f"has {wheel.stat().st_size} bytes, at most 10"]


def test_the_larger_models_are_in_one_wheel_of_two() -> None:
    wanted = wanted_files()
    assert wanted["privsyn_flower"] | {
        name.replace("privsyn_flower_models/", "privsyn_flower/assets/")
        for name in wanted["privsyn_flower_models"] - {"privsyn_flower_models/LICENSE"}
    } == package_files(ROOT)
    sizes = {path: (ROOT / path).stat().st_size for path in wanted["privsyn_flower"]}
    assert max(sizes.values()) < 3_000_000 and sum(sizes.values()) < MOST_BYTES
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    models = tomllib.loads((ROOT / "packages" / "models" / "pyproject.toml").read_text("utf-8"))
    forced = models["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert sorted(forced.values()) == sorted(f"{MODELS}/{x}" for x in (*LARGE, "LICENSE"))
    excluded = build["targets"]["wheel"]["exclude"]
    for name in LARGE:
        assert any(fnmatch(f"/privsyn_flower/assets/{name}", pattern) for pattern in excluded)


def test_the_site_has_a_menu_of_its_versions(tmp_path: Path) -> None:
    built, site = tmp_path / "html", tmp_path / "site"
    (built / "_static").mkdir(parents=True)
    (site / "other").mkdir(parents=True)
    for version in ("0.2.0", "0.10.0", "0.9.0", "0.10.0"):  # once more, in place of the same
        (built / "index.html").write_text(version)
        add(built, site, version)
    assert (site / "versions.js").read_text() == 'const VERSIONS = ["0.10.0", "0.9.0", "0.2.0"];\n'
    assert (site / "0.9.0" / "index.html").read_text() == "0.9.0"
    assert "url=0.10.0/index.html" in (site / "index.html").read_text()
    assert '"versions.js"' in (ROOT / "docs" / "conf.py").read_text("utf-8")


@pytest.fixture(scope="module")
def secagg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secagg")
    secagg_package.write(folder)
    return folder


def test_the_secure_sum_alone_imports_three_libraries(secagg: Path) -> None:
    wanted = wanted_files()["privsyn_secagg"]
    files = {p.relative_to(secagg).as_posix() for p in (secagg / "privsyn_secagg").rglob("*.*")}
    assert files == wanted and len(files) < 30
    allowed = sys.stdlib_module_names | {"privsyn_secagg", *secagg_package.LIBRARIES}
    for path in secagg.rglob("*.py"):
        text = path.read_text("utf-8")
        assert "privsyn_flower" not in text
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= allowed, path
    project = tomllib.loads((secagg / "pyproject.toml").read_text("utf-8"))["project"]
    assert sorted(re.split(r"[<>]", row)[0] for row in project["dependencies"]) == sorted(
        secagg_package.LIBRARIES
    )
    assert not re.search(r"\]\([^)#]*\.md", (secagg / "README.md").read_text("utf-8"))


@pytest.mark.slow
def test_the_secure_sum_alone_runs_its_pages_examples(secagg: Path) -> None:
    page, trial = secagg / "README.md", ROOT / "scripts" / "secagg_trial.py"
    alone = os.environ | {"PYTHONPATH": str(secagg)}
    done = subprocess.run(
        [sys.executable, trial, page], env=alone, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "the sum is [8, 0, 4]"
