"""Licences, public sources and settings, as a card tells them."""

from __future__ import annotations

import importlib.metadata
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.report.places import named_places, places, settings
from privsyn_flower.app.report.publishing.card import (
    base_model,
    licence_of,
    models,
    private_text,
    public_text,
)
from privsyn_flower.app.report.publishing.product import columns_of, size_category, write_parquet
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.public_text import carried_by


def of(**values: Any) -> RunConfig:
    return RunConfig.from_flat({key.replace("__", "."): value for key, value in values.items()})


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ([("License-Expression", "MIT"), ("License", "BSD")], "MIT"),
        ([("Classifier", "License :: OSI Approved :: MIT License")], "MIT License"),
        ([("License", "Apache 2.0")], "Apache 2.0"),
        ([("License", "Copyright\n\nall of it")], "unknown"),
        ([("License-Expression", "a | b")], "a / b"),
        ([], "unknown"),
    ],
)
def test_licences_are_those_of_the_metadata(
    fields: list[tuple[str, str]], licence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = Message()
    for key, value in [("Version", "1.2"), *fields]:
        about[key] = value
    monkeypatch.setattr(importlib.metadata, "metadata", lambda _: about)
    assert licence_of("some-package") == ("1.2", licence)


def test_a_package_that_is_not_here() -> None:
    assert licence_of("no-such-package-anywhere") == ("not installed here", "unknown")
    assert licence_of("stdlib")[1] == "PSF-2.0"


def test_public_text_of_every_kind(tmp_path: Path) -> None:
    files = {"data.source": "files", "data.path": str(tmp_path / "users.jsonl")}
    docstrings = public_text(of())
    assert [line.split(" | ")[0] for line in docstrings[4:-2]] == [
        f"| {name}" for name in "stdlib transformers torch ray sqlalchemy sympy numpy".split()
    ]
    assert public_text(of(**files)) == ["None was given to the run."]
    hub = public_text(of(**files, **{"data.public-path": "hub:allenai/c4"}))
    assert "https://huggingface.co/datasets/allenai/c4" in hub[0]
    own = of(**files, **{"data.public-path": str(tmp_path / "public.jsonl")})
    assert len(public_text(own)) == 1 and "unknown here" in public_text(own)[0]
    (tmp_path / "privacy.md").write_text("# Privacy of this text\n\nEpsilon = 3.\n")
    told = public_text(own, carried_by(own))
    assert "> Epsilon = 3." in told and "adds to this one" in told[2]
    assert private_text(own) == "the users' own, which is not here"
    assert "scipy, scikit-learn, pandas" in private_text(of())


def test_models_of_every_kind(tmp_path: Path) -> None:
    config = of(
        method="dp-fedavg", models__infiller="small", models__generator=str(tmp_path),
        models__embedder="ngram-64", models__downstream="distilbert/distilgpt2",
    )  # fmt: skip
    told = models(config, ["infiller", "generator", "embedder", "downstream", "conditional"])
    assert [line.split(":")[0] for line in told] == [
        f"- `{kind}`" for kind in ("conditional", "downstream", "embedder", "generator", "infiller")
    ]
    assert "docstrings of stdlib, transformers" in told[0] and "numpy)" in told[0]
    assert "https://huggingface.co/distilbert/distilgpt2" in told[1]
    assert told[2] == "- `embedder`: ngram-64" and "own; its licence: unknown here" in told[3]
    assert "Python packages)" in told[4] and str(tmp_path) not in "".join(told)
    assert base_model(config) == "distilbert/distilgpt2"
    assert base_model(of(method="dp-fedavg")) == base_model(of(models__downstream="/a/b")) == ""


def test_settings_are_told_without_places() -> None:
    config = of(
        epsilon=1.5, rounds=3, method="evaluation", measure__models="a=/home/me/a,b=downstream",
        data__source="files", data__path="~/users.jsonl", data__users=500,
        **{"models.accelerate-arguments": "--main_process_ip head.clinic"},
    )  # fmt: skip
    assert settings(config).splitlines()[1:] == [
        "# Left out, as they name places: data.path, models.accelerate-arguments, measure.models",
        'method = "evaluation"',
        "epsilon = 1.5", "rounds = 3", "", "[data]", 'source = "files"', "users = 500",
    ]  # fmt: skip
    named = {"data.source": "files", "data.path": "x", "data.public-path": "clients/acme/x.jsonl",
             "population-name": "acme-patients"}  # fmt: skip
    assert "acme" not in settings(of(**named))
    assert "hub:a/b" in settings(of(**{**named, "data.public-path": "hub:a/b"}))
    assert settings(of()).splitlines()[1:] == ['method = "pretext"']
    assert places("a=/x/y,b=C:\\z") == ["/x/y", "C:\\z"] and places("hub:a/b") == []
    assert places("either/or, and 3/4") == []


def test_a_place_is_found_as_a_whole() -> None:
    known = ["/data/", "/home/me"]
    assert named_places("kept in /data/users, see /home/me.", iter(known)) == ["/data", "/home/me"]
    assert not named_places("path: x/data/train, /database, /home/merlin", iter(known))


def test_sizes_and_row_groups(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    assert [size_category(n) for n in (1, 999, 1000, 9999, 10_000, 2_000_000, 10**12)] == [
        "n<1K", "n<1K", "1K<n<10K", "1K<n<10K", "10K<n<100K", "1M<n<10M", "n>1T",
    ]  # fmt: skip
    source, target = tmp_path / "synthetic.jsonl", tmp_path / "train.parquet"
    source.write_text("".join(f'{{"text": "t{i}", "label": "a"}}\n' for i in range(20_001)))
    count, columns = columns_of(source)
    assert (count, columns) == (20_001, ["text", "label"])
    write_parquet(source, target, columns)
    file = pq.ParquetFile(target)
    assert file.num_row_groups == 3 and file.metadata.num_rows == count
    assert file.read().to_pylist()[-1] == {"text": "t20000", "label": "a"}
