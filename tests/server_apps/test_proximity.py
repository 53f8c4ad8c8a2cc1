"""A training that filters its public pool: the file, the figures, the statement, the start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privsyn_flower import __version__
from privsyn_flower.app.cli.proximity import filter_by
from privsyn_flower.app.public.proximity import Thresholds
from privsyn_flower.app.report.guarantee import checklist
from privsyn_flower.common.progress import silent
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.privacy.wording import CHOSEN_TEXT, at_most
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.server_apps.methods.proximity import (
    ALL,
    FILTERED,
    NOISE,
    RANDOM,
    filtered,
    filtered_rows,
    is_lstm,
    own_pool,
    remember_start,
    start_of,
    subsets,
    text_counts,
    thresholds_of,
    train_anew,
)
from privsyn_flower.server_apps.privacy_plan import statement
from privsyn_flower.server_apps.public_text import PublicText, public_text
from privsyn_flower.text.models import lstm
from tests.conftest import sentences
from tests.server_apps.in_process import DP_FEDAVG, FTRL, run
from tests.text.conftest import SENTENCES

FILTERING: dict[str, Any] = {
    **DP_FEDAVG,
    **FTRL,
    "rounds": 2,
    "aggregation": "plain",
    "training.public-steps": 1,
    "ftrl.mechanism": "tree",
    "ftrl.min-separation": 1,
    "proximity.filter": True,
    "proximity.least-quantile": 0.5,
}


@pytest.mark.slow
def test_a_run_writes_what_its_model_keeps(
    small: Any, shared: Path, loopback: Any, tmp_path: Path
) -> None:
    config = small(**FILTERING)
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
    assert "what it carries already" in caplog.text


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


# New LSTMs of the benchmark: what each is trained on, and that nothing else differs ------------

KINDS = {"m": "minority", "g": "general"}
POOL = [
    {"text": text, "source": KINDS[kind]} for text, kind in zip("abcdef", "mgmggm", strict=True)
]


def test_the_rows(caplog: pytest.LogCaptureFixture) -> None:
    kept, by_noise = POOL[:3], POOL[3:4]
    chosen = subsets(POOL, kept, by_noise, seed=3)
    assert chosen[FILTERED] == kept and chosen[NOISE] == by_noise
    drawn = {"".join(str(row["text"]) for row in subsets(POOL, kept, None, seed=seed)[RANDOM])
             for seed in range(30)}  # fmt: skip
    assert len(drawn) > 5 and {len(set(texts)) for texts in drawn} == {3}
    assert caplog.text == ""
    assert set(subsets(POOL, kept, [], seed=3)) == {FILTERED, RANDOM}, "no empty row"
    assert "scratch_noise: no text was kept" in caplog.text
    assert subsets(POOL, [], None, seed=3) == {}


def test_the_minoritys_share() -> None:
    assert text_counts({ALL: POOL, FILTERED: POOL[:3], NOISE: POOL[1:]}) == {
        "texts": {ALL: 6, FILTERED: 3, NOISE: 5},
        "minority_share": {ALL: 0.5, FILTERED: 0.66667, NOISE: 0.4},
    }
    assert text_counts({ALL: [{"text": "a"}]}) == {"texts": {ALL: 1}}, "nobody is a minority"


def test_what_the_filter_left(tmp_path: Path) -> None:
    rows = [{"text": "a\u2028b", "after": -1.0}, {"text": "c"}]
    write_jsonl(tmp_path / "proximity.jsonl", rows)
    assert filtered_rows(tmp_path) == rows


def test_rows_differ_in_their_text_alone(tmp_path: Path) -> None:
    start = lstm.make_lstm(
        tmp_path / "start",
        SENTENCES,
        lstm.WordTraining(9, batch_words=64),
        words=60,
        hidden=12,
        embedding=6,
    )
    assert is_lstm(start)
    config = RunConfig.from_flat(
        {"models.device": "cpu", "models.lstm-batch-words": 64, "models.train-steps": 2}
    )
    rows = [{"text": text} for text in SENTENCES]
    every = train_anew(config, start, rows, tmp_path / "anew" / "all", silent)
    few = train_anew(config, start, rows[:3], tmp_path / "anew" / "few", silent)
    weights = "model.safetensors"
    # All text again is the start again: the same words, first weights, order and nine steps.
    assert (every / weights).read_bytes() == (start / weights).read_bytes()
    assert (few / weights).read_bytes() != (start / weights).read_bytes()
    before = (few / weights).stat().st_mtime_ns
    assert train_anew(config, start, [], few, silent) == few
    assert (few / weights).stat().st_mtime_ns == before, "found, not made again"


def test_another_model_is_none(causal_folder: Path) -> None:
    assert not is_lstm(causal_folder)
