"""Wrong keys and values are errors that name the key, the value and the bound."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import get_args

import pytest

from privsyn_flower.config import (
    ConfigError,
    PopriConfig,
    RunConfig,
    absolute_paths,
    flat_defaults,
    flatten,
    load_config,
    parse_override,
    to_toml,
    without_benchmark,
)
from privsyn_flower.config import api as config_api
from privsyn_flower.config.schema import METHODS

ROOT = Path(__file__).parents[2]


def test_a_benchmark_may_choose_by_private_text() -> None:
    values = {"data.near-duplicates": "remove", "data.min-samples-per-user": 2}
    config = RunConfig.from_flat({**values, "data.partition": "date", "benchmark": True})
    assert all(key in config.data.chosen_by_text for key in (*values, "data.partition"))
    assert RunConfig().data.chosen_by_text == ""


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


def test_a_hub_folder_that_is_here_is_found_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path)
    flat = {"data.source": "hub:own", "data.public-path": "hub:own@small#test"}
    data = absolute_paths(RunConfig.from_flat(flat), tmp_path).data
    assert (data.source, data.public_path) == (
        f"hub:{tmp_path}/own",
        f"hub:{tmp_path}/own@small#test",
    )
    flat = {"data.source": "hub:a/b#train", "data.public-path": "hub:wiki@20231101.en#train"}
    data = absolute_paths(RunConfig.from_flat(flat), tmp_path).data
    assert {"data.source": data.source, "data.public-path": data.public_path} == flat


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


def test_every_key_has_a_word_that_is_no_key() -> None:
    """In an own ServerApp; its errors are in `tests/strategies/test_arguments.py`."""
    keys = [f"popri.{name.replace('_', '-')}" for name in PopriConfig.model_fields]
    text = config_api.in_api_words(" and ".join(keys))
    assert text == " and ".join(f"PopriConfig({name})" for name in PopriConfig.model_fields)
    for word in config_api._words().values():
        assert "-" not in word and config_api.in_api_words(word) == word
    # Neither options of other commands nor paths are keys.
    same = "--max-lora-rank, first-use, a/run-folder, data.users.json"
    assert config_api.in_api_words(same) == same
