"""Wrong keys and values are errors that name the key, the value and the bound."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import get_args

import pytest

from privsyn_flower.config import (
    ConfigError,
    RunConfig,
    flat_defaults,
    flatten,
    load_config,
    parse_override,
    to_toml,
    without_benchmark,
)
from privsyn_flower.config.changes import CHANGEABLE, FIXED, changeable, entry_of, stale
from privsyn_flower.config.schema import METHODS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("values", "words"),
    [
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
    ],
)
def test_errors_name_key_and_bound(values: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_flat(values)
    for word in words:
        assert word in str(caught.value)


def test_a_benchmark_may_choose_by_private_text() -> None:
    values = {"data.near-duplicates": "remove", "data.min-samples-per-user": 2}
    config = RunConfig.from_flat({**values, "data.partition": "date", "benchmark": True})
    assert all(key in config.data.chosen_by_text for key in (*values, "data.partition"))
    assert RunConfig().data.chosen_by_text == ""


POPRI = {"method": "popri", "data.label-column": "label"}
CLASSES = {**POPRI, "popri.labels": "a, b", "popri.examples": 0, "popri.instruction": "{label}:"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
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
    ],
)
def test_popri_rules_name_the_keys(values: dict, words: list[str]) -> None:
    base = {**POPRI, "data.public-validation": 1}
    RunConfig.from_flat(base)
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_flat({**base, **values})
    for word in words:
        assert word in str(caught.value)
    # One sentence or two, and not the table or the whole configuration that pydantic was given.
    assert len(str(caught.value)) < 300
    assert "sample-words" not in str(caught.value) and "lora" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"popri.labels": ""}, ["popri.labels = ''", "method = 'popri'"]),
        ({"method": "pretext"}, ["method = 'pretext'", "classification"]),
        ({"popri.labels": "a,"}, ["popri.labels = 'a,'", "at least 2"]),
        ({"evaluation.rival": "pretext"}, ["evaluation.rival = 'pretext'", "without classes"]),
        ({"popri.select": "federated"}, ["popri.select = 'federated'", "'classification'"]),
    ],
)
def test_classification_rules_name_the_keys(values: dict, words: list[str]) -> None:
    base = {**CLASSES, "evaluation.task": "classification"}
    assert RunConfig.from_flat(base).evaluation.task == "classification"
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_flat({**base, **values})
    for word in words:
        assert word in str(caught.value)


def test_a_method_is_not_its_own_rival() -> None:
    assert RunConfig.from_flat({**POPRI, "evaluation.rival": "pretext"})
    with pytest.raises(ConfigError, match=r"evaluation\.rival = 'pretext'"):
        RunConfig.from_flat({"method": "pretext", "evaluation.rival": "pretext"})


def test_a_rival_has_no_classes() -> None:
    """Public text is sorted by POPri's, so the rival would fail after all rounds are paid."""
    own = {**CLASSES, "evaluation.rival": "pretext"}
    assert RunConfig.from_flat(own).evaluation.rival == "pretext"
    with pytest.raises(ConfigError, match=r"evaluation\.rival = 'pretext' with pretext\.labels"):
        RunConfig.from_flat({**own, "pretext.labels": "a, b"})


FTRL = {"method": "dp-ftrl", "training.noise": "aggregator"}
NODES = {"training.noise": "nodes"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
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
    ],
)
def test_training_rules_name_the_keys(values: dict, words: list[str]) -> None:
    RunConfig.from_flat(FTRL)
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_flat({**FTRL, **values})
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 300 and "sample-words" not in str(caught.value)


def test_tables_of_other_methods_are_refused() -> None:
    fedavg = {"method": "dp-fedavg", "training.noise": "aggregator"}
    with pytest.raises(ConfigError, match=r"keys of ftrl .* 'dp-fedavg'"):
        RunConfig.from_flat({**fedavg, "ftrl.bands": 4})
    with pytest.raises(ConfigError, match=r"keys of training .* 'pretext'"):
        RunConfig.from_flat({"training.noise": "aggregator"})


def test_who_adds_the_noise() -> None:
    nodes = RunConfig.from_flat({"method": "dp-fedavg"})
    central = RunConfig.from_flat({"method": "dp-fedavg", "training.noise": "aggregator"})
    assert (nodes.trains, nodes.trusts_aggregator) == (True, False)
    assert (central.trains, central.trusts_aggregator) == (True, True)
    assert RunConfig.from_flat(FTRL).trusts_aggregator and not RunConfig().trains
    own = {"method": "dp-ftrl", "simulation-seeded-noise": True}  # noise of the nodes has a seed
    assert not RunConfig.from_flat(own).trusts_aggregator


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ({}, 2),  # 8 samples by 4
        ({"data.samples-per-user": 9}, 3),
        ({"data.samples-per-user": 9, "training.epochs": 2}, 6),
        ({"training.batch-size": 100}, 1),
        ({"training.max-steps": 7}, 7),
    ],
)
def test_local_steps_always_have_a_bound(values: dict, steps: int) -> None:
    assert RunConfig.from_flat({"method": "dp-fedavg", **values}).local_steps == steps


def test_flat_round_trip() -> None:
    config = RunConfig.from_flat({"epsilon": 1.29, "pretext.population": 7, "data.users": 20})
    assert RunConfig.from_flat(config.flat()) == config
    assert flatten(tomllib.loads(to_toml(config, comments=True))) == config.flat()


def test_lists_are_refused_with_their_key() -> None:
    with pytest.raises(ConfigError, match=r"data\.seed"):
        flatten({"data": {"seed": [1, 2]}})


def test_overrides(tmp_path: Path) -> None:
    assert parse_override("epsilon=1.29") == ("epsilon", 1.29)
    assert parse_override("benchmark=true") == ("benchmark", True)
    assert parse_override("benchmark=False") == ("benchmark", False)  # as Python spells it
    assert parse_override("data.path=/a/b c.jsonl") == ("data.path", "/a/b c.jsonl")
    assert parse_override("data.date-from=2023-01-01") == ("data.date-from", "2023-01-01")
    with pytest.raises(ConfigError, match="key=value"):
        parse_override("epsilon")
    for several in ("epsilon=1,rounds=2", "epsilon=1, rounds=2", "data.path=a.csv rounds=2"):
        with pytest.raises(ConfigError, match=r"in each: --set \w.* --set rounds=2"):
            parse_override(several)
    assert parse_override("data.path=/a,b=c.csv") == ("data.path", "/a,b=c.csv")
    assert parse_override("models.device='a,rounds=2'") == ("models.device", "a,rounds=2")
    file = tmp_path / "c.toml"
    file.write_text("epsilon = 2.0\n[pretext]\npopulation = 8\n")
    config = load_config(file, {"epsilon": 3.0})
    assert (config.epsilon, config.pretext.population) == (3.0, 8)
    with pytest.raises(ConfigError, match="no configuration file"):
        load_config(tmp_path / "absent.toml")
    file.write_text("epsilon = = 2")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(file)


FILES = {"data.source": "files", "data.path": "/users.jsonl", "data.public-path": "/public.jsonl"}


@pytest.mark.parametrize(
    ("values", "seeds"),
    [
        (FILES, True),
        ({"data.source": "hub:some/data"}, True),
        ({**FILES, "method": "pe"}, True),
        ({**FILES, "method": "popri"}, False),  # it has no seeds
        ({**FILES, "method": "expand-only"}, False),  # they are the whole public pool
        ({}, False),
        ({"data.source": "chats"}, False),
        ({**FILES, "expand.include-seeds": False}, False),
        ({"expand.include-seeds": True}, True),
        (dict([parse_override("expand.include-seeds=True")]), True),
        ({**FILES, **dict([parse_override("expand.include-seeds=false")])}, False),
    ],
)
def test_seeds_of_your_own_text_are_released(values: dict, seeds: bool) -> None:
    found = RunConfig.from_flat({**values, "expand.samples": 5})
    assert found.expand.include_seeds is found.expand.releases_seeds is seeds
    assert RunConfig.from_flat(found.flat()) == found
    assert RunConfig.from_flat({**values, "expand.samples": 0}).expand.releases_seeds


def test_another_word_for_the_seeds_is_refused() -> None:
    wrong = dict([parse_override("expand.include-seeds=yes")])
    with pytest.raises(ConfigError, match="include-seeds = 'yes': must be true, false or auto"):
        RunConfig.from_flat(wrong)


def test_every_method_has_its_tables() -> None:
    assert tuple(METHODS) == get_args(RunConfig.model_fields["method"].annotation)
    for entry in METHODS.values():
        assert set(entry.tables) < set(RunConfig.model_fields)


def test_flower_app_config_lists_every_key() -> None:
    """Flower accepts only keys that the app declares: it must have all, and no others."""
    project = tomllib.loads((ROOT / "app" / "pyproject.toml").read_text(encoding="utf-8"))
    assert flatten(project["tool"]["flwr"]["app"]["config"]) == flat_defaults()


CONFIGS = ROOT / "configs"
GRIDS = {*CONFIGS.glob("compare-*.toml"), *CONFIGS.glob("*-public.toml")}  # no runs
SHIPPED = [*sorted({*CONFIGS.glob("*.toml")} - GRIDS), *sorted(CONFIGS.glob("papers/*.toml"))]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_configs_validate(path: Path) -> None:
    config = load_config(path)
    assert config.epsilon > 0
    if path.parent.name == "papers":  # where text is written, it alone is the result
        assert config.expand.include_seeds is False or not config.expand.samples


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_benchmark_can_be_switched_off(path: Path) -> None:
    """With what its file chooses by private text, and nothing else."""
    off = {"benchmark": False}
    back = without_benchmark(path, off)
    found, before = load_config(path, {**off, **back}), load_config(path)
    assert found.data.chosen_by_text == "" and not found.benchmark
    assert back == {} or before.benchmark
    changed = {key for key, value in found.flat().items() if before.flat()[key] != value}
    assert changed - {"benchmark"} == set(back)


def test_keys_of_ones_own_stay_without_a_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        "benchmark = true\n[data]\nnear-duplicates = 'remove'\npartition = 'uniform'\n"
        "min-samples-per-user = 2\n"
    )
    assert without_benchmark(file, {}) == without_benchmark(None, {"benchmark": False}) == {}
    own = {"benchmark": False, "data.near-duplicates": "keep"}
    assert without_benchmark(file, own) == {"data.min-samples-per-user": 1}
    with pytest.raises(ConfigError, match="min-samples-per-user = 2"):
        load_config(file, own)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"start": "public"}, "set exactly one of them above 0"),
        ({"start": "public", "public-steps": 5, "public-epochs": 2}, "set exactly one"),
        ({"public-steps": 5}, r"belong to evaluation\.start = 'public'"),
        ({"public-batch-size": 5}, r"public-batch-size = 5 belong"),
        ({"checkpoint": "development"}, "with epochs = 0"),
        (
            {"checkpoint": "public", "epochs": 2, "data.public-validation": 0},
            "public-validation = 0",
        ),
        (
            {"checkpoint": "development", "epochs": 2, "data.development-users": 0},
            "development-users = 0",
        ),
        (
            {"adapter-rank": 4, "start": "public", "public-epochs": 1},
            r"adapter-rank = 4 with start = 'public'",
        ),
        ({"adapter-rank": 4, "method": "dp-fedavg"}, "without training or evaluation on the nodes"),
        (
            {"special-tokens": "bos-eos", "method": "dp-fedavg", "proximity.filter": True},
            r"special-tokens = 'bos-eos' is for next tokens without",
        ),
        ({"start": "converged"}, "set public-steps to the most steps"),
        (
            {"start": "converged", "public-steps": 5, "data.public-validation": 0},
            r"with data\.public-validation = 0",
        ),
        (
            {
                "start": "converged",
                "public-steps": 5,
                "method": "dp-fedavg",
                "training.public-steps": 3,
            },
            r"set training\.public-steps = 0",
        ),
        (
            {"adapter-rank": 4, "start": "converged", "public-steps": 5},
            r"adapter-rank = 4 with start = 'converged'",
        ),
        ({"start": "public", "method": "dp-fedavg"}, r"training\.public-steps = 0"),
        (
            {
                "start": "public",
                "method": "dp-fedavg",
                "training.public-steps": 3,
                "public-steps": 3,
            },
            r"a training has training\.public-steps",
        ),
    ],
)
def test_what_an_evaluation_needs(values, says):
    own = ("method", "data.", "popri.", "training.", "proximity.")
    flat = {k if k.startswith(own) else f"evaluation.{k}": v for k, v in values.items()}
    with pytest.raises(ConfigError, match=says):
        RunConfig.from_flat(flat)


def test_an_evaluation_at_full_size():
    """PrE-Text's, section 4.1, and the start of a training."""
    keys = {"start": "public", "public-epochs": 20, "public-batch-size": 256, "epochs": 20}
    flat = {f"evaluation.{key}": value for key, value in keys.items()}
    config = RunConfig.from_flat({**flat, "evaluation.checkpoint": "public"})
    assert config.evaluation.public_batch_size == 256
    training = {"method": "dp-fedavg", "training.public-steps": 3, "evaluation.start": "public"}
    assert RunConfig.from_flat(training).evaluation.start == "public"


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


@pytest.mark.parametrize(
    ("values", "samples"),
    [
        ({}, 2000),
        ({"data.source": "files"}, 0),
        ({"data.source": "files", "method": "pe"}, 0),
        ({"data.source": "files", "models.generator": "gpt2"}, 2000),
        ({"data.source": "files", "method": "popri"}, 2000),
        ({"data.source": "files", "expand.samples": 40}, 40),
    ],
)
def test_text_of_ones_own_is_not_expanded_by_the_tiny_generator(
    values: dict[str, str], samples: int
) -> None:
    config = RunConfig.from_flat(values)
    assert config.expand.samples == samples
    assert RunConfig.from_flat(config.flat()) == config
