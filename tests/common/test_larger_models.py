"""Shipped models lie in two packages, and whoever lacks the second is told before work starts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from privsyn_flower.common.python_path import asset
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.readiness import faults
from privsyn_flower.text.tiny.assets import PACKAGE_ASSETS, AssetError, find_asset
from scripts.check_wheel import LARGE


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packages are installed: ours as its wheel has it, without the larger models."""
    assets = tmp_path / "privsyn_flower" / "assets"
    assets.mkdir(parents=True)
    for path in PACKAGE_ASSETS.iterdir():
        if path.name not in LARGE:
            (assets / path.name).symlink_to(path)
    monkeypatch.setattr("privsyn_flower.common.python_path.PACKAGE", assets.parent)
    others = [place for place in sys.path if not (Path(place) / "privsyn_flower").is_dir()]
    monkeypatch.setattr("sys.path", [str(tmp_path), *others])
    return tmp_path


def test_what_the_other_package_has_is_taken_from_there(core: Path) -> None:
    assert asset("small-infiller") is None and asset("minilm") is not None
    models = core / "privsyn_flower_models"
    shutil.copytree(PACKAGE_ASSETS / "small-infiller", models / "small-infiller")
    shipped = find_asset("small-infiller")
    assert shipped is not None and shipped.folder == models / "small-infiller"
    (models / "small-infiller" / "config.json").write_text("{}")  # of another version, say
    with pytest.raises(AssetError, match=r"small-infiller/config\.json .*sha256"):
        find_asset("small-infiller")


def test_who_lacks_it_is_told_before_work_starts(core: Path, tmp_path: Path) -> None:
    def said(**keys: str) -> list[str]:
        named = {f"models.{kind}": name for kind, name in keys.items()}
        config = RunConfig.from_flat({"pretext.variation": "mixed", **named})
        return [line for line in faults(config) if "privsyn-flower-models" in line]

    assert said() == said(generator="tiny", infiller="tiny", embedder="minilm") == []
    lines = said(generator="small", infiller="small", embedder="minilm-int8")
    keys = [line.partition(" is in the package privsyn-flower-models ")[0] for line in lines]
    assert sorted(keys) == [
        "models.embedder = 'minilm-int8'",
        "models.generator = 'small'",
        "models.infiller = 'small'",
    ]
    assert all(line.count("\n") == 0 and "./packages/models" in line for line in lines)
    with pytest.raises(AssetError, match=r"models\.generator = 'small' is in the package"):
        find_asset("small-generator")
    for name in LARGE:
        (core / "privsyn_flower" / "assets" / name).symlink_to(PACKAGE_ASSETS / name)
    assert said(generator="small", infiller="small", embedder="minilm-int8") == []
