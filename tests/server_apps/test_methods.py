"""The table of methods: every recipe answers, and nobody else asks which method a run has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import privsyn_flower
from privsyn_flower import strategies
from privsyn_flower.app.preflight.numbers import keys
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.config.schema import METHODS
from privsyn_flower.server_apps.methods import check_controls, recipe_of
from privsyn_flower.server_apps.methods.recipe import sampler_of
from privsyn_flower.server_apps.methods.training import training_strategy

PACKAGE = Path(privsyn_flower.__file__).parent
KNOWING = ("server_apps/methods/", "strategies/")
# A query, a phase and a stage are called evaluation, too; `config.method` beside it is found.
NAMES = METHODS.keys() - {"evaluation"}
STRATEGIES = {name for name in strategies.__all__ if hasattr(getattr(strategies, name), "learn")}


def configured(method: str, **values: Any) -> RunConfig:
    needed = {"training.noise": "aggregator"} if method == "dp-ftrl" else {}
    return RunConfig.from_flat({"method": method, **needed, **values})


def compared(name: str) -> dict[str, bool]:
    """With a benchmark, where the method has one."""
    return {} if configured(name).measures else {"benchmark": True}


ASKING = [name for name in METHODS if recipe_of(configured(name)).phases(configured(name))]


@pytest.mark.parametrize(
    "values",
    [{}, {"sampler": "poisson", "sampling-rate": 0.5}, {"sampler": "fixed", "cohort-nodes": 4}],
)
def test_the_sampler_of_a_run_is_the_configurations(values: dict[str, Any]) -> None:
    config = configured("dp-fedavg", **values)
    wanted = sampler_of(config)
    assert (wanted.name, wanted.rate) == (config.sampler, config.sampling_rate)
    assert wanted.nodes == config.cohort_nodes
    for method in ("pretext", "dp-fedavg"):
        config = configured(method, **values)
        assert [phase.sampler for phase in recipe_of(config).phases(config)] == [wanted]


def test_a_training_has_the_sections_of_its_run() -> None:
    keys = {"training.clip-norm": 0.3, "training.server-optimizer": "fedadam", "seed": 7}
    for method, own in (("dp-fedavg", {}), ("dp-ftrl", {"ftrl.mechanism": "tree"})):
        config = configured(method, **keys, **own)
        strategy: Any = training_strategy(config)
        assert strategy.config == config.training and strategy.seed == 7
        assert getattr(strategy, "ftrl", config.ftrl) == config.ftrl


def is_method(node: ast.AST) -> bool:
    """`config.method`, or `self.config.method`."""
    if not isinstance(node, ast.Attribute) or node.attr != "method":
        return False
    owner = node.value
    return "config" in (getattr(owner, "id", ""), getattr(owner, "attr", ""))


def named(node: ast.AST) -> set[str]:
    """Strings, names and attributes below a node."""
    found = set[str]()
    for below in ast.walk(node):
        match below:
            case ast.Constant(value=str() as text):
                found.add(text)
            case ast.Name(id=text) | ast.Attribute(attr=text):
                found.add(text)
    return found


def branches(source: str) -> Iterator[int]:
    """Lines that depend on which method there is."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, comparators=right):
                sides = [left, *right]
                known = any(named(side) & (NAMES | STRATEGIES) for side in sides)
                asks = known or any(map(is_method, sides))
            case ast.Subscript(slice=index):
                asks = is_method(index)
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
                asks = bool(named(kinds) & STRATEGIES)
            case ast.match_case(pattern=pattern):
                asks = bool(named(pattern) & (NAMES | STRATEGIES))
                node = pattern
            case ast.Dict(keys=entries):
                told = [key.value for key in entries if isinstance(key, ast.Constant)]
                asks = len(NAMES & set(told)) > 1
            case _:
                continue
        if asks:
            yield node.lineno


@pytest.mark.parametrize(
    "source",
    [
        "if config.method == 'popri': pass",
        "if config.method == 'evaluation': pass",
        "x = 'pretext' in (name, rival)",
        "x = self.config.method in CHOSEN",
        "x = KINDS[config.method]",
        "x = isinstance(strategy, (int, POPri))",
        "x = type(strategy) is strategies.DPFTRL",
        "x = {'popri': 1, 'pretext': 2}",
        "match name:\n    case 'dp-ftrl': pass",
        "match strategy:\n    case PrEText(): pass",
    ],
)
def test_a_branch_is_found(source: str) -> None:
    assert list(branches(source))


def test_other_methods_are_no_branches() -> None:
    assert not list(branches("x = tuning.method == 'dpo' or isinstance(noise, AggregatorNoise)"))


@pytest.mark.slow
def test_only_the_table_and_the_recipes_know_methods() -> None:
    found: dict[str, list[int]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(KNOWING):
            lines = list(branches(path.read_text("utf-8")))
            found |= {name: lines} if lines else {}
    assert not found


@pytest.mark.parametrize("method", METHODS)
def test_a_recipe_has_phases_or_a_claim_without(method: str) -> None:
    config = configured(method, **compared(method))
    found = recipe_of(config)
    assert bool(found.phases(config)) == (found.baseline(config) is None)
    assert found.loads(config) <= set(config.models.kinds)
    assert ("random-public" in found.controls) == config.benchmark
    key, least = found.first_texts(config)
    assert least == (config.flat()[key] if key else 0)
    assert bool(list(found.faults(config))) == config.measures  # it has no models yet


@pytest.mark.parametrize("method", ASKING)
def test_a_recipe_answers(method: str) -> None:
    config = configured(method)
    found = recipe_of(config)
    kind, options = found.question(config)
    assert kind in ("votes", "scores", "update", "evaluation")
    assert (kind == "update", kind == "evaluation") == (config.updates, config.measures)
    assert found.length(config) >= 1 and options.get("bound", 1.0) > 0
    assert config.measures or {"noise", "random-public"} <= set(found.controls)


def test_what_a_rival_needs_the_run_needs() -> None:
    alone, beside = configured("popri"), configured("popri", **{"evaluation.rival": "pretext"})
    recipe = recipe_of(alone)
    assert "infiller" not in recipe.loads(alone) and "infiller" in recipe.loads(beside)
    few = configured("popri", **{"data.public-pool": 10, "evaluation.rival": "pretext"})
    (fault,) = recipe.faults(few)
    assert "pretext.population" in fault
    assert not list(recipe.faults(configured("popri", **{"data.public-pool": 10})))


# Controls ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name in ASKING if compared(name)])
@pytest.mark.parametrize("chosen", ["", "all", "noise", "random-public, noise"])
def test_controls_that_every_method_with_rounds_has(method: str, chosen: str) -> None:
    config = configured(method, **{"evaluation.controls": chosen})
    check_controls(config)
    compares = config.evaluation.compares
    assert compares("noise") == (chosen not in ("", "random-public"))
    assert compares("random-public") == (chosen not in ("", "noise"))


def test_a_control_that_the_method_has_not_is_told_before_the_run() -> None:
    asked = {"evaluation.controls": "noise,unaligned"}
    check_controls(configured("popri", **asked))
    config = configured("pretext", **asked)
    with pytest.raises(ConfigError, match=r"'unaligned' is none of pretext's.* noise, random-pub"):
        check_controls(config)
    with pytest.raises(ConfigError, match=r"evaluation\.controls"):
        list(keys(config))
    near = {"evaluation.controls": "minority-public"}
    check_controls(configured("pretext", **near, **{"data.source": "chats"}))
    with pytest.raises(ConfigError, match=r"'minority-public' is none of pretext's"):
        check_controls(configured("pretext", **near, **{"data.source": "files"}))
