"""What would fail after the first question fails before it: nothing is asked, nothing is paid. What
a run makes for itself, and what it says beforehand of its result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from privsyn_flower.app.preflight import check_ready
from privsyn_flower.app.report.summaries import verdict_lines
from privsyn_flower.app.report.tables import report
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods import recipe_of, synthesis
from privsyn_flower.server_apps.readiness import _classes_of_no_package, faults, notes
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.models.gguf import INSTALL
from privsyn_flower.text.tiny import models as tiny_models
from tests.rigs.http_generator import Body, Fake, choices
from tests.server_apps.in_process import (
    POPRI,
    PRETEXT,
    Killed,
    charges,
    grid_for,
    killing,
    run,
    run_on,
    simulated,
    texts,
)

WRITES = {**PRETEXT, "method": "pretext", "epsilon": 500.0, "rounds": 2, "expand.samples": 4}
FEW = {"generation.retries": 1, "generation.concurrency": 2}
SERVED = {"generation.backend": "openai", "models.generator": "m", **FEW}
TAUGHT = {"generation.backend": "vllm", **FEW}
CTCL = {"method": "ctcl", "ctcl.histogram": False, "ctcl.condition": "none"}


@pytest.fixture
def server(fake: Fake) -> Fake:
    """Does not know the model n, writes words after every prompt, and takes no adapters."""

    def complete(body: Body) -> Any:
        if body["model"] == "n":
            return 404, {"error": {"message": "no such model"}}
        return 200, choices(*(f"some words {body['seed']} {i}" for i in range(body["n"])))

    fake.answers["/v1/completions"] = complete
    return fake


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
    values: dict[str, Any], words: str, small: Any, loopback: Any, tmp_path: Path, server: Fake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    served = "generation.backend" in values and "generation.base-url" not in values
    given = {"generation.base-url": server.url} if served else {}
    config = small(**{**WRITES, **given, **values})
    grid = grid_for(loopback, simulated(config))
    with pytest.raises((ValueError, RuntimeError), match=words):
        run_on(grid, config, tmp_path / "run")
    assert not charges(tmp_path / "run") and not list(tmp_path.glob("run/releases/*"))
    assert not [sent for sent in grid.sent if sent.metadata.message_type != "query.hello"]


def test_trying_loads_no_model_twice_and_changes_no_text(
    small: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(**{**WRITES, "simulation-seeded-noise": True, "rounds": 1})
    loaded = list[str]()
    load = HuggingFaceGenerator._load
    monkeypatch.setattr(
        HuggingFaceGenerator, "_load", lambda self: loaded.append(self._name) or load(self)
    )
    tried, _ = run(config, loopback, tmp_path / "tried")
    assert len(loaded) == 1 and "models" in tried["stage_seconds"]
    monkeypatch.setattr(synthesis, "try_prompts", lambda *_, **__: None)
    run(config, loopback, tmp_path / "untried")
    assert texts(tmp_path / "tried") == texts(tmp_path / "untried")


def test_a_run_without_rounds_left_tries_nothing(
    small: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the expansion: on a resume the generator is used for what it was paid for."""
    config = small(**{**WRITES, "rounds": 1, "expand.include-seeds": False})
    with monkeypatch.context() as patch:
        killing(patch, synthesis, "expand")
        with pytest.raises(Killed):
            run(config, loopback, tmp_path / "run")
    killing(monkeypatch, synthesis, "try_prompts")
    run(config, loopback, tmp_path / "run")
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
    values: dict[str, Any], words: str, small: Any, tmp_path: Path, server: Fake
) -> None:
    config = small(**{**WRITES, **SERVED, "generation.base-url": server.url, **values})
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


# The models that a run makes ---------------------------------------------------------------

TINY = {f"models.{kind}": "tiny" for kind in ("infiller", "generator", "downstream")}
SEEDS = {"method": "pretext", "expand.samples": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "needed"),
    [
        (SEEDS, set()),
        ({**SEEDS, "pretext.variation": "mask-fill"}, {"infiller"}),
        ({**SEEDS, "expand.samples": 4}, {"generator"}),
        ({**SEEDS, "benchmark": True, "evaluation.controls": ""}, {"downstream"}),
        ({"method": "popri", "expand.samples": 4}, {"generator"}),
    ],
    ids=["seeds", "mask-fill", "expansion", "benchmark", "popri"],
)
def test_a_run_makes_what_it_loads(
    values: dict[str, Any], needed: set[str], small: Any, loopback: Any, tmp_path: Path,
    causal_folder: Path, masked_folder: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    made = set[str]()

    def ensure(kind: str, *_: Any) -> Path:
        made.add(kind)
        return masked_folder if kind == "infiller" else causal_folder

    monkeypatch.setattr(tiny_models, "ensure_model", ensure)
    config = small(**{**POPRI, **PRETEXT, **TINY, **values})
    summary, _ = run(config, loopback, tmp_path / "run")
    assert made == needed and summary["verdict"]["sentences"]
    # What is checked before the run is what it loads; the benchmark's model is told apart.
    loads = recipe_of(config).loads(config) - {"embedder"}
    assert loads == needed - ({"downstream"} if config.benchmark else set())


# Notes on what the result will be ----------------------------------------------------------

OWN = {"data.source": "files", "data.path": "/users.jsonl", "data.public-path": "/public.jsonl"}
REAL = f"{INSTALL} and set models.generator = 'smollm2' (English)"


def own(**values: Any) -> list[str]:
    return notes(RunConfig.from_flat({**OWN, **values}))


@pytest.mark.parametrize(
    ("values", "begin"),
    [
        ({"method": "pretext"}, "expand.samples = 0: the result is the seeds"),
        ({"method": "pe", "expand.samples": 9}, "models.generator = 'tiny' is a very small"),
        ({"method": "pretext", "models.generator": "small"}, "models.generator = 'small' is"),
        ({"method": "popri"}, "models.generator = 'tiny' is"),
    ],
)
def test_one_line_says_what_it_writes_and_the_way_out(values: Any, begin: str) -> None:
    (line,) = own(**values)
    assert line.startswith(begin) and "fragments" in line and "English docstrings" in line
    assert line.endswith(f"{REAL}, or name the folder of any causal model")


def test_in_place_of_a_conditional_model_a_folder_is_advised() -> None:
    (line,) = own(method="ctcl")
    assert line.startswith("models.conditional = 'tiny'") and "smollm2" not in line


@pytest.mark.parametrize(
    "values",
    [
        {"data.source": "docstrings", "data.path": "", "data.public-path": ""},
        {"models.generator": "/some/model"},
        {"method": "dp-fedavg"},
    ],
)
def test_nothing_is_said_where_no_such_model_writes(values: dict[str, Any]) -> None:
    assert own(**{"method": "pretext", **values}) == []


def test_the_report_has_them() -> None:
    summary = {
        "method": "pretext", "dataset": "files:a.jsonl", "users": 9, "epsilon": 1.0, "delta": 1e-6,
        "threat_model": "honest-but-curious server", "unit": "user", "adjacency": "zero-out",
        "accountant": "exact", "rounds": 1, "notes": ["it writes fragments"],
    }  # fmt: skip
    assert verdict_lines(summary) == ["note: it writes fragments"]
    assert "- pretext, epsilon 1: note: it writes fragments" in report([summary])


def test_a_run_with_canaries_says_that_it_is_an_audit() -> None:
    flat = {"data.source": "docstrings", "benchmark": True, "data.users": 40, "data.canaries": 12}
    (told,) = notes(RunConfig.from_flat(flat))
    assert told.startswith("12 of the 40 users are made up for an audit (data.canaries)")
    assert notes(RunConfig.from_flat(flat | {"data.canaries": 0})) == []


def test_a_benchmark_on_nobody_is_a_fault() -> None:
    flat = {"data.source": "docstrings", "benchmark": True, "data.held-out-users": 0}
    told = [one for one in faults(RunConfig.from_flat(flat)) if "held-out" in one]
    assert told and told[0].startswith("benchmark = true with data.held-out-users = 0")
    for more in ({"benchmark": False}, {"evaluation.on": "development"}):
        assert not any("nobody" in one for one in faults(RunConfig.from_flat(flat | more)))
