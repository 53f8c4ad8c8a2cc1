"""What recipes say of their work is what their algorithms and fine-tunings do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps.node.simulated import Shard
from privsyn_flower.common.arrays import F32
from privsyn_flower.config import RunConfig
from privsyn_flower.evaluation.public import tuning_of
from privsyn_flower.server_apps.methods import recipe_of, stages
from privsyn_flower.server_apps.methods.stages import Task, fine_tunings, models_to_make, tokens_of
from privsyn_flower.strategies.pe.strategy import PrivateEvolution
from privsyn_flower.strategies.pretext.strategy import PrEText
from privsyn_flower.text.embedders import KnownRows
from privsyn_flower.text.models import lstm
from privsyn_flower.text.models.gguf import SMOLLM2, imported_folder
from privsyn_flower.text.tiny.assets import recipe, tuning_recipe


class Counting:
    """An embedder and an infiller that count texts; no two variations are equal."""

    fingerprint, dimension = "counting", 8

    def __init__(self) -> None:
        self.embedded = self.varied = 0

    def embed(self, texts: Sequence[str]) -> F32:
        self.embedded += len(texts)
        return np.eye(self.dimension, dtype=np.float32)[np.arange(len(texts)) % self.dimension]

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        found = [f"variation {self.varied + i}" for i in range(len(texts))]
        self.varied += len(texts)
        return found


def configured(**settings: Any) -> RunConfig:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return RunConfig.from_flat({key.replace("_", "-"): value for key, value in given.items()})


def times(tasks: Sequence[Task], kind: str) -> int:
    return sum(task.items * task.times for task in tasks if task.kind == kind)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pretext", {"lookahead": 1}),
        ("pretext", {"lookahead": 4}),
        ("pe", {"lookahead": 1}),
        ("pe", {"lookahead": 4}),
        ("pe", {"lookahead": 1, "copies": 5, "selection": "rank"}),
        ("pe", {"lookahead": 2, "copies": 3, "selection": "rank"}),
    ],
)
def test_an_evolution_varies_and_embeds_as_much(
    method: str, options: dict[str, Any], rounds: int
) -> None:
    options = {"population": 12, "mask-steps": 1, "mask-passes": 1, "threshold": 0.0, **options}
    settings = {f"{method}.{key}": value for key, value in options.items()}
    config = RunConfig.from_flat({"method": method, "rounds": rounds, **settings})
    count, kind = Counting(), {"pretext": PrEText, "pe": PrivateEvolution}[method]
    strategy: Any = kind(
        [f"text {i}" for i in range(99)],
        embedder=KnownRows(count, [], np.zeros((0, 8), np.float32)),
        variation=count,
        rounds=rounds,
        config=config.evolution,
    )
    for rnd in range(1, rounds + 1):
        asked = strategy.ask(rnd).length
        strategy.learn(rnd, np.arange(1.0, asked + 1), 1.0)
    own = [task for task in recipe_of(config).work(config) if not task.nodes]
    assert times(own, "mask-filling") == count.varied
    assert times(own, "embedding") == count.embedded
    assert recipe_of(config).length(config) == asked


def test_what_a_generator_writes_for_private_evolution() -> None:
    config = configured(
        method="pe", pe__variation="rewrite", pe__initial="model", pe__prompt="Write a review.",
        pe__copies=3, sft__epochs=2, sft__micro_batch_size=4,
    )  # fmt: skip
    tasks = {task.what: task for task in recipe_of(config).work(config)}
    first = tasks["writing the first candidates"]
    assert (first.stage, first.items) == ("models", 3 * config.pe.population)
    survivors = tasks["writing survivors"]
    assert (survivors.items, survivors.times) == (2 * config.pe.population, config.rounds - 1)
    tuned = tasks["fine-tuning the generator on the seeds"]
    assert (tuned.kind, tuned.items) == ("imitation", 2 * config.pe.population)
    assert not any(task.kind == "mask-filling" for task in tasks.values())


def test_rows_without_rounds_have_work() -> None:
    base = {"data__users": 50, "data__samples_per_user": 4, "benchmark": True}
    expected = {"public-only": 0, "expand-only": 70, "expand-private": 70, "dp-prompt": 200}
    for method, written in expected.items():
        config = configured(method=method, expand__samples=70, **base)
        tasks = recipe_of(config).work(config)
        assert times([t for t in tasks if t.stage == "expansion"], "generation") == written
        assert {task.stage for task in tasks} <= {"models", "expansion", "benchmark"}
        assert times([t for t in tasks if t.stage == "benchmark"], "embedding") == 200
        assert not any(task.nodes for task in tasks)


def test_fine_tunings_take_the_steps_of_their_texts() -> None:
    base: dict[str, Any] = {
        "benchmark": True, "data__users": 50, "data__samples_per_user": 4,
        "data__public_pool": 640, "evaluation__learning_rates": "1e-4",
    }  # fmt: skip
    by_steps = fine_tunings(configured(**base), [70, 70])
    assert [(task.items, task.times) for task in by_steps] == [(200 * 32, 5)]
    base["evaluation__controls"] = "random-public"  # not its minority
    by_steps = fine_tunings(configured(**base), [70, 70])
    assert [(task.items, task.times) for task in by_steps] == [(200 * 32, 4)]
    config = configured(**base, evaluation__epochs=3, evaluation__micro_batch_size=8)
    by_epochs = fine_tunings(config, [70, 70])
    assert [(task.items, task.times) for task in by_epochs] == [(1920, 1), (600, 1), (210, 2)]
    steps = tuning_of(config).steps_of(640)
    assert steps == by_epochs[0].items // config.evaluation.batch_size
    config = configured(
        **base, evaluation__start="public", evaluation__public_epochs=2,
        evaluation__public_batch_size=16,
    )  # fmt: skip
    start, others = fine_tunings(config, [70])
    assert start.items == 2 * 640
    assert others.times == 2, "the model of public text is measured as it is"
    config = configured(
        **base, evaluation__start="converged", evaluation__public_steps=900,
        data__public_validation=30,
    )  # fmt: skip
    start, looks, others = fine_tunings(config, [70])
    assert start.items == 900 * 32 and "at most" in start.what
    assert (looks.kind, looks.items, looks.times) == ("scoring", 30, 1 + 900 // 50)
    assert others.times == 3, "(a) goes on from the start as the others do"


def test_models_to_make_are_shipped_tuned_or_trained() -> None:
    kinds = {"generator", "infiller"}
    assert models_to_make(RunConfig(), kinds) == []
    files = {"data__source": "files", "data__path": "users.jsonl", "models__train_steps": 9}
    tuned = models_to_make(configured(**files), kinds)
    assert [task.what.split(",")[0] for task in tuned] == [
        "tuning the tiny generator", "tuning the tiny infiller"
    ]  # fmt: skip
    steps = tuning_recipe("generator", 9)
    assert steps.steps == 9 and tuned[0].items == 9 * (steps.batch_tokens // 64)
    private = configured(data__private_packages="numpy", data__public_packages="stdlib",
                         data__minority_packages="")  # fmt: skip
    trained = models_to_make(private, {"generator"})
    assert [task.model for task in trained] == ["downstream", "generator"]
    assert all(task.what.startswith("training the tiny") for task in trained)
    made = recipe("generator")
    assert trained[1].items == made.steps * (made.batch_tokens // 64)
    assert models_to_make(private, set()) == [], "what is not loaded is not made"


def test_a_packaged_model_is_imported_once(tmp_path: Path) -> None:
    kinds = {"generator", "downstream"}
    own = {"models__generator": "smollm2", "cache": str(tmp_path)}
    config = configured(**own)
    assert config.expand.samples == 500, "a CPU writes them within minutes"
    (task,) = models_to_make(config, kinds)
    assert (task.what, task.seconds > 0, task.items) == ("importing smollm2", True, 1)
    server = {"generation__backend": "openai", "generation__base_url": "http://127.0.0.1:1/v1"}
    assert models_to_make(configured(**own, **server), kinds) == []
    both = configured(**own, models__downstream="smollm2")
    assert len(models_to_make(both, kinds)) == 1, "one folder for both keys"
    imported_folder(SMOLLM2.name, SMOLLM2.sha256, tmp_path).mkdir(parents=True)
    assert models_to_make(config, kinds) == []
    taught = configured(method="ctcl", models__conditional="smollm2", cache=str(tmp_path))
    (task,) = models_to_make(taught, {"conditional"})
    assert task.what == "tuning the smollm2 conditional, unless it is in the cache"


@pytest.mark.parametrize(
    ("settings", "sequences"),
    [
        ({}, 50 * 4),
        # Sampling is hidden from the server by equal work: everyone who is asked trains.
        ({"sampler": "poisson", "sampling_rate": 0.1}, 50 * 4),
        ({"sampler": "fixed", "cohort_nodes": 3, "nodes": 6}, 25 * 4),
        # A central node trains those who were sampled.
        ({"sampler": "poisson", "sampling_rate": 0.1, "nodes": 1, "aggregation": "plain"}, 5 * 4),
        ({"nodes": 1, "aggregation": "plain"}, 50 * 4),
    ],
)
@pytest.mark.parametrize("method", ["dp-fedavg", "ctcl"])
def test_who_trains_on_the_nodes(method: str, settings: dict[str, Any], sequences: int) -> None:
    base = {"method": method, "data__users": 50, "data__samples_per_user": 4, "rounds": 3}
    config = configured(**base, **settings)
    [task] = [task for task in recipe_of(config).work(config) if "local steps" in task.what]
    assert (task.items, task.times, task.nodes) == (sequences, 3, True)
    central = Shard(config, 0, config.nodes).central
    assert central == (config.aggregation == "plain"), "the nodes say the same of themselves"


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"data__source": "chats", "data__sample_words": 12}, 16),
        ({"data__source": "chats", "data__sample_words": 90}, 64),
        ({"data__source": "files", "data__path": "/u.jsonl", "data__sample_words": 12}, 64),
        (
            {"data__source": "files", "data__path": "/u.jsonl", "data__sample_words": 12,
             "data__chunk": True}, 16,
        ),
    ],
)  # fmt: skip
def test_texts_that_are_cut_fill_a_part_of_a_sequence(
    settings: dict[str, Any], tokens: int
) -> None:
    config = configured(method="dp-fedavg", data__users=50, data__samples_per_user=4, **settings)
    [task] = [task for task in recipe_of(config).work(config) if "local steps" in task.what]
    assert task.tokens == tokens and config.evaluation.sequence_length == 64
    measured = stages.scoring(config, "evaluation", 2, 4 * 64)
    assert (measured.items, measured.tokens) == (50 * 2 * 4, tokens)
    capped = stages.scoring(config, "evaluation", 2, 64)
    assert capped.items == 50 * 2 * (64 // tokens), "as many tokens, in shorter sequences"


def test_words_are_tokens() -> None:
    assert tokens_of(48) == 64 and tokens_of(48, 60) == 60


def test_the_lstms_training_is_that_of_its_file() -> None:
    assert (stages.LSTM_STEPS, stages.LSTM_LONGEST) == (lstm.STEPS, lstm.LONGEST)
