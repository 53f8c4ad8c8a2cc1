"""What a run needs of this machine: libraries, models, folders, and nodes that are up."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from pathlib import Path

from privsyn_flower.app.local.federation import LocalFederation
from privsyn_flower.app.tracking.trackers import fault
from privsyn_flower.common.files import ledger_folder
from privsyn_flower.config import RunConfig, cache_folder, split_list
from privsyn_flower.server_apps.public_text import is_deployment
from privsyn_flower.server_apps.readiness import TOO_LITTLE, missing, used_models
from privsyn_flower.strategies.baselines.config import DPPromptConfig
from privsyn_flower.strategies.engine.run_ledger import shared_ledger
from privsyn_flower.strategies.engine.session import noise_key_folder
from privsyn_flower.strategies.resource_adaptive.config import (
    STRONG,
    WEAK,
    ResourceAdaptiveConfig,
    dealt_users,
)
from privsyn_flower.text.embedders import (
    KEY,
    MINILM_HUB,
    MINILM_INT8,
    MINILM_PACKAGE,
    ngram_dimension,
)
from privsyn_flower.text.fingerprints import FACTS
from privsyn_flower.text.generators import HuggingFaceGenerator, no_chat_template
from privsyn_flower.text.models.gguf import packaged
from privsyn_flower.text.models.pretrained import (
    ModelUnavailableError,
    encodes,
    hub_cache,
    local_folder,
    only_decoder,
)
from privsyn_flower.text.opening import open_generator
from privsyn_flower.text.protocols import Sampling
from privsyn_flower.text.serving.http_client import ServerError
from privsyn_flower.text.serving.vllm_server import default_python
from privsyn_flower.text.tiny.assets import embedded

from .findings import Finding, Findings

LITTLE = 2**30  # bytes of disk that are worth a warning
DESCRIBES = {
    "embedder": ("modules.json", "config.json", FACTS)
}  # one of them is in a model's folder


def trackers(config: RunConfig) -> Findings:
    """Their libraries, each with an extra of its own."""
    for name in split_list(config.trackers):
        if why := fault(name):
            yield Finding(why)


def models(config: RunConfig) -> Findings:
    """Names that can be told wrong without loading: folders, sizes of n-grams, servers."""
    used = used_models(config)
    listed = config.models.lstm_word_list
    if listed and not Path(listed).expanduser().is_file():
        yield Finding(f"models.lstm-word-list = {listed!r}: no such file")
    for kind, name in used.items():
        if fault := _fault(config, kind, name):
            yield Finding(fault)
    if "generator" in used:
        yield from _server(config)


def _fault(config: RunConfig, kind: str, name: str) -> str | None:
    """What is wrong with a model's name. Raises ValueError on an n-gram embedder's size."""
    key = f"models.{kind}"
    if kind == "embedder" and (name == MINILM_INT8 or ngram_dimension(name) is not None):
        return None
    made = embedded(kind, name) or (kind, name) == ("downstream", "lstm")
    taught = kind == "conditional" and packaged(kind, name) is not None
    if kind != "embedder" and (made or taught):
        if not is_deployment(config):
            return None  # shipped, or trained by the run
        return (
            f"{key} = {name!r} is made of the simulated federation's public text; in "
            "deployment name a folder or a Hugging Face model"
        )
    if packaged(kind, name) is not None:
        return None  # what an import needs is looked for with the libraries
    if kind == "generator" and config.generation.base_url and not config.teaches_generator:
        return None  # the name is the server's
    try:
        folder = local_folder(name, key)
    except ModelUnavailableError as error:
        return f"{error}; name a folder with a model, or one of the hub"
    files = DESCRIBES.get(kind, ("config.json",))
    if folder is None and _out_of_reach(name):
        return (
            f"{key} = {name!r} is not in the cache of the model hub, and HF_HUB_OFFLINE is "
            "set: fetch it, or name a folder with a model"
        )
    if folder is not None and not any((folder / file).is_file() for file in files):
        return f"{key} = {name!r} holds no model: {' or '.join(files)} is missing"
    if folder is not None and _causal(config, kind) and _encodes(folder):
        return only_decoder(name, key)
    if folder is not None and kind == "generator" and config.generation.chat:
        return _no_template(config, folder)
    return None


def _no_template(config: RunConfig, folder: Path) -> str | None:
    """Whether a chat is asked for of a model that has none, as far as its folder tells."""
    settings = folder / "tokenizer_config.json"
    files = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
    if config.generation.base_url or any((folder / file).exists() for file in files):
        return None
    try:
        found = json.loads(settings.read_text("utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError):  # whoever loads it says what is wrong
        return None
    return None if found else no_chat_template(config.models.generator)


def _causal(config: RunConfig, kind: str) -> bool:
    """Whether a model is loaded here, as a causal one. A classifier may be of any kind."""
    if kind == "downstream":
        return config.evaluation.task == "next-token"
    here = config.generation.backend == "huggingface"
    return kind == "generator" and here and not config.owns(DPPromptConfig)


def _encodes(folder: Path) -> bool:
    try:
        return encodes(folder)
    except (OSError, ValueError):  # whoever loads it says what is wrong
        return False


def _out_of_reach(name: str) -> bool:
    """Whether a model of the hub is neither here nor may be fetched."""
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() not in ("1", "true", "yes", "on"):
        return False
    if name == "minilm":
        if not missing(MINILM_PACKAGE):
            return False
        name = MINILM_HUB
    return not in_hub_cache(name)


def in_hub_cache(name: str, kind: str = "models") -> bool:
    """Whether something of a model or data set is in the cache of the hub."""
    return hub_cache(name, kind).is_dir()


def _server(config: RunConfig) -> Findings:
    where = config.generation
    if where.backend == "huggingface":
        return
    if where.base_url:
        yield from _of_server(config)
        return
    if where.backend == "openai":
        yield Finding("generation.backend = 'openai' needs the server: set generation.base-url")
        return
    python = Path(where.vllm_python) if where.vllm_python else default_python()
    if not python.is_file():
        yield Finding(
            f"generation.vllm-python = {python}: no such interpreter. `make vllm` makes vLLM's "
            "environment; or set generation.base-url to a running server"
        )


def _of_server(config: RunConfig) -> Findings:
    """Ask a running server for its models, and for one token."""
    try:
        generator = open_generator(
            config.models.generator,
            config.generation,
            Sampling(config.expand.max_tokens, config.expand.temperature),
            log=Path(os.devnull),
            progress=False,
        )
    except ValueError as error:
        yield Finding(str(error))
        return
    try:
        if not isinstance(generator, HuggingFaceGenerator):
            generator.reach()
            generator.try_one_token()
    except (ServerError, ValueError) as error:
        yield Finding(f"models.generator = {config.models.generator!r}: {error}")
    finally:
        generator.close()


def places(config: RunConfig, folder: Path) -> Findings:
    """Folders that the run writes to: writable, and some room on their disks."""
    wanted = {"run-folder": folder, "cache": cache_folder(config)}
    shared = shared_ledger(config.ledger, config.population_name)
    wanted["ledger"] = ledger_folder() if shared is None else shared.parent
    if config.assets and not Path(config.assets).is_dir():
        yield Finding(f"assets = {config.assets!r} is no folder: leave it empty for the package's")
    if config.trusts_aggregator:
        wanted["noise keys: XDG_DATA_HOME"] = noise_key_folder()
    disks = set[int]()
    for key, place in wanted.items():
        there = next(p for p in (place, *place.parents) if os.path.lexists(p))
        if not there.is_dir():
            yield Finding(f"{place} ({key}) cannot be made: {there} is no folder")
        elif not os.access(there, os.W_OK | os.X_OK):
            yield Finding(f"{place} ({key}) cannot be written: no permission in {there}")
        elif (disk := there.stat().st_dev) not in disks:
            disks.add(disk)
            yield from _room(there, key)


def _room(place: Path, key: str) -> Findings:
    free = shutil.disk_usage(place).free
    if free < LITTLE:
        yield Finding(
            f"{free // 2**20} MiB are free on the disk of {place} ({key}): make room, or choose "
            "another",
            fatal=free < TOO_LITTLE,
        )


def simulated_groups(config: RunConfig) -> Findings:
    """A simulation deals users to nodes evenly, so that a group has as many as follow from that."""
    if not config.owns(ResourceAdaptiveConfig) or is_deployment(config):
        return
    (_, strong), (declared, _) = (config.own.groups(config)[name] for name in (STRONG, WEAK))
    if declared != (dealt := dealt_users(config, strong)):
        yield Finding(
            f"resource-adaptive.weak-users = {declared}: the weak nodes of this simulation get "
            f"{dealt} of data.users = {config.data.users}: leave it at 0, or change weak-share"
        )


def federation_nodes(config: RunConfig, federation: LocalFederation) -> Findings:
    """A federation of this machine: up, as many users as declared, the same embedder."""
    folder = federation.folder
    if not federation.healthy():
        yield Finding(f"{folder} is not running: privsyn federation start {folder}")
    count = len(federation.facts["nodes"])
    nodes = [
        tomllib.loads((federation.node_folder(n) / "node.toml").read_text("utf-8"))
        for n in range(count)
    ]
    weight, users = sum(int(node["weight"]) for node in nodes), config.data.users
    turns = config.cohort_nodes or (
        config.ftrl.schedule == "nodes" and config.ftrl.min_separation > 1
    )
    least = 1.0 if turns else (config.min_surviving_weight + config.colluding_weight) * users
    if weight > users:
        yield Finding(f"the nodes of {folder} have {weight} users: raise data.users = {users}")
    elif weight < least - 1e-9:
        yield Finding(
            f"the nodes of {folder} have {weight} users, and a sum needs {least:g} "
            f"(min-surviving-weight and colluding-weight of data.users = {users}): lower one"
        )
    for group, (most, _) in config.own.groups(config).items():
        weight = sum(int(node["weight"]) for node in nodes if node.get("resources") == group)
        least = config.min_surviving_weight * most + config.colluding_weight * users
        if not least - 1e-9 <= weight <= most:
            yield Finding(
                f"the {group} nodes of {folder} (resources in their node.toml) have {weight} users "
                f"of {most}, and a sum needs {least:g}: start the federation with --weak, or set "
                "resource-adaptive.weak-users"
            )
    if count < config.nodes:
        yield Finding(
            f"nodes = {config.nodes}, and {folder} has {count}: each round waits node-timeout = "
            f"{config.node_timeout:g} s for the others; lower nodes",
            fatal=count < (config.cohort_nodes or 1),
        )
    used = used_models(config).get("embedder")
    others = sorted({str(node.get("embedder", used)) for node in nodes} - {str(used)})
    if used and others:
        yield Finding(
            f"{KEY} = {used!r}, and nodes of {folder} have {', '.join(others)}: they would refuse",
            fatal=False,
        )
