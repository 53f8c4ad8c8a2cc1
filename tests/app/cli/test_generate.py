"""Text of a run beside which nothing says what it carries gets a statement of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from privsyn_flower.app.cli.generate import _with_settings, _write_statement
from privsyn_flower.app.public.source import carried, statement_of_file
from privsyn_flower.config import ConfigError, RunConfig


def claimed(folder: Path, epsilon: int) -> Path:
    folder.mkdir()
    claim = f"# Privacy of this run\n\nEpsilon = {epsilon}\n"
    (folder / "privacy.md").write_text(claim)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return claimed(tmp_path / "run", 3)


def test_text_outside_of_its_run_has_the_runs_statement(run: Path, tmp_path: Path) -> None:
    _write_statement(run / "more.jsonl", run, RunConfig())
    assert [path.name for path in run.iterdir()] == ["privacy.md"]  # which is beside the text
    target = tmp_path / "elsewhere" / "more.jsonl"
    _write_statement(target, run, RunConfig())
    assert carried(target) == carried(run) != ""
    assert carried(target.with_name("other.jsonl")) == "", (
        "of the other files there nothing is said"
    )


def test_a_model_of_another_run_is_in_the_statement_too(run: Path, tmp_path: Path) -> None:
    model = claimed(tmp_path / "other", 4) / "model"
    model.mkdir()
    config = RunConfig.from_flat({"models.generator": str(model)})
    target = run / "more.jsonl"
    for _ in range(2):
        _write_statement(target, run, config)
        assert carried(target) == f"{carried(run)}\n\n{carried(model)}"
    statement_of_file(target).unlink()
    (run / "privacy.md").write_text(f"{carried(run)}\n\n{carried(model)}\n")  # the run had it, too
    _write_statement(target, run, config)
    assert not statement_of_file(target).exists()


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("ctcl", "models.generator"),
        ("ctcl", "generation.chat"),
        ("pretext", "benchmark"),
        ("pretext", "evaluation.steps"),
        ("pretext", "expand.samples"),
        ("pretext", "expand.include-seeds"),
    ],
)
def test_a_setting_that_would_be_of_no_effect_is_refused(
    method: str, key: str, tmp_path: Path
) -> None:
    config = RunConfig.from_flat({"method": method})
    with pytest.raises(ConfigError, match=f"--set {key}: .* does not go by it, but by expand"):
        _with_settings(config, tmp_path, {key: config.flat()[key]})
    assert _with_settings(config, tmp_path, {"expand.min-words": 3}).expand.min_words == 3
