"""What would fail after the first question fails before it: nothing is asked, nothing is paid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from privsyn_flower.app.preflight import check_ready
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods import synthesis
from privsyn_flower.server_apps.readiness import _classes_of_no_package, faults
from privsyn_flower.text.generators import HuggingFaceGenerator
from tests.rigs.http_generator import Body, Fake, choices
from tests.server_apps.in_process import (
    POPRI,
    PRETEXT,
    charges,
    grid_for,
    one_thread,
    run_on,
    shared,
    simulated,
    small_config,
    texts,
)

__all__ = ["one_thread", "shared"]  # pytest finds fixtures by name

WRITES = {**PRETEXT, "method": "pretext", "epsilon": 500.0, "rounds": 2, "expand.samples": 4}
FEW = {"generation.retries": 1, "generation.concurrency": 2}
SERVED = {"generation.backend": "openai", "models.generator": "m", **FEW}
TAUGHT = {"generation.backend": "vllm", **FEW}
CTCL = {"method": "ctcl", "ctcl.histogram": False, "ctcl.condition": "none"}


@pytest.fixture
def server() -> Iterator[Fake]:
    """Does not know the model n, writes words after every prompt, and takes no adapters."""

    def complete(body: Body) -> Any:
        if body["model"] == "n":
            return 404, {"error": {"message": "no such model"}}
        return 200, choices(*(f"some words {body['seed']} {i}" for i in range(body["n"])))

    fake = Fake()
    fake.answers["/v1/completions"] = complete
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({**SERVED, "generation.base-url": "http://127.0.0.1:9/v1"}, r"generation\.base-url right"),
        ({**SERVED, "models.generator": "n"}, "does not have the model 'n'; it has m"),
        ({**SERVED, "expand.min-words": 999}, "0 are empty.*expand.min-words = 999"),
        ({"expand.min-words": 999}, "expand.min-words = 999 words: lower expand.min-words"),
        ({"models.generator": "no/such-model"}, "models.generator = 'no/such-model'"),
        ({"generation.chat": True}, "generation.chat = true: .* has no chat template"),
        ({"models.device": "cuda:3"}, r"models\.device = 'cuda:3', but torch sees 0 CUDA"),
        ({"expand.seeds-per-prompt": 99}, "expand.seeds-per-prompt = 99: there are 32 seeds"),
        ({"benchmark": True, "models.downstream": "no/such"}, "models.downstream = 'no/such'"),
        (
            {"method": "pe", "pe.population": 8, "sft.epochs": 1, **TAUGHT},
            "adapter .*cannot be loaded.*--enable-lora",
        ),
        (
            {**SERVED, "pretext.variation": "continue", "generation.base-url": "http://127.0.0.1:9"},
            r"generation\.base-url right",
        ),
        ({**POPRI, **TAUGHT, "models.generator": "m"}, "models.generator = 'm' could not be"),
        ({**POPRI, "expand.min-words": 999}, "expand.min-words = 999"),
        ({**POPRI, "models.device": "cuda:3"}, r"models\.device = 'cuda:3'"),
        (
            {**POPRI, "popri.select": "federated", "models.downstream": "no/such"},
            "downstream = 'no/such' is no model folder",
        ),
        ({**CTCL, "expand.min-words": 999}, "models.conditional wrote .*expand.min-words = 999"),
        ({"method": "dp-fedavg", "models.device": "cuda:3"}, r"models\.device = 'cuda:3'"),
        (
            {"method": "dp-ftrl", "training.noise": "aggregator", "models.device": "cuda:3"},
            r"models\.device = 'cuda:3'",
        ),
    ],
)  # fmt: skip
def test_nothing_is_asked_for_a_result_that_could_not_be(
    values: dict[str, Any],
    words: str,
    shared: Path,
    loopback: Any,
    tmp_path: Path,
    server: Fake,
    causal_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    served = "generation.backend" in values and "generation.base-url" not in values
    given = {"generation.base-url": server.url, "models.conditional": str(causal_folder)}
    config = small_config(
        shared, causal_folder, **{**WRITES, **(given if served else {}), **values}
    )
    grid = grid_for(loopback, simulated(config))
    with pytest.raises((ValueError, RuntimeError), match=words):
        run_on(grid, config, tmp_path / "run")
    assert not charges(tmp_path / "run") and not list(tmp_path.glob("run/releases/*"))
    assert not [sent for sent in grid.sent if sent.metadata.message_type != "query.hello"]


def test_trying_loads_no_model_twice_and_changes_no_text(
    shared: Path,
    loopback: Any,
    tmp_path: Path,
    causal_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small_config(
        shared, causal_folder, **{**WRITES, "simulation-seeded-noise": True, "rounds": 1}
    )
    loaded = list[str]()
    load = HuggingFaceGenerator._load
    monkeypatch.setattr(
        HuggingFaceGenerator, "_load", lambda self: loaded.append(self._name) or load(self)
    )
    tried = run_on(grid_for(loopback, simulated(config)), config, tmp_path / "tried")
    assert len(loaded) == 1 and "models" in tried["stage_seconds"]
    monkeypatch.setattr(synthesis, "try_prompts", lambda *_, **__: None)
    run_on(grid_for(loopback, simulated(config)), config, tmp_path / "untried")
    assert texts(tmp_path / "tried") == texts(tmp_path / "untried")


def test_a_run_without_rounds_left_tries_nothing(
    shared: Path,
    loopback: Any,
    tmp_path: Path,
    causal_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed in the expansion: on a resume the generator is used for what it was paid for."""
    config = small_config(
        shared, causal_folder, **{**WRITES, "rounds": 1, "expand.include-seeds": False}
    )
    expand = synthesis.expand

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(synthesis, "expand", killed)
    with pytest.raises(KeyboardInterrupt):
        run_on(grid_for(loopback, simulated(config)), config, tmp_path / "run")
    monkeypatch.setattr(synthesis, "expand", expand)
    monkeypatch.setattr(synthesis, "try_prompts", killed)
    run_on(grid_for(loopback, simulated(config)), config, tmp_path / "run")
    assert len(texts(tmp_path / "run")) == 4 and len(charges(tmp_path / "run")) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ""),
        ({"models.generator": "n"}, "models.generator = 'n': .*it has m"),
        ({"generation.base-url": "http://127.0.0.1:9"}, "no connection .*generation.base-url"),
        ({"models.device": "cuda:3"}, "models.device = 'cuda:3'"),
    ],
)
def test_plan_and_run_ask_the_server_for_a_token(
    values: dict[str, Any],
    words: str,
    shared: Path,
    tmp_path: Path,
    server: Fake,
    causal_folder: Path,
) -> None:
    given = {**WRITES, **SERVED, "generation.base-url": server.url, **values}
    config = small_config(shared, causal_folder, **given)
    found = [finding.text for finding in check_ready(config, tmp_path / "run") if finding.fatal]
    assert len(found) == bool(words)
    assert all(re.search(words, text) for text in found)
    if not words:
        assert [body["max_tokens"] for body in server.bodies()] == [1]


def test_a_class_of_docstrings_is_a_package_of_theirs() -> None:
    own = {"data.private-packages": "scipy, pandas", "data.source": "docstrings"}
    ready = {"method": "pretext", **own, "pretext.labels": "scipy, numpy"}
    odd = {**ready, "pretext.labels": "scipy,Pandas,nunpy"}
    assert not list(_classes_of_no_package(RunConfig.from_flat(ready)))
    (told,) = _classes_of_no_package(RunConfig.from_flat(odd))
    assert told.startswith("pretext.labels names 'Pandas', 'nunpy': a docstring's class is its")
    assert told in faults(RunConfig.from_flat(odd))
    elsewhere = {**odd, "data.source": "hub:x", "data.label-column": "kind"}
    assert not list(_classes_of_no_package(RunConfig.from_flat(elsewhere)))
