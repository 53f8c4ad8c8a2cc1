"""A training that filters its public pool: the file, the figures, the statement, the start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privsyn_flower import __version__
from privsyn_flower.app.cli.proximity import filter_by
from privsyn_flower.app.public.proximity import Thresholds
from privsyn_flower.app.report.forms import checklist
from privsyn_flower.common.progress import silent
from privsyn_flower.config import ConfigError, RunConfig, to_toml
from privsyn_flower.privacy.wording import CHOSEN_TEXT, at_most
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.server_apps.methods.proximity import (
    filtered,
    own_pool,
    remember_start,
    start_of,
    thresholds_of,
)
from privsyn_flower.server_apps.privacy_plan import statement
from privsyn_flower.server_apps.public_text import PublicText, public_text
from tests.conftest import sentences
from tests.server_apps.in_process import one_thread, run, shared, small_config

__all__ = ["one_thread", "shared"]  # pytest finds fixtures by name

FTRL: dict[str, Any] = {
    "method": "dp-ftrl",
    "epsilon": 500.0,
    "rounds": 2,
    "aggregation": "plain",
    "training.noise": "aggregator",
    "training.parameters": "layers",
    "training.layers": "*norm*",
    "training.max-steps": 1,
    "training.public-steps": 1,
    "ftrl.mechanism": "tree",
    "proximity.filter": True,
    "proximity.least-quantile": 0.5,
}


@pytest.mark.slow
def test_a_run_writes_what_its_model_keeps(
    shared: Path, causal_folder: Path, loopback: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    config = small_config(shared, causal_folder, **FTRL)
    folder = tmp_path / "run"
    summary, _ = run(config, loopback, folder)
    found, rows = summary["proximity"], read_jsonl(folder / "proximity.jsonl")
    assert 0 < len(rows) == found["kept"] < found["of"] == 60
    assert {row["text"] for row in rows} <= set(sentences(120, 2))
    least = found["thresholds"]["least_score"]
    assert all(row["after"] >= max(least, row["before"]) - 1e-6 for row in rows)
    assert summary["synthetic_samples"] == 0 and summary["stage_seconds"]["proximity"] >= 0
    assert CHOSEN_TEXT in summary["privacy"]
    assert CHOSEN_TEXT in (folder / "privacy.md").read_text("utf-8")

    # The summary alone fills in the checklist.
    assert summary["version"] == __version__
    told = checklist(summary)
    assert CHOSEN_TEXT in told and f"{at_most(summary['rho_zcdp'])}-zCDP." in told

    # What a later call needs of the start.
    start = start_of(RunFolder(folder))
    assert start is not None and start.parent == shared / "cache" / "models"

    # Of a finished run, the command filters other text as the run filtered its own.
    (folder / "config.toml").write_text(to_toml(config))
    near = tmp_path / "near"
    file, report = filter_by(folder, shared / "public.jsonl", near, "text", None, {})
    assert report["of"] == 120 and report["run"]["rho_zcdp"] == summary["rho_zcdp"]
    scores = {row["text"]: row["after"] for row in read_jsonl(file)}
    both = [row for row in rows if row["text"] in scores]
    assert both and all(abs(row["after"] - scores[row["text"]]) < 1e-4 for row in both)
    assert summary["privacy"] in (near / "privacy.md").read_text("utf-8")

    # Scores of an earlier model are not the run's.
    public = PublicText([row["text"] for row in rows], None)
    again = filtered(config, public, start, folder / "model", folder, silent)
    assert again["of"] == found["kept"]


def test_the_minority_is_what_the_general_text_has_not() -> None:
    config = RunConfig.from_flat({"method": "dp-fedavg", "data.sample-words": 4})
    federation: Any = SimpleNamespace(
        public_general=lambda: ["a b c d e", "f"], public_corpus=lambda: ["f", "a b c d", "g h"]
    )
    pool = own_pool(config, PublicText(["g h", "a b c d", "f"], federation))
    assert pool.by == "source"
    assert [row["source"] for row in pool.rows()] == ["minority", "general", "general"]
    plain = own_pool(config, PublicText(["g h"], None))
    assert plain.by == "" and list(plain.rows()) == [{"text": "g h"}]
    assert pool.digest != plain.digest
    with pytest.raises(ConfigError, match=r"data\.public-path"):
        own_pool(config, PublicText([], None))


def test_the_start_is_known_by_what_it_is(tmp_path: Path) -> None:
    folder, start = RunFolder(tmp_path / "run"), tmp_path / "start"
    assert start_of(folder) is None
    start.mkdir()
    (start / "model.safetensors").write_bytes(b"weights")
    remember_start(folder, start)
    assert start_of(folder) == start
    (start / "model.safetensors").write_bytes(b"others")
    assert start_of(folder) is None
    (start / "model.safetensors").unlink()
    assert start_of(folder) is None


def test_a_pool_that_carries_an_epsilon_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = tmp_path / "proximity.jsonl"
    texts.write_text('{"text": "one two"}\n')
    given = {"method": "dp-fedavg", "data.source": "files", "data.public-path": str(texts)}
    config = RunConfig.from_flat(given)
    assert public_text(config, silent).pool == ["one two"] and not caplog.messages
    (tmp_path / "privacy.md").write_text("# Privacy\n\nOf a web site.")
    assert public_text(config, silent).pool == ["one two"] and not caplog.messages
    (tmp_path / "privacy.md").write_text("# Privacy of this run\n\nEpsilon = 3.")
    assert public_text(config, silent).pool == ["one two"]
    assert "what this text carries already" in caplog.text


def test_keys() -> None:
    base = {"method": "dp-ftrl", "training.noise": "aggregator"}
    config = RunConfig.from_flat({**base, "proximity.least-score": -6.0, "proximity.gain": False})
    assert thresholds_of(config.proximity) == Thresholds(least_score=-6.0, gain=False)
    assert thresholds_of(RunConfig().proximity) == Thresholds()  # one set of defaults
    assert CHOSEN_TEXT not in statement(config).sentence()
    with pytest.raises(ConfigError, match=r"proximity\.filter = true .* data\.public-path"):
        RunConfig.from_flat({**base, "proximity.filter": True, "data.source": "files"})
    with pytest.raises(ConfigError, match="keys of proximity belong to method = 'dp-fedavg' or"):
        RunConfig.from_flat({"proximity.filter": True})
