"""The scripts that make the small shipped models, from the packages' text to the manifest."""

import gzip
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from privsyn_flower.text import HuggingFaceGenerator
from privsyn_flower.text.tiny.assets import FURTHER, MANIFEST, PACKAGE_ASSETS, SMALL, find_asset
from scripts import make_assets, make_corpus, train_conditional, train_small

CONFIG = """
epsilon = 7.58
delta = 3e-6
[data]
private-packages = "networkx"
public-packages = "click,pydantic"
minority-packages = "packaging"
users = 30
held-out-users = 8
development-users = 5
public-pool = 600
public-validation = 40
"""
PRIVATE = ["scipy", "scikit-learn", "pandas"]


def call(monkeypatch: pytest.MonkeyPatch, script, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
    script.main()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a handful of packages, by the script."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "config.toml").write_text(CONFIG)
    file = folder / "corpus.jsonl.gz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_corpus, "others", lambda known: iter(["filelock"]))
        settings = ("--config", folder / "config.toml", "--cache", folder / "cache")
        call(patch, make_corpus, file, *settings)
    return file


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few steps of each model, a hundred times smaller: the code is the same."""
    folder = tmp_path_factory.mktemp("trained")
    sizes = {"VOCABULARY": 400, "WIDTH": 32, "LAYERS": 1, "HEADS": 2, "BATCH_TOKENS": 1024}
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(train_small, name, size)
        torch.set_num_threads(1)
        call(patch, train_small, corpus, folder, "--seconds", "0.5")
        patch.setattr(train_conditional, "PACKAGE_ASSETS", folder)  # goes on from that generator
        for name, size in {"BATCH_TOKENS": 1024, "CHECKED": 8, "DRAWS": 2}.items():
            patch.setattr(train_conditional, name, size)
        some = ("--only", "small-conditional", "--seconds", "0.5", "--steps", "4")
        call(patch, train_conditional, corpus, folder, *some)
        torch.set_num_threads(threads)
    return folder


def emptied(folder: Path) -> Path:
    """The shipped manifest without the models that --take takes, and none of their folders."""
    manifest = json.loads((PACKAGE_ASSETS / MANIFEST).read_text())
    for name in list(manifest["models"]):
        if name.startswith("small-") or name == make_assets.CONDITIONAL:
            del manifest["models"][name]
        else:
            (folder / name).symlink_to(PACKAGE_ASSETS / name)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_the_shipped_folders_give_the_shipped_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`corpus` here: the first line of the file they were trained on, which says what it has."""
    entry = json.loads((PACKAGE_ASSETS / MANIFEST).read_text())["models"]["small-infiller"]
    sides = {side: entry["packages"][side] for side in ("general", "minority")}
    about = {key: entry[key] for key in ("versions", "words")}
    about["packages"] = {"private": PRIVATE, **sides}
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(about) + "\n")
    (assets := tmp_path / "assets").mkdir()
    emptied(assets)
    call(
        monkeypatch, make_assets,
        "--take", PACKAGE_ASSETS, "--corpus", tmp_path / "corpus.jsonl.gz", "--assets", assets,
    )  # fmt: skip
    assert (assets / MANIFEST).read_bytes() == (PACKAGE_ASSETS / MANIFEST).read_bytes()
    for name in [f"small-{kind}" for kind in SMALL] + [make_assets.CONDITIONAL]:
        shipped, taken = PACKAGE_ASSETS / name, assets / name
        assert {p.name for p in taken.iterdir()} == {p.name for p in shipped.iterdir()}


def test_what_the_scripts_make_is_taken_up_and_says_what_it_read(
    corpus: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = emptied(tmp_path)
    for _ in range(2):  # a second time in the place of the first
        call(monkeypatch, make_assets, "--take", trained, "--corpus", corpus, "--assets", assets)
    for kind in SMALL:
        asset = find_asset(f"small-{kind}", assets)
        assert asset is not None
        assert asset.knows(["filelock", "Click", "packaging"]) and not asset.knows(["networkx"])
        assert asset.packages[FURTHER] == {"filelock"}
        shipped = json.loads((PACKAGE_ASSETS / f"small-{kind}" / "training.json").read_text())
        said = json.loads((asset.folder / "training.json").read_text())
        assert set(shipped) - {"steps"} <= set(said) and 0 < said["parameters"] < 10**5
        config = json.loads((asset.folder / "config.json").read_text())
        assert not any(value for key, value in config.items() if key.endswith("dropout"))
    assert sorted(path.name for path in assets.iterdir() if "small" in path.name) == [
        "small-conditional",
        "small-generator",
        "small-infiller",
    ]
    said = json.loads((assets / "small-conditional" / "training.json").read_text())
    assert said["steps"] <= 4 and said["texts"] > 600
    assert set(said["held_out_nats_a_character"]["after"]) >= {"own", "group", "area", "wrong"}
    generator = HuggingFaceGenerator(assets / "small-generator", max_tokens=4, progress=False)
    assert len(generator.complete(["Return the"], 2, np.random.default_rng(0))[0]) == 2


def test_a_model_of_another_corpus_is_not_taken(
    corpus: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = emptied(tmp_path)
    other = tmp_path / "other.jsonl.gz"
    with gzip.open(corpus, "rt") as file, gzip.open(other, "wt") as copy:
        copy.write(next(file))
    with pytest.raises(SystemExit, match="another file"):
        call(monkeypatch, make_assets, "--take", trained, "--corpus", other, "--assets", assets)
    with pytest.raises(SystemExit, match="small-"):
        call(monkeypatch, make_assets, "--take", assets, "--corpus", corpus, "--assets", assets)
    shutil.copytree(trained / "small-conditional", tmp_path / "tiny" / make_assets.CONDITIONAL)
    with pytest.raises(SystemExit, match="not those of the tiny models"):
        take = ("--take", tmp_path / "tiny", "--corpus", corpus, "--assets", assets)
        call(monkeypatch, make_assets, *take)
    shutil.copytree(trained / "small-infiller", tmp_path / "one" / "small-infiller")
    with pytest.raises(SystemExit):  # which corpus has to be said
        call(monkeypatch, make_assets, "--take", tmp_path / "one", "--assets", assets)
    assert find_asset("small-infiller", assets) is None


def test_a_corpus_too_small_to_hold_text_out_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = tmp_path / "few.jsonl.gz"
    with gzip.open(corpus, "rt") as file, gzip.open(few, "wt") as copy:
        copy.writelines(line for i, line in enumerate(file) if i < 6)
    with pytest.raises(SystemExit, match=r"none of 4 groups.*data.public-pool"):
        train_small.read(few)
