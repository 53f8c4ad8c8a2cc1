"""What keys of different tables need of each other: an error names key, value and bound."""

from __future__ import annotations

from typing import Any

import pytest

from privsyn_flower.config import ConfigError, RunConfig

Rule = tuple[dict[str, Any], list[str] | str]  # keys on top of good ones, and what is told of them

ANY: list[Rule] = [
    ({"epsilom": 1.0}, ["epsilom", "did you mean 'epsilon'"]),
    ({"pretext.populaton": 3}, ["pretext.population"]),
    ({"epsilon": -1.0}, ["epsilon = -1.0", "greater than 0"]),
    ({"delta": 1.0}, ["delta = 1.0", "less than 1"]),
    ({"rounds": "ten"}, ["rounds = 'ten'", "integer"]),
    ({"rounds": 2.5}, ["rounds = 2.5"]),
    ({"method": "popri-x"}, ["method"]),
    ({"pretext.mask-fraction": 1.5}, ["pretext.mask-fraction = 1.5"]),
    ({"colluding-weight": 0.2}, ["colluding-weight = 0.2", "min-surviving-weight = 0.85"]),
    ({"nodes": 9, "data.users": 5}, ["nodes = 9", "data.users = 5"]),
    ({"benchmark": "yes"}, ["benchmark = 'yes'"]),
    ({"data.partition": "dates"}, ["data.partition = 'dates'", "'date'"]),
    ({"data.chunk": 8}, ["data.chunk = 8", "boolean"]),
    (
        {"data.near-duplicates": "remove"},
        ["data.near-duplicates = 'remove'", "benchmark = true"],
    ),
    ({"data.partition": "date"}, ["data.partition = 'date'", "benchmark = true"]),
    ({"data.min-samples-per-user": 2}, ["data.min-samples-per-user = 2", "benchmark = true"]),
    ({"training.noise": "aggregator"}, ["keys of training belong to", "'pretext'"]),
    ({"method": "dp-fedavg", "ftrl.bands": 4}, ["keys of ftrl belong to", "'dp-fedavg'"]),
    ({"method": "pretext", "evaluation.rival": "pretext"}, "evaluation.rival = 'pretext'"),
    ({"method": "dp-fedavg", "evaluation.task": "classification"}, "needs labels"),
    ({"method": "ctcl", "ctcl.umap-components": 5}, "comes before ctcl.clustering = 'hdbscan'"),
]

POPRI = {"method": "popri", "data.label-column": "label"}
SMALL_POPRI = {**POPRI, "data.public-validation": 1}
OF_POPRI: list[Rule] = [
    ({"popri.rejected-rank": 9}, ["popri.rejected-rank = 9", "popri.responses = 8"]),
    ({"popri.score": "nearest", "popri.dimension": 8}, ["popri.score = 'nearest'"]),
    ({"popri.examples": 0}, ["popri.examples = 0", "popri.instruction"]),
    ({"popri.label-smoothing": 0.5}, ["popri.label-smoothing = 0.5", "less than 0.5"]),
    ({"popri.checkpoint": "private"}, ["popri.checkpoint = 'private'", "benchmark = true"]),
    ({"popri.checkpoint": "public"}, ["data.public-validation = 1", "popri.checkpoint"]),
    ({"popri.select": "public"}, ["data.public-validation = 1", "popri.select"]),
    ({"popri.select": "private"}, ["popri.select = 'private'", "checkpoint = 'private'"]),
    (
        {"popri.labels": "a, b", "data.label-column": "", "data.source": "hub:x"},
        ["data.label-column"],
    ),
    ({"generation.backend": "openai"}, ["generation.backend = 'openai'", "'vllm'", "adapters"]),
]

CLASSES = {**POPRI, "popri.labels": "a, b", "popri.examples": 0, "popri.instruction": "{label}:"}
MEASURED = {**CLASSES, "evaluation.task": "classification"}
OF_CLASSES: list[Rule] = [
    ({"popri.labels": ""}, ["popri.labels = ''", "method = 'popri'"]),
    ({"method": "pretext"}, ["method = 'pretext'", "classification"]),
    ({"popri.labels": "a,"}, ["popri.labels = 'a,'", "at least 2"]),
    ({"evaluation.rival": "pretext"}, ["evaluation.rival = 'pretext'", "without classes"]),
    ({"popri.select": "federated"}, ["popri.select = 'federated'", "'classification'"]),
]

RIVAL = {**CLASSES, "evaluation.rival": "pretext"}
OF_A_RIVAL: list[Rule] = [  # it would fail after all rounds are paid: public text is POPri's
    ({"pretext.labels": "a, b"}, "evaluation.rival = 'pretext' with pretext.labels"),
]

FTRL = {"method": "dp-ftrl", "training.noise": "aggregator"}
NODES = {"training.noise": "nodes"}
OF_TRAINING: list[Rule] = [
    (NODES | {"ftrl.mechanism": "tree"}, ["mechanism = 'tree'", "'banded", "'aggregator' if"]),
    (NODES | {"ftrl.mechanism": "independent"}, ["mechanism = 'independent'", "'blt'"]),
    (
        NODES | {"ftrl.schedule": "nodes", "ftrl.min-separation": 2},
        ["ftrl.schedule = 'nodes'", "'users'", "trusted"],
    ),
    (NODES | {"training.adaptive-clipping": True}, ["adaptive-clipping = true", "set false"]),
    (
        NODES | {"ftrl.bands": 21},
        ["ftrl.bands = 21", "min-separation = 1", "20 x min-separation"],
    ),
    (
        NODES | {"sampler": "poisson", "sampling-rate": 0.5},
        ["sampler = 'poisson'", "min-separation", "'full'"],
    ),
    ({"ftrl.min-separation": 9}, ["ftrl.min-separation = 9", "rounds = 8"]),
    (
        {"ftrl.min-separation": 2, "ftrl.max-participations": 3},
        ["ftrl.max-participations = 3", "rounds = 8"],
    ),
    ({"ftrl.restart-every": 4}, ["ftrl.restart-every = 4", "'tree-restart'", "'blt'"]),
    ({"ftrl.completion": True}, ["ftrl.completion = true", "'tree-restart'"]),
    ({"ftrl.mechanism": "tree-restart"}, ["ftrl.restart-every = 0", "needs restart-every"]),
    ({"ftrl.mechanism": "bands"}, ["ftrl.mechanism = 'bands'", "'banded'"]),
    ({"training.layers": "*.mlp.*"}, ["training.layers = '*.mlp.*'", "'full'"]),
    ({"training.parameters": "layers", "training.layers": " , "}, ["' , '", "'layers'"]),
    ({"training.optimizer": "adamw", "training.momentum": 0.9}, ["momentum = 0.9", "'adamw'"]),
    ({"training.adaptive-clipping": True}, ["adaptive-clipping", "training.noise = 'nodes'"]),
    ({"training.clip-norm": 0.0}, ["training.clip-norm = 0.0", "greater than 0"]),
    ({"training.target-quantile": 1.0}, ["training.target-quantile = 1.0", "less than 1"]),
    ({"training.lora-rank": 0}, ["training.lora-rank = 0"]),
    ({"sampler": "poisson", "sampling-rate": 0.5}, ["sampler = 'poisson'", "'aggregator'"]),
    ({"sampler": "fixed", "cohort-nodes": 4}, ["sampler = 'fixed'", "min-separation"]),
    ({"simulation-seeded-noise": True}, ["simulation-seeded-noise", "'aggregator'"]),
    ({"evaluation.rival": "pretext"}, ["evaluation.rival = 'pretext'", "'dp-ftrl'"]),
    ({"evaluation.task": "classification"}, ["'classification'", "'dp-ftrl'"]),
]

CLASSIFIER: dict[str, Any] = {
    "method": "dp-fedavg",
    "training.task": "classification",
    "training.labels": "nature, maths",
    "data.source": "files",
    "data.path": "users.jsonl",
    "data.label-column": "label",
}
OF_A_CLASSIFIER: list[Rule] = [
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
]

PUBLIC = {"evaluation.start": "public"}
CONVERGED = {"evaluation.start": "converged", "evaluation.public-steps": 5}
CHOSEN = {"evaluation.checkpoint": "development", "evaluation.epochs": 2}
ADAPTERS = {"evaluation.adapter-rank": 4}
TRAINED = {"method": "dp-fedavg", "training.public-steps": 3}
OF_EVALUATION: list[Rule] = [
    (PUBLIC, "set exactly one of them above 0"),
    ({**PUBLIC, "evaluation.public-steps": 5, "evaluation.public-epochs": 2}, "set exactly one"),
    ({"evaluation.public-steps": 5}, "belong to evaluation.start = 'public'"),
    ({"evaluation.public-batch-size": 5}, "public-batch-size = 5 belong"),
    ({"evaluation.checkpoint": "development"}, "with epochs = 0"),
    ({**CHOSEN, "data.development-users": 0}, "development-users = 0"),
    (
        {**CHOSEN, "evaluation.checkpoint": "public", "data.public-validation": 0},
        "public-validation = 0",
    ),
    ({**ADAPTERS, **CONVERGED}, "adapter-rank = 4 with start = 'converged'"),
    ({**ADAPTERS, **PUBLIC, "evaluation.public-epochs": 1}, "rank = 4 with start = 'public'"),
    ({**ADAPTERS, "method": "dp-fedavg"}, "without training or evaluation on the nodes"),
    (
        {"evaluation.special-tokens": "bos-eos", "method": "dp-fedavg", "proximity.filter": True},
        "special-tokens = 'bos-eos' is for next tokens without",
    ),
    ({"evaluation.start": "converged"}, "set public-steps to the most steps"),
    ({**CONVERGED, "data.public-validation": 0}, "with data.public-validation = 0"),
    ({**CONVERGED, **TRAINED}, "set training.public-steps = 0"),
    ({**PUBLIC, "method": "dp-fedavg"}, "training.public-steps = 0"),
    ({**PUBLIC, **TRAINED, "evaluation.public-steps": 3}, "a training has training.public-steps"),
]


@pytest.mark.parametrize(
    ("base", "values", "words"),
    [
        (base, *rule)
        for base, rules in (
            ({}, ANY + OF_EVALUATION),
            (SMALL_POPRI, OF_POPRI),
            (MEASURED, OF_CLASSES),
            (RIVAL, OF_A_RIVAL),
            (FTRL, OF_TRAINING),
            (CLASSIFIER, OF_A_CLASSIFIER),
        )
        for rule in rules
    ],
)
def test_a_rule_names_its_keys(
    base: dict[str, Any], values: dict[str, Any], words: list[str] | str
) -> None:
    RunConfig.from_flat(base)
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_flat({**base, **values})
    told = str(caught.value)
    for word in [words] if isinstance(words, str) else words:
        assert word in told
    # A sentence or two, and not the table or the whole configuration that pydantic was given.
    assert len(told) < 300 and "sample-words" not in told and "lora-alpha" not in told


def test_who_adds_the_noise() -> None:
    nodes = RunConfig.from_flat({"method": "dp-fedavg"})
    central = RunConfig.from_flat({"method": "dp-fedavg", "training.noise": "aggregator"})
    assert (nodes.trains, nodes.trusts_aggregator) == (True, False)
    assert (central.trains, central.trusts_aggregator) == (True, True)
    assert RunConfig.from_flat(FTRL).trusts_aggregator and not RunConfig().trains
    own = {"method": "dp-ftrl", "simulation-seeded-noise": True}  # noise of the nodes has a seed
    assert not RunConfig.from_flat(own).trusts_aggregator


def test_classes_are_the_training_s() -> None:
    config = RunConfig.from_flat(CLASSIFIER)
    assert config.classes == ["nature", "maths"] and config.labels[0] == "training.labels"
    assert not RunConfig.from_flat({"method": "dp-fedavg"}).classes
    measured = {"benchmark": True, "evaluation.task": "classification"}
    assert RunConfig.from_flat(
        {**CLASSIFIER, "method": "dp-ftrl", "training.noise": "aggregator"} | measured
    )


def test_an_evaluation_at_full_size():
    """PrE-Text's, section 4.1, and the start of a training."""
    keys = {"start": "public", "public-epochs": 20, "public-batch-size": 256, "epochs": 20}
    flat = {f"evaluation.{key}": value for key, value in keys.items()}
    config = RunConfig.from_flat({**flat, "evaluation.checkpoint": "public"})
    assert config.evaluation.public_batch_size == 256
    training = {"method": "dp-fedavg", "training.public-steps": 3, "evaluation.start": "public"}
    assert RunConfig.from_flat(training).evaluation.start == "public"
