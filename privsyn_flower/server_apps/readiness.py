"""What a run needs of this machine after its first question, tried before it.

A charge cannot be taken back. So whatever only the result needs (the model that writes it, the one
that is trained on the releases, their server, device, libraries and disk) is looked for or used
once before anybody is asked. `faults` is shared by `privsyn plan`, `privsyn run` and the ServerApp;
`try_run` loads models, which the ServerApp alone does: it keeps them.
`notes`: what a run must be told of its result before anybody is asked.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privsyn_flower.common.python_path import asset, lacking
from privsyn_flower.config import ConfigError, ModelsConfig, RunConfig, cache_folder, split_list
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.methods.stages import to_import
from privsyn_flower.server_apps.public_text import is_deployment
from privsyn_flower.strategies.engine.session import in_cluster
from privsyn_flower.text.embedders import MINILM_INT8
from privsyn_flower.text.fingerprints import FACTS
from privsyn_flower.text.models.devices import resolve_device, training_device
from privsyn_flower.text.models.gguf import INSTALL, SMOLLM2, import_faults
from privsyn_flower.text.tiny.assets import RECIPES, embedded

if TYPE_CHECKING:
    from privsyn_flower.server_apps.methods.recipe import Recipe

ADAPTING = ("torch", "transformers", "peft", "trl", "datasets")  # to fine-tune a generator
TOO_LITTLE = 2**26  # bytes of disk that not even a miniature gets by with


def faults(config: RunConfig) -> Iterator[str]:
    """Why the run could not end well here, a line each, without loading a model; never raises."""
    yield from libraries(config)
    yield from packages(config)
    yield from larger_models(config)
    yield from device(config)
    yield from _nobody_held_out(config)
    yield from _classes_of_no_package(config)


def try_run(config: RunConfig, folder: Path, method: Recipe[Any], strategy: Any) -> None:
    """Everything of `faults`, and what only use can tell, on public text.

    folder: of the run. Raises ConfigError, and what models and servers raise.
    """
    found = [*recipe_of(config).faults(config), *faults(config), *_full_disks(config, folder)]
    if found:
        raise ConfigError("; ".join(found))
    if needs_downstream(config):
        from privsyn_flower.text.models.pretrained import check_model

        check_model(method.models.folder("downstream"), "models.downstream")
    method.ready(strategy)


def _nobody_held_out(config: RunConfig) -> Iterator[str]:
    """A benchmark measures on held-out users, after everything else is done and paid for."""
    data, on = config.data, config.evaluation.on
    key = "held-out-users" if on == "test" else "development-users"
    if config.benchmark and not (data.held_out_users if on == "test" else data.development_users):
        yield (
            f"benchmark = true with data.{key} = 0: there is nobody to measure the result on; "
            "raise it, or set benchmark = false"
        )


def _classes_of_no_package(config: RunConfig) -> Iterator[str]:
    """Docstrings are labelled by their packages, which the configuration names."""
    data = config.data
    lists = data.private_packages, data.public_packages, data.minority_packages
    known = {name for names in lists for name in split_list(names)}
    odd = sorted(set(config.classes) - known)
    if odd and data.source == "docstrings":
        yield (
            f"{config.labels[0]} names {', '.join(map(repr, odd))}: a docstring's class is its "
            f"package, one of data.private-packages = {data.private_packages!r}"
        )


def needs_downstream(config: RunConfig) -> bool:
    """Whether a model that somebody named is fine-tuned here, after the users were asked."""
    name = config.models.downstream
    ours = embedded("downstream", name) is not None or name == "lstm"
    return not ours and (config.benchmark or "downstream" in recipe_of(config).loads(config))


def _full_disks(config: RunConfig, folder: Path) -> Iterator[str]:
    for key, place in {"run-folder": folder, "cache": cache_folder(config)}.items():
        there = next(p for p in (place, *place.parents) if p.exists())
        free = shutil.disk_usage(there).free
        if free < TOO_LITTLE:
            yield f"{free // 2**20} MiB are free on the disk of {there} ({key}): make room"


# Devices ---------------------------------------------------------------------------------


def device(config: RunConfig) -> Iterator[str]:
    """Whether `models.device` is there, for what is computed on this machine."""
    name = config.models.device
    apart = is_deployment(config) or in_cluster()  # the nodes are other machines, with their own
    if name in ("auto", "cpu") or missing("torch") or (config.trains and apart):
        return
    here = config.teaches_generator or config.benchmark
    try:
        training_device(name) if here else resolve_device(name)
    except (ValueError, RuntimeError) as error:
        yield str(error)


# Libraries -------------------------------------------------------------------------------


def missing(*modules: str) -> list[str]:
    """Those that are not installed; nothing is imported."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def libraries(config: RunConfig) -> Iterator[str]:
    """The extras that method, models and data need: one line with the command."""
    absent: dict[str, list[str]] = {}
    for why, modules in needed(config):
        for name in missing(*modules):
            absent.setdefault(name, []).append(why)
    if absent:
        listed = ", ".join(f"{name} ({', '.join(whys)})" for name, whys in absent.items())
        extra = "server" if is_deployment(config) else "simulation"
        yield f"not installed: {listed}: pip install 'privsyn-flower[{extra}]'"


def needed(config: RunConfig) -> list[tuple[str, tuple[str, ...]]]:
    """(what for, modules)."""
    data, names = config.data, used_models(config)
    places = (data.path, data.public_path)
    needed: list[tuple[str, tuple[str, ...]]] = [
        ("accounting", ("dp_accounting",)),
        ("simulated nodes", ("ray", "pyarrow")) if not is_deployment(config) else ("", ()),
        ("parquet", ("pyarrow",)) if any(p.endswith(".parquet") for p in places) else ("", ()),
        ("correlated noise", ("scipy",))
        if config.trusts_aggregator or config.sends_rows
        else ("", ()),
        ("benchmark", ("matplotlib",)) if config.benchmark else ("", ()),
        ("training.evaluate-rounds", ("matplotlib",))
        if config.training.evaluate_rounds
        else ("", ()),
    ]
    if data.source.startswith("hub:") or any(place.startswith("hub:") for place in places):
        needed.append(("data.source", ("datasets",)))
    if "embedder" in names and not names["embedder"].startswith("ngram"):
        needed.append(("models.embedder", _embedder_modules(names["embedder"])))
    for kind in sorted(set(names) - {"embedder"}):
        served = kind == "generator" and config.generation.backend != "huggingface"
        here = ("httpx",) if served else ("torch", "transformers")
        needed.append((f"models.{kind}", here))
    if config.sft.epochs:
        needed.append(("sft.epochs", ADAPTING))
    return [*needed, (config.method, recipe_of(config).libraries)]


def _embedder_modules(name: str) -> tuple[str, ...]:
    exported = name == MINILM_INT8 or (Path(name).expanduser() / FACTS).is_file()
    return ("onnxruntime", "tokenizers") if exported else ("torch", "sentence_transformers")


def packages(config: RunConfig) -> Iterator[str]:
    """Models in packages that the run would have to import, and cannot."""
    for kind, model in to_import(config, used_models(config).keys()).items():
        yield from import_faults(model, cache_folder(config), f"models.{kind} = {model.name!r}")


def larger_models(config: RunConfig) -> Iterator[str]:
    """Shipped models whose own package is not installed."""
    for kind, name in used_models(config).items():
        own = name if name == MINILM_INT8 else embedded(kind, name) if not config.assets else None
        if own and asset(own) is None and own not in RECIPES:  # those a run can train
            yield lacking(f"models.{kind} = {name!r}")


def used_models(config: RunConfig) -> dict[str, str]:
    """kind -> name of the models that the run will load."""
    used = recipe_of(config).loads(config) | ({"downstream"} if config.benchmark else set())
    return {kind: getattr(config.models, kind) for kind in ModelsConfig.kinds if kind in used}


WRITER = SMOLLM2.name  # a generator that can write English
WRITER_MODULES = (SMOLLM2.module, "gguf")  # its weights, and what reads them


def notes(config: RunConfig) -> list[str]:
    """For plan, terminal and report, a line each: the text will be no text like the users'.

    The models that come with the package have read docstrings, which only the demos learn.
    """
    found = []
    if config.data.canaries:
        found.append(
            f"{config.data.canaries:,} of the {config.data.users:,} users are made up for an audit "
            "(data.canaries), and half of them are empty: the result is for `privsyn inspect`, not "
            "for use"
        )
    if config.data.source == "docstrings":
        return found
    used = used_models(config)
    kinds = [kind for kind in ("generator", "conditional") if embedded(kind, used.get(kind, ""))]
    found += [
        f"models.{kind} = {used[kind]!r} is a very small model of English docstrings: it writes "
        f"fragments like them, and no text like your users'. {_way_out(kind)}"
        for kind in kinds
    ]
    if config.seeds_alone and not config.expand.samples:
        found.append(
            "expand.samples = 0: the result is the seeds, texts that the votes pick among the "
            f"candidates (seeds.jsonl), because models.generator = {config.models.generator!r} "
            f"would write fragments of English docstrings. {_way_out('generator')}"
        )
    return found


def _way_out(kind: str) -> str:
    own = f"{INSTALL} and set models.generator = '{WRITER}' (English), or "
    return f"To have real text: {own * (kind == 'generator')}name the folder of any causal model"
