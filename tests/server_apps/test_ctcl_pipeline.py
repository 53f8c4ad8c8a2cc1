"""CTCL through the whole pipeline in one process: real handlers, a random generator, its text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from privsyn_flower.app.cli.ending import ending
from privsyn_flower.app.cli.main import app
from privsyn_flower.app.public.source import carried
from privsyn_flower.app.report.tables import report
from privsyn_flower.config import ConfigError, RunConfig, load_config, to_toml
from privsyn_flower.privacy.plan import ROUNDS
from privsyn_flower.runs import RunFolder, complete, read_jsonl, write_jsonl
from privsyn_flower.server_apps.privacy_plan import privacy_plan, statement
from privsyn_flower.server_apps.topics import histogram_of
from privsyn_flower.strategies.ctcl.strategy import TOPICS
from privsyn_flower.strategies.engine.session import Session
from privsyn_flower.strategies.synthesis import topic_texts
from privsyn_flower.strategies.synthesis.topic_counts import largest_remainder, proportions
from privsyn_flower.text.embedders import NgramEmbedder
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.topics import load_topics
from tests.rigs.conditional import bart_folder  # noqa: F401
from tests.server_apps.in_process import CONFIGS, CTCL, HANDLERS, Killed, charges, killing, run

pytestmark = pytest.mark.slow

SAMPLES = 40


@pytest.fixture
def configured(small: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Dotted keys on top of a run of two rounds -> the configuration."""
    return lambda **values: small(**{**CTCL, "expand.samples": SAMPLES, **values})


def asked(grid: Any) -> Counter[str]:
    """Questions by their kind, hellos and stages left out."""
    return Counter(
        found for message in grid.sent if (found := message.metadata.message_type) in HANDLERS
    )


# The stages ----------------------------------------------------------------------------------


def test_both_private_steps_and_the_text_of_their_shares(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    config = configured(aggregation="secure")
    summary, grid = run(config, loopback, tmp_path)
    sent = asked(grid)
    assert sent["train"] == 2 * sent["query.votes"] > 0  # in all stages of the secure sum

    # One promise: the histogram's share and the rounds are charged, and nothing else.
    made = privacy_plan(config)
    found = charges(tmp_path)
    assert len(found) == 3 and made.epsilon == pytest.approx(500, rel=1e-3)
    assert 1 / made[TOPICS].multiplier ** 2 * made[TOPICS].most == pytest.approx(
        0.1 * sum(phase.most / phase.multiplier**2 for phase in made.phases), rel=1e-6
    )
    assert summary["epsilon"] == pytest.approx(made.epsilon) and summary["rounds"] == 2
    assert "topics" in summary["privacy"]

    # The text has the noisy histogram's shares, by largest remainder.
    counts, noise_std = histogram_of(RunFolder(tmp_path))
    shares = proportions(counts, noise_std, 0.0)
    rows = read_jsonl(tmp_path / "synthetic.jsonl")
    topics = load_topics(tmp_path / "topics")
    written = summary["written"]
    assert len(rows) == summary["synthetic_samples"] == SAMPLES - written["dropped"]
    by_topic = Counter(row["topic"] for row in rows)
    wanted = largest_remainder(shares, SAMPLES)
    assert sum(abs(by_topic[t] - n) for t, n in enumerate(wanted)) == written["dropped"]
    assert all(row["keywords"] == list(topics.keywords[row["topic"]]) for row in rows)
    assert summary["topics"]["count"] == 5 and summary["topics"]["used"] == (shares > 0).sum()
    best = summary["topics"]["largest"][0]
    assert best["share"] == pytest.approx(shares.max(), abs=1e-4) and best["texts"]

    # The model is the start with what the rounds learned, and opens as a generator.
    assert summary["parameters"] > 0
    start = HuggingFaceGenerator(config.models.conditional, device="cpu", progress=False)
    model = HuggingFaceGenerator(tmp_path / "model", device="cpu", progress=False)
    moved = [
        float((one - other).abs().max())
        for one, other in zip(start.model.parameters(), model.model.parameters(), strict=True)
    ]
    assert max(moved) > 0
    assert "topics" in report([summary]) and "ctcl" in ending(summary, tmp_path)
    mode = (tmp_path / "synthetic.jsonl").stat().st_mode  # whoever may read it may read the rest
    results = [*(tmp_path / "model").iterdir(), *(tmp_path / "topics").iterdir()]
    assert {path.stat().st_mode for path in results} == {mode}


def test_a_run_that_was_killed_while_writing_asks_nobody_again(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_texts, "BLOCK", 16)
    config = configured()
    with monkeypatch.context() as patch:
        killing(patch, topic_texts, "_block", lambda order, number, *rest: number == 1)
        with pytest.raises(Killed):
            run(config, loopback, tmp_path)
    assert not (tmp_path / "synthetic.jsonl").exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob(".synthetic*/*.json")}
    assert len(before) == 1
    summary, grid = run(config, loopback, tmp_path)
    assert not asked(grid) and len(charges(tmp_path)) == 3 and complete(tmp_path)
    again, grid = run(config, loopback, tmp_path)
    assert not asked(grid) and {**again, "stage_seconds": {}, "wall_seconds": 0} == {
        **summary, "stage_seconds": {}, "wall_seconds": 0,
    }  # fmt: skip


def test_a_histogram_is_asked_once_and_of_one_configuration(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the histogram: its release is used, and other questions are refused."""
    config = configured()
    with monkeypatch.context() as patch:
        killing(patch, Session, "rounds")
        with pytest.raises(Killed):
            run(config, loopback, tmp_path)
    released = histogram_of(RunFolder(tmp_path))
    with pytest.raises(ValueError, match="samples-per-user"):
        run(configured(**{"data.samples-per-user": 2}), loopback, tmp_path)
    _, grid = run(config, loopback, tmp_path)
    assert not asked(grid)["query.votes"] and asked(grid)["train"] == 2 * config.nodes
    assert np.array_equal(histogram_of(RunFolder(tmp_path))[0], released[0])


# Its variants --------------------------------------------------------------------------------


def test_the_histogram_alone(configured: Any, loopback: Any, tmp_path: Path) -> None:
    config = configured(**{"ctcl.generator-training": False})
    made = privacy_plan(config)
    assert [phase.name for phase in made.phases] == [TOPICS]
    assert made.epsilon == pytest.approx(500, rel=1e-3)  # it has the whole budget
    summary, grid = run(config, loopback, tmp_path)
    assert asked(grid) == Counter({"query.hello": 3, "query.votes": 3})
    assert len(charges(tmp_path)) == 1 and "parameters" not in summary
    assert (summary["rounds"], summary["rounds_planned"], summary["ended_early"]) == (0, 0, None)
    assert summary["bytes_up_per_user_round"] > 0 and summary["synthetic_samples"] > 0
    assert any("topics" in line for line in summary["verdict"]["sentences"])
    start = Path(config.models.conditional)
    ours, theirs = (load_file(at / "model.safetensors") for at in (tmp_path / "model", start))
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_the_training_alone_writes_of_all_topics_alike(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    config = configured(**{"ctcl.histogram": False})
    assert [phase.name for phase in privacy_plan(config).phases] == [ROUNDS]
    summary, grid = run(config, loopback, tmp_path)
    assert "query.votes" not in asked(grid) and len(charges(tmp_path)) == 2
    assert all(one["share"] == 0.2 for one in summary["topics"]["largest"])


def test_without_conditions_it_is_private_fine_tuning(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    config = configured(**{"ctcl.histogram": False, "ctcl.condition": "none"})
    summary, grid = run(config, loopback, tmp_path)
    assert asked(grid)["train"] == 6 and "query.votes" not in asked(grid)
    rows = read_jsonl(tmp_path / "synthetic.jsonl")
    assert rows and all(set(row) == {"text"} for row in rows)
    assert not (tmp_path / "topics").exists() and "topics" not in summary


RESAMPLING = {"ctcl.condition": "none", "ctcl.resample-pool": 60, "ctcl.topic-count": 4}


def test_text_without_conditions_is_resampled_by_its_own_clusters(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    """CTCL's baseline "+ Resample": the histogram is asked after the rounds, of the text."""
    controls = "no-private-step,histogram-only,training-only,noise"
    config = configured(**RESAMPLING, benchmark=True, **{"evaluation.controls": controls})
    summary, grid = run(config, loopback, tmp_path)
    order = [one for message in grid.sent if (one := message.metadata.message_type) in HANDLERS]
    asked_of = list(dict.fromkeys(one for one in order if one != "query.hello"))
    assert asked_of == ["train", "query.votes"] and len(charges(tmp_path)) == 3
    sent = [message for message in grid.sent if message.metadata.message_type == "train"]
    assert not any("topic-rows" in str(message.content) for message in sent)
    assert summary["epsilon"] <= 500 and "topics" in summary["privacy"]

    pool = [row["text"] for row in read_jsonl(tmp_path / "synthetic-pool.jsonl")]
    rows, topics = read_jsonl(tmp_path / "synthetic.jsonl"), load_topics(tmp_path / "topics")
    assert len(pool) == 60 and len(rows) == summary["synthetic_samples"] == SAMPLES
    assert {row["text"] for row in rows} <= set(pool)
    counts, noise_std = histogram_of(RunFolder(tmp_path))
    wanted = largest_remainder(proportions(counts, noise_std, 0.0), SAMPLES)
    drawn = Counter(row["topic"] for row in rows)
    assert [drawn[topic] for topic in range(len(topics))] == wanted.tolist()
    clusters = topics.assign(NgramEmbedder(32).embed([row["text"] for row in rows]))
    assert clusters.tolist() == [row["topic"] for row in rows]
    assert all(row["keywords"] == list(topics.keywords[row["topic"]]) for row in rows)

    # What it is compared with: the text as it comes, of the trained and the untrained generator.
    asis = [row["text"] for row in read_jsonl(tmp_path / "training_only.jsonl")]
    assert asis == pool[:SAMPLES] and set(asis) != {row["text"] for row in rows}
    before = [row["text"] for row in read_jsonl(tmp_path / "no_private_step.jsonl")]
    assert before and before != asis
    assert len(read_jsonl(tmp_path / "control.jsonl")) == SAMPLES
    assert read_jsonl(tmp_path / "control-pool.jsonl")
    assert not (tmp_path / "histogram_only.jsonl").exists()  # its clusters would know the training
    assert "true_topics" in summary["benchmark"]

    (tmp_path / "summary.json").unlink()
    (tmp_path / "synthetic.jsonl").unlink()
    _, resumed = run(config, loopback, tmp_path)
    assert not asked(resumed)["query.votes"] and len(charges(tmp_path)) == 3
    assert read_jsonl(tmp_path / "synthetic.jsonl") == rows
    more = generated(tmp_path, "--samples", 5)
    assert more.exit_code == 1 and "ctcl.resample-pool = 60" in more.output


def test_a_trusted_aggregator_correlates_the_rounds(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    config = configured(
        **{"training.noise": "aggregator", "ftrl.mechanism": "banded", "ftrl.min-separation": 2}
    )
    summary, _ = run(config, loopback, tmp_path)
    assert summary["threat_model"].startswith("trusted aggregator")
    assert summary["rounds"] == 2 and len(charges(tmp_path)) == 3
    assert statement(config).epsilon <= 500


def test_one_node_with_sampling_as_in_the_paper(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    """Records as users, sampling, one plain step, AdamW, and a histogram with noise of its own."""
    config = configured(
        **{
            "nodes": 1, "rounds": 3, "sampler": "poisson", "sampling-rate": 0.5, "epsilon": 20.0,
            "data.samples-per-user": 1, "training.learning-rate": 1.0, "training.batch-size": 1,
            "training.server-optimizer": "adamw", "training.server-learning-rate": 0.01,
            "ctcl.histogram-multiplier": 10.0,
        }
    )  # fmt: skip
    made = privacy_plan(config)
    assert made[TOPICS].multiplier == 10.0 and made[TOPICS].rate == 1.0
    assert made.main.rate == 0.5 and made.epsilon <= 20.0
    summary, _ = run(config, loopback, tmp_path)
    assert summary["accountant"] == "pld" and len(charges(tmp_path)) == 4
    assert summary["rounds"] == 3 and summary["synthetic_samples"] > 0


def test_an_encoder_decoder_generator(
    configured: Any, loopback: Any, bart_folder: Path, tmp_path: Path
) -> None:
    """BART, as in the paper: trained on the nodes, copied where nothing is trained."""
    keys = {"models.conditional": str(bart_folder), "ctcl.max-source": 30}
    summary, grid = run(configured(**keys), loopback, tmp_path / "both")
    assert asked(grid)["train"] == 6 and summary["synthetic_samples"] > 0
    alone = configured(**keys, **{"ctcl.generator-training": False})
    summary, _ = run(alone, loopback, tmp_path / "alone")
    weights = [folder / "model.safetensors" for folder in (tmp_path / "alone/model", bart_folder)]
    assert weights[0].read_bytes() == weights[1].read_bytes() and summary["synthetic_samples"] > 0
    assert (tmp_path / "both" / "model" / "model.safetensors").read_bytes() != weights[
        1
    ].read_bytes()


def test_classes_are_counted_and_written(
    configured: Any, loopback: Any, shared: Path, tmp_path: Path
) -> None:
    for name in ("private", "public"):
        rows = read_jsonl(shared / f"{name}.jsonl")
        lines = [{**row, "mood": ("glad", "sad", "glad")[i % 3]} for i, row in enumerate(rows)]
        write_jsonl(tmp_path / f"{name}.jsonl", lines)
    config = configured(
        **{
            "data.path": str(tmp_path / "private.jsonl"),
            "data.public-path": str(tmp_path / "public.jsonl"),
            "data.label-column": "mood",
            "ctcl.labels": "glad, sad",
            "ctcl.topic-count": 2,
        }
    )
    summary, _ = run(config, loopback, tmp_path / "run")
    counts, _ = histogram_of(RunFolder(tmp_path / "run"))
    assert counts.shape == (4,)  # two classes of two topics
    rows = read_jsonl(tmp_path / "run" / "synthetic.jsonl")
    assert {row["label"] for row in rows} == {"glad", "sad"}
    glad = sum(row["label"] == "glad" for row in rows) / len(rows)
    assert glad == pytest.approx(2 / 3, abs=0.15)  # as of the users' texts
    assert summary["topics"]["count"] == 2
    more = generated(tmp_path / "run", "--samples", 12)
    assert more.exit_code == 0, more.output
    assert {"label", "topic"} <= set(read_jsonl(Path(more.stdout.strip()))[0])


# The benchmark -------------------------------------------------------------------------------


def test_a_benchmark_has_a_row_for_each_question(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    config = configured(**{"benchmark": True, "evaluation.learning-rates": "1e-2"})
    summary, _ = run(config, loopback, tmp_path)
    found = summary["benchmark"]
    rows = ["random_public", "no_private_step", "histogram_only", "training_only", "noise_answers"]
    assert {*rows, "synthetic", "private", "pretrained"} == set(found["accuracy"])
    assert {f"synthetic-{row}" for row in rows} <= set(found["accuracy_difference"])
    assert 0 <= found["true_topics"]["distance"] <= 1 and found["true_topics"]["kept"] <= 1
    assert (tmp_path / "topics.png").stat().st_size > 1000
    assert found["costs"]["client_cpu_seconds_per_user"] is not None
    assert found["costs"]["releases"] == 3
    shares = {name: by_topic(tmp_path / f"{name}.jsonl") for name in ("synthetic", *rows[2:4])}
    # Histogram only has the run's shares, training only equal ones (but for what is dropped).
    assert shares["training_only"].total() == pytest.approx(SAMPLES, abs=4)
    assert max(shares["training_only"].values()) <= SAMPLES / 5 + 1
    apart = shares["synthetic"] - shares["histogram_only"]
    assert apart.total() <= 4
    assert "noise in the place of both answers" in " ".join(found["verdict"])


def by_topic(path: Path) -> Counter[int]:
    return Counter(row["topic"] for row in read_jsonl(path))


# More text -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def finished(configured: Any, loopback: Any, place: Path, shared: Path) -> Path:
    """A run of all of these tests, whose private text is gone."""
    private, folder = place / "private.jsonl", place / "run"
    if not folder.exists():
        private.write_bytes((shared / "private.jsonl").read_bytes())
        config = configured(**{"data.path": str(private), "cache": str(place / "cache")})
        run(config, loopback, folder)
        private.unlink()
    return folder


def generated(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["generate", *map(str, arguments)])


def test_more_text_needs_nothing_but_the_run_folder(finished: Path, tmp_path: Path) -> None:
    ledger = (finished / "ledger.jsonl").read_bytes()

    result = generated(finished, "--samples", 30)
    assert result.exit_code == 0, result.output
    path = Path(result.stdout.strip().splitlines()[-1])
    rows = read_jsonl(path)
    assert path == finished / "generated-0-30.jsonl" and 0 < len(rows) <= 30
    assert set(rows[0]) == {"text", "topic", "keywords"}
    assert {row["text"] for row in rows}.isdisjoint(
        row["text"] for row in read_jsonl(finished / "synthetic.jsonl")
    )
    assert (finished / "ledger.jsonl").read_bytes() == ledger

    other = generated(finished, "--samples", 30, "--seed", 1, "--out", tmp_path / "other.jsonl")
    assert other.exit_code == 0 and read_jsonl(tmp_path / "other.jsonl") != rows
    assert carried(tmp_path / "other.jsonl") == carried(finished) != ""
    assert f"{tmp_path}/other.jsonl.privacy.md has the whole" in other.stderr.replace("\n", "")
    same = generated(finished, "--samples", 30, "--out", tmp_path / "same.jsonl")
    assert same.exit_code == 0 and read_jsonl(tmp_path / "same.jsonl") == rows
    again = generated(finished, "--samples", 30)
    assert again.exit_code == 1 and "is there already" in again.output
    left = [path.name for folder in (finished, tmp_path) for path in folder.glob(".*")]
    assert not any("generated" in name or "other" in name or "same" in name for name in left), left


def test_more_text_of_what_has_none_is_refused(
    configured: Any, finished: Path, tmp_path: Path
) -> None:
    empty = generated(tmp_path, "--samples", 5)
    assert empty.exit_code == 1 and "no config.toml" in empty.output
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.toml").write_text(to_toml(RunConfig.from_flat({"method": "pretext"})))
    refused = generated(other, "--samples", 5)
    assert refused.exit_code == 1 and "no round was released" in refused.output
    (other / "config.toml").write_text(to_toml(RunConfig.from_flat({"method": "dp-fedavg"})))
    refused = generated(other, "--samples", 5)
    assert refused.exit_code == 1 and "method = 'dp-fedavg'" in refused.output
    (other / "config.toml").write_text(to_toml(configured()))
    early = generated(other, "--samples", 5)
    assert early.exit_code == 1 and "privsyn run --resume" in early.output
    assert generated(finished, "--samples", 0).exit_code == 2


# Before the run ------------------------------------------------------------------------------


def test_topics_of_another_embedder_are_refused(
    configured: Any, loopback: Any, finished: Path, tmp_path: Path
) -> None:
    topics = str(finished / "topics")
    config = configured(**{"ctcl.topics": topics, "models.embedder": "ngram-64"})
    with pytest.raises(ConfigError, match=r"ctcl\.topics.*embedder"):
        run(config, loopback, tmp_path / "other")
    summary, _ = run(configured(**{"ctcl.topics": topics}), loopback, tmp_path / "same")
    assert summary["topics"]["count"] == 5


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ctcl.topics": ""}, r"ctcl\.topics = ''"),
        ({"ctcl.labels": "a, b"}, r"data\.label-column"),
        ({"ctcl.topic-words": 11}, r"ctcl\.topic-words.*10"),
        ({"ctcl.condition": "none"}, r"ctcl\.histogram"),
        ({"ctcl.histogram": False, "ctcl.generator-training": False}, r"asks no user"),
        ({"ctcl.resample-pool": 60}, r"ctcl\.condition = 'none'"),
        ({**RESAMPLING, "ctcl.histogram": False}, r"histogram = true"),
        ({**RESAMPLING, "ctcl.topics": "there"}, r"leave topics out"),
        ({**RESAMPLING, "ctcl.topic-count": 61}, r"resample-pool = 60.*topic-count = 61"),
        ({"training.public-steps": 3}, r"training\.public-steps"),
    ],
)
def test_keys_that_exclude_each_other(configured: Any, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        configured(**values)


def test_a_condition_that_leaves_no_room_is_told_before_anybody_is_asked(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"ctcl\.max-source = 190.*at most 200"):
        run(configured(**{"ctcl.max-source": 190}), loopback, tmp_path)


def test_shipped_configurations() -> None:
    demo, fast = load_config(CONFIGS / "ctcl-demo.toml"), load_config(CONFIGS / "ctcl-test.toml")
    assert demo.epsilon == 7.58 and privacy_plan(demo).epsilon <= 7.58
    # CTCL.md, section 10: a tenth of mu^2 for the histogram, and eight rounds.
    assert privacy_plan(demo)[TOPICS].multiplier == pytest.approx(2.08, rel=0.5)
    like = load_config(CONFIGS / "docstrings-demo.toml")
    assert demo.data == like.data and demo.expand.samples == like.expand.samples
    assert demo.evaluation == like.evaluation and demo.models.downstream == "tiny"
    assert fast.ctcl.topic_count == 8 and not fast.benchmark
