"""What a classifier that nodes train needs: refused before work starts, each naming its key."""

from __future__ import annotations

from typing import Any

import pytest

from privsyn_flower.config import ConfigError, RunConfig

GOOD: dict[str, Any] = {
    "method": "dp-fedavg",
    "training.task": "classification",
    "training.labels": "nature, maths",
    "data.source": "files",
    "data.path": "users.jsonl",
    "data.label-column": "label",
}


def test_classes_are_the_training_s() -> None:
    config = RunConfig.from_flat(GOOD)
    assert config.classes == ["nature", "maths"] and config.labels[0] == "training.labels"
    assert not RunConfig.from_flat({"method": "dp-fedavg"}).classes
    measured = {"benchmark": True, "evaluation.task": "classification"}
    assert RunConfig.from_flat(
        {**GOOD, "method": "dp-ftrl", "training.noise": "aggregator"} | measured
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"training.labels": ""}, "training.labels = ''"),
        ({"training.labels": "nature"}, "at least 2 distinct classes"),
        ({"training.labels": "nature,nature"}, "at least 2 distinct classes"),
        ({"training.task": "next-token"}, "training.labels = 'nature, maths'"),
        ({"training.task": "regression"}, "training.task = 'regression'"),
        ({"data.label-column": ""}, "data.label-column = ''"),
        ({"data.source": "chats", "data.path": ""}, "data.source = 'chats'"),
        ({"data.source": "hub:x", "data.path": "", "data.label-column": ""}, "data.label-column"),
        ({"method": "ctcl"}, "set method = 'dp-fedavg' or 'dp-ftrl'"),
        ({"method": "pretext"}, "keys of training belong to method"),
        ({"models.downstream": "lstm"}, "models.downstream = 'lstm'"),
        ({"proximity.filter": True, "data.public-path": "p.jsonl"}, "proximity.filter = true"),
        ({"training.public-steps": 5}, "training.public-steps = 5"),
        ({"training.evaluate": True}, "training.evaluate = True"),
        ({"training.evaluate-rounds": "0,2"}, "training.evaluate-rounds = '0,2'"),
        ({"benchmark": True}, "evaluation.task = 'next-token'"),
        ({"evaluation.task": "classification", "training.labels": ""}, "training.labels"),
        ({"data.canaries": 1, "benchmark": True}, "training.labels"),
    ],
)
def test_what_does_not_go_together_names_its_key(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig.from_flat({**GOOD, **change})
    assert told in str(error.value)


def test_other_methods_and_tasks_have_no_classes_of_a_training() -> None:
    with pytest.raises(ConfigError, match="needs labels"):
        RunConfig.from_flat({"method": "dp-fedavg", "evaluation.task": "classification"})
    with pytest.raises(ConfigError, match=r"comes before ctcl.clustering = 'hdbscan'"):
        RunConfig.from_flat({"method": "ctcl", "ctcl.umap-components": 5})
