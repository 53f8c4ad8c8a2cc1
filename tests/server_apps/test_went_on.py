"""Runs that ended early and then went on: what they had made of fewer rounds goes, but for what was
paid for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.ending import NOT_USABLE, exit_status
from privsyn_flower.app.cli.main import app
from privsyn_flower.config import ConfigError, RunConfig, flat_defaults
from privsyn_flower.runs import RunFolder, complete, read_jsonl
from privsyn_flower.server_apps import run as stages
from privsyn_flower.server_apps.changes import (
    CHANGEABLE,
    FIXED,
    changeable,
    changes_of,
    entry_of,
    go_by,
    stale,
)
from privsyn_flower.server_apps.methods import ctcl
from privsyn_flower.server_apps.methods.pretext import PrETextRecipe
from privsyn_flower.server_apps.methods.training import Training
from privsyn_flower.server_apps.run import Run, nothing_predicted
from privsyn_flower.text.models.adapters import WEIGHTS
from tests.conftest import sentences
from tests.server_apps.in_process import (
    DP_FEDAVG,
    EVOLUTION,
    Killed,
    ending_early,
    killing,
    run,
    texts,
)

pytestmark = pytest.mark.slow


RESAMPLING = {"method": "ctcl", "ctcl.condition": "none", "ctcl.resample-pool": 2000}


def test_the_generator_is_taught_again(
    small: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training of the earlier seeds would be refused as one of other pairs."""
    taught = {"sft.epochs": 1, "sft.learning-rate": 1e-2, "expand.samples": 6}
    config = small(**{**EVOLUTION, **taught})
    path = tmp_path / "run"
    adapter = path / "sft" / "synthetic" / "epoch-1" / WEIGHTS
    with monkeypatch.context() as patch, pytest.raises(Killed):
        ending_early(patch)
        killing(patch, stages, "write_json")
        run(config, loopback, path)
    before = adapter.read_bytes()
    summary, _ = run(config, loopback, path)
    assert summary["rounds"] == 2 and adapter.read_bytes() != before
    run(config, loopback, tmp_path / "whole")
    assert texts(path) == texts(tmp_path / "whole")


def test_the_lstms_of_the_filter_are_trained_again(
    small: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privsyn_flower.text.models.lstm import WordTraining, make_lstm

    words = sentences(30, seed=3)
    lstm = make_lstm(tmp_path / "lstm", words, WordTraining(2), words=60, hidden=12, embedding=6)
    values: dict[str, Any] = {
        **DP_FEDAVG,
        "training.parameters": "full",
        "training.public-steps": 0,
        "proximity.filter": True,
        "proximity.least-score": -50.0,
        "proximity.gain": False,
        "benchmark": True,
        "evaluation.controls": "noise",
    }
    config, path = small(**values, **{"models.downstream": str(lstm)}), tmp_path / "run"
    with monkeypatch.context() as patch:
        ending_early(patch)
        trained = Training._anew

        def once(*args: Any) -> Any:
            trained(*args)
            raise Killed("_anew")

        patch.setattr(Training, "_anew", once)
        with pytest.raises(Killed):
            run(config, loopback, path)
    names = ("scratch_filtered", "scratch_noise", "scratch_random")
    for name in names:
        (path / "anew" / name / "earlier").touch()
    summary, _ = run(config, loopback, path)
    assert summary["rounds"] == 2 and set(summary["benchmark"]["accuracy"]) >= set(names)
    assert all((path / "anew" / name).is_dir() for name in names)
    assert not list(path.glob("anew/*/earlier"))


def test_the_pool_that_was_paid_for_stays_and_the_controls_goes() -> None:
    recipe = object.__new__(ctcl.CTCLRecipe)
    recipe.config = RunConfig.from_flat({"method": "ctcl"})
    assert "control-pool.jsonl" in recipe.output_paths()
    assert not {"synthetic-pool.jsonl", "topics"} & set(recipe.output_paths())


@pytest.fixture
def over(small: Any, loopback: Any, tmp_path: Path) -> tuple[Any, Path]:
    """A configuration, and its finished run."""
    config, path = small(**EVOLUTION), tmp_path / "run"
    run(config, loopback, path)
    return config, path


def test_a_run_that_is_killed_while_it_removes_is_not_complete(
    over: tuple[RunConfig, Path], loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is gone, or about to be: a summary would say that it is there."""
    config, path = over
    wanted = texts(path)
    RunFolder(path).save_value("made-of", 1)
    (path / "control").mkdir()
    with monkeypatch.context() as patch:
        killing(patch, shutil, "rmtree")
        with pytest.raises(Killed):
            run(config, loopback, path)
    assert not (path / "synthetic.jsonl").exists() and not complete(path)
    run(config, loopback, path)
    assert complete(path) and texts(path) == wanted and not (path / "control").exists()


def generated(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["generate", *map(str, arguments)])


def changed(config: RunConfig, **values: Any) -> RunConfig:
    return RunConfig.from_flat({**config.flat(), **values})


def test_text_of_earlier_settings_is_made_again_and_never_mixed(
    over: tuple[RunConfig, Path], loopback: Any
) -> None:
    config, path = over
    folder = RunFolder(path)
    go_by(folder, config)
    releases = {file.name: file.read_bytes() for file in path.glob("releases/*")}
    seeds, benchmark = texts(path), {"kept": True}
    folder.save_value("benchmark", benchmark)
    (path / "control.jsonl").write_text("{}\n")
    more = changed(config, **{"expand.samples": 5, "generation.timeout": 9.0})
    go_by(folder, more)
    go_by(folder, more)  # as a call does that comes after a kill
    assert not complete(path) and len(read_jsonl(path / "changes.jsonl")) == 2
    summary, _ = run(more, loopback, path)
    front = summary["seeds_in_front"]
    assert summary["synthetic_samples"] == front + 5 and texts(path)[:front] == seeds
    assert not set(texts(path)[front:]) & set(seeds)
    assert not (path / "control.jsonl").exists() and folder.load_value("benchmark") is None
    assert {file.name: file.read_bytes() for file in path.glob("releases/*")} == releases

    # Figures alone: the text stays. The pace of requests: nothing is made again.
    folder.save_value("benchmark", benchmark)
    before, slower = texts(path), changed(more, **{"generation.timeout": 8.0})
    go_by(folder, slower)
    assert complete(path) and run(slower, loopback, path) and folder.load_value("benchmark")
    longer = changed(slower, **{"evaluation.steps": 3})
    go_by(folder, longer)
    assert not complete(path) and run(longer, loopback, path)
    assert folder.load_value("benchmark") is None and texts(path) == before


@pytest.mark.parametrize(
    ("values", "key", "later"),
    [
        ({"method": "popri"}, "expand.temperature", True),
        ({"method": "popri"}, "models.generator", False),
        ({"pretext.variation": "rewrite"}, "models.generator", True),
        ({"pretext.variation": "retrieval"}, "models.generator", None),
        ({"method": "pe", "pe.initial": "model", "pe.prompt": "Write."}, "expand.max-tokens", True),
        ({"method": "dp-fedavg"}, "evaluation.sequence-length", False),
        ({"method": "popri"}, "generation.base-url", None),
        (RESAMPLING, "evaluation.sequence-length", True),
        (RESAMPLING, "expand.samples", False),
    ],
)  # fmt: skip
def test_a_method_holds_back_what_it_asks_with(
    tmp_path: Path, values: dict[str, Any], key: str, later: bool | None
) -> None:
    """later: changeable when all is released; None: at any time."""
    begun = RunConfig.from_flat({**values, "rounds": 3})
    folder = RunFolder(tmp_path)
    go_by(folder, begun)
    old = begun.flat()[key]
    other = changed(begun, **{key: f"{old}x" if isinstance(old, str) else old * 2})
    for released in (2, 3):
        folder.save_value("all-released", released)
        if later is None or (later and released == 3):
            assert set(changes_of(folder, other)) == {key}
        else:
            with pytest.raises(ConfigError, match=f"{key} = .*depend on them"):
                changes_of(folder, other)


def test_a_benchmark_that_was_turned_off_later_stays_in_the_claim_of_a_baseline(
    tmp_path: Path,
) -> None:
    for benchmark in (True, False):
        config = RunConfig.from_flat({"method": "expand-only", "benchmark": benchmark})
        go_by(RunFolder(tmp_path), config)
        claim = Run(config, None, RunFolder(tmp_path)).statement.sentence()  # type: ignore[arg-type]
        assert "figures under `benchmark`" in claim


def test_what_was_paid_for_outlives_an_expansion_that_drops_all(
    small: Any, shared: Path, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status of its own, the seeds in their file, and a result by other settings; after a trial
    whose few texts were luckier."""
    monkeypatch.setattr(PrETextRecipe, "try_expansion", lambda self, seeds: None)
    values = {**EVOLUTION, "expand.samples": 4, "expand.min-words": 1000}
    config, path = small(**values), tmp_path / "run"
    summary, _ = run(config, loopback, path)
    seeds = summary["seeds_in_front"]  # of one's own text they are released, and are no excuse
    assert summary["synthetic_samples"] == seeds == summary["seeds"] > 0 and complete(path)
    assert summary["side_by_side"].keys() == {"public", "seeds"}
    assert summary["dropped"] == {"too short": 16}
    assert "(16 too short), expand.samples = 4" in summary["unusable"][0]
    assert exit_status(path) == NOT_USABLE

    rows = read_jsonl(path / "seeds.jsonl")
    checkpoint = RunFolder(path).last_checkpoint()
    assert checkpoint is not None and summary["seeds"] == len(rows) > 0
    assert {row["text"] for row in rows} == set(checkpoint["state"]["seeds"])
    votes = [row["votes"] for row in rows]
    assert votes == sorted(votes, reverse=True) and {row["round"] for row in rows} <= {1, 2}

    # Elsewhere, from the releases alone: no file of users, no summary.
    go_by(RunFolder(path), config)
    own = (path / "config.toml").read_text()
    gone = own.replace(str(shared / "private.jsonl"), str(tmp_path / "gone.jsonl"))
    (path / "config.toml").write_text(gone)
    (path / "summary.json").rename(path / "kept.json")
    more = generated(path, "--samples", 3, "--set", "expand.min-words=1")
    assert more.exit_code == 0 and len(texts(path, "generated-0-3")) == 3, more.output
    none = generated(path, "--samples", 3, "--seed", 1)
    assert none.exit_code == 1 and "12 too short" in none.output
    asked = generated(path, "--samples", 3, "--seed", 1, "--set", "rounds=3")
    assert asked.exit_code == 1 and "--set rounds: the run's queries depend on it" in asked.output
    assert not list(path.glob("generated-1*")) and not list(path.glob(".generated*"))
    (path / "kept.json").rename(path / "summary.json")
    (path / "config.toml").write_text(own)

    again = changed(config, **{"expand.min-words": 1})
    go_by(RunFolder(path), again)
    summary, _ = run(again, loopback, path)
    assert summary["synthetic_samples"] == seeds + 4
    assert summary["changed"] == ["expand.min-words"]
    assert summary["side_by_side"]["synthetic"] == texts(path)[seeds:]
    written = summary["quality"]["writer"]
    assert written["model"] == config.models.generator and written["parameters"] > 1000
    assert summary["quality"]["texts"] == 4 and len(summary["voted"]["best"]) == 5
    assert summary["voted"]["shares"] == []  # files of nobody know no domains
    assert not any("too short" in why for why in summary.get("unusable", []))


def test_a_benchmark_without_one_right_word_tells_nothing() -> None:
    assert nothing_predicted({"accuracy": {"pretrained": 0.0, "synthetic": 0.0}})
    assert not nothing_predicted({"accuracy": {"pretrained": 0.0, "synthetic": 0.1}})
    assert not nothing_predicted({})


def test_every_key_is_asked_or_promised_or_may_change_later() -> None:
    """In exactly one of two lists; a new key of all methods must be put into one."""
    own = {name.replace("_", "-") for name in RunConfig().tables}  # never changed
    keys = {key for key in flat_defaults() if key.partition(".")[0] not in own}
    tables = {key.partition(".")[0] for key in keys if "." in key}
    both = {*CHANGEABLE, *FIXED}
    assert not set(CHANGEABLE) & FIXED and not both - keys - tables
    assert [key for key in keys if not entry_of(key, both)] == []
    assert not both & tables & {"models"}  # each key of a table of both kinds is named
    assert changeable("generation.base-url") and not changeable("pretext.threshold")
    assert stale(["generation.timeout"]) == "nothing" and stale(["sft.epochs"]) == "text"
    assert stale(["evaluation.steps", "trackers"]) == "figures"
