"""Rows of the papers' tables without rounds: through the whole pipeline, and nobody is asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from privsyn_flower.app.benchmark import private
from privsyn_flower.app.cli.ending import ending
from privsyn_flower.app.preflight import check_ready
from privsyn_flower.app.preflight.numbers import keys
from privsyn_flower.app.report.summaries import LOCAL, NO_QUERIES, NONE, trust_of
from privsyn_flower.app.report.tables import report
from privsyn_flower.common.files import file_digest
from privsyn_flower.common.progress import silent
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.server_apps.methods import dp_prompt, recipe_of
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.privacy_plan import baseline, privacy_plan
from privsyn_flower.server_apps.public_text import public_text
from privsyn_flower.server_apps.run import Run
from privsyn_flower.text.generators import HuggingFaceGenerator
from tests.conftest import sentences
from tests.server_apps.in_process import run_on, texts, with_texts

pytestmark = pytest.mark.slow


ROWS = ("public-only", "expand-only", "expand-private", "dp-prompt")
PRIVATE_WORDS = "ledger audit invoice payroll budget tariff quarter margin asset equity".split()


class Nobody:
    """A grid that fails whoever asks it anything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"grid.{name}: a baseline asks nobody")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Private and public text of different words, and a cache for this file's tests."""
    return with_texts(tmp_path_factory.mktemp("baselines"), PRIVATE_WORDS)


@pytest.fixture
def configured(small: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Method and further keys -> a small configuration."""

    def make(method: str, **values: Any) -> RunConfig:
        base = {
            "method": method,
            "epsilon": 40.0,
            "benchmark": True,
            "data.samples-per-user": 2,
            "dp-prompt.max-tokens": 10,
        }
        return small(**{**base, **values})

    return make


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that the generator is given, as they come."""
    prompts: list[str] = []
    complete = HuggingFaceGenerator.complete

    def listening(self: Any, given: Any, n: int, rng: Any) -> Any:
        prompts.extend(given)
        return complete(self, given, n, rng)

    monkeypatch.setattr(HuggingFaceGenerator, "complete", listening)
    return prompts


def run(config: RunConfig, path: Path) -> dict[str, Any]:
    return run_on(Nobody(), config, path)


def private_lines(shared: Path) -> set[str]:
    return {row["text"] for row in read_jsonl(shared / "private.jsonl")}


def same_words(text: str) -> bool:
    return bool(set(text.split()) & set(PRIVATE_WORDS))


def test_public_only_is_the_pool_and_is_measured(
    configured: Any, shared: Path, tmp_path: Path
) -> None:
    summary = run(configured("public-only"), tmp_path)
    pool = texts(tmp_path)
    assert len(pool) == len(set(pool)) == summary["synthetic_samples"] == 60
    assert set(pool) <= {row["text"] for row in read_jsonl(shared / "public.jsonl")}
    assert (summary["epsilon"], summary["delta"], summary["rounds"]) == (0, 0, 0)
    assert summary["rounds_planned"] == 0 and summary["epsilon_ledger"] is None
    assert summary["rho_zcdp"] is None and summary["claim"] is None
    assert summary["public_text_carries"] is False
    assert summary["synthetic_sha256"] == file_digest(tmp_path / "synthetic.jsonl")
    assert "nothing private was used" in (tmp_path / "privacy.md").read_text()
    assert not list(tmp_path.glob("*ledger*")) and not (tmp_path / "releases").exists()
    found = summary["benchmark"]
    assert set(found["accuracy"]) == {"pretrained", "random_public", "synthetic", "private"}
    assert "synthetic-random_public" in found["accuracy_difference"]
    assert found["costs"]["releases"] == 0
    assert trust_of(summary) == NO_QUERIES and "| public-only |" in report([summary])
    assert "Epsilon = 0" in ending(summary, tmp_path)


@pytest.mark.parametrize("method", ["public-only", "pretext"])
def test_what_public_text_carried_is_said_when_its_statement_has_gone(
    configured: Any, shared: Path, tmp_path: Path, method: str
) -> None:
    place = shutil.copy(shared / "public.jsonl", tmp_path)
    beside, folder = tmp_path / "privacy.md", RunFolder(tmp_path / "run")
    beside.write_text("# Privacy of this run\n\nEpsilon = 3\n")
    config = configured(method, **{"data.public-path": str(place)})
    for _ in range(2):
        begun = Run(config, cast(Any, Nobody()), folder)
        assert begun.known()["public_text_carries"] is True
        assert (folder.path / "privacy.md").read_text().endswith("Epsilon = 3\n")
        beside.unlink(missing_ok=True)
    beside.write_text("# Privacy of this run\n\nEpsilon = 4\n")  # of another model, say
    page = Run(config, cast(Any, Nobody()), folder).statement.page()
    assert page.endswith("Epsilon = 3\n\n# Privacy of this run\n\nEpsilon = 4\n")


def test_minority_only_is_the_part_of_the_pool_that_is_like_the_users(configured: Any) -> None:
    config = configured("minority-only")
    federation = SimpleNamespace(public_minority=lambda: ["a note", "a note", "a chat"])
    run: Any = SimpleNamespace(config=config, folder=None, federation=lambda: federation)
    models: Any = None  # none is loaded
    assert recipe_of(config)(run, models).strategy(RunFolder(Path())) == ["a note", "a chat"]
    (fault,) = recipe_of(config).faults(config)  # text of files has no part that is like another
    assert "data.source = 'files'" in fault and "method = 'public-only'" in fault
    chats: dict[str, Any] = {"data.source": "chats", "data.public-pool": 400}
    config = RunConfig.from_flat({"method": "minority-only", "data.minority-share": 0.25, **chats})
    assert not list(recipe_of(config).faults(config)) and recipe_of(config).texts(config) == 100


@pytest.fixture
def classes(configured: Any, tmp_path: Path) -> Callable[..., RunConfig]:
    """Further keys -> public-only on users of two classes, two thirds of them of one."""
    rows = [
        {"user_id": f"u{i}", "text": text, "label": "rare" if i % 3 == 0 else "usual"}
        for i, text in enumerate(sentences(60, 4))
    ]
    write_jsonl(tmp_path / "classes.jsonl", rows)
    own: dict[str, Any] = {
        "data.path": str(tmp_path / "classes.jsonl"),
        "data.label-column": "label",
        "data.samples-per-user": 1,
        "data.held-out-users": 15,
        "data.public-validation": 0,
        "popri.labels": "rare, usual",
        "evaluation.task": "classification",
    }

    def make(**values: Any) -> RunConfig:
        made: RunConfig = configured("public-only", **own, **values)
        return made

    return make


def test_the_most_frequent_class_needs_no_public_text(classes: Any, tmp_path: Path) -> None:
    """POPri's row of epsilon = 0 on OpenReview, whose public text is none."""
    config = classes(**{"data.public-path": "", "evaluation.controls": ""})
    assert not [finding for finding in check_ready(config, tmp_path / "run") if finding.fatal]
    summary = run(config, tmp_path / "run")
    found, held_out = summary["benchmark"]["accuracy"], _federation(config).held_out("test")
    usual = [text.label == "usual" for own in held_out.values() for text in own]
    assert len(usual) == 15 and found["majority"] == pytest.approx(sum(usual) / 15)
    assert set(found) == {"pretrained", "majority", "private"}
    assert summary["synthetic_samples"] == 0 and summary["epsilon"] == 0


def test_public_texts_keep_their_classes(classes: Any, shared: Path, tmp_path: Path) -> None:
    rows = [{**row, "label": "rare"} for row in read_jsonl(shared / "public.jsonl")]
    write_jsonl(tmp_path / "public.jsonl", rows)
    config = classes(**{"data.public-path": str(tmp_path / "public.jsonl"), "benchmark": False})
    run(config, tmp_path / "run")
    assert [row["label"] for row in read_jsonl(tmp_path / "run" / "synthetic.jsonl")] == [
        "rare"
    ] * 60


def test_public_only_opens_no_private_text(
    configured: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does Expand-only: without a benchmark nothing but the split itself reads it."""

    def closed(*_: Any) -> None:
        raise AssertionError("private text was opened")

    monkeypatch.setattr("privsyn_flower.data.Federation.shard", closed)
    monkeypatch.setattr("privsyn_flower.data.Federation.held_out", closed)
    for method in ("public-only", "expand-only"):
        config = configured(method, **{"benchmark": False, "models.embedder": "ngram-32"})
        summary = run(config, tmp_path / method)
        assert summary["synthetic_samples"] == {"public-only": 60, "expand-only": 8}[method]
        assert "benchmark" not in summary


def test_expand_only_shows_public_texts_and_resumes(
    configured: Any, shared: Path, tmp_path: Path, shown: list[str]
) -> None:
    config = configured("expand-only", benchmark=False)
    first = run(config, tmp_path)
    assert shown and not any(same_words(prompt) for prompt in shown)
    assert len(texts(tmp_path)) == 8 and first["epsilon"] == 0
    shown.clear()
    (tmp_path / "summary.json").unlink()  # killed before it was written
    assert run(config, tmp_path)["synthetic_samples"] == 8
    assert not shown
    released = configured("expand-only", benchmark=False, **{"expand.include-seeds": True})
    facts = run(released, tmp_path / "released")  # the pool, and what was written of it
    assert (facts["seeds_in_front"], facts["synthetic_samples"]) == (60, 68)
    assert facts["quality"]["texts"] == 8


def test_expand_private_shows_private_texts_and_says_so(
    configured: Any, shared: Path, tmp_path: Path, shown: list[str]
) -> None:
    summary = run(configured("expand-private", **{"evaluation.controls": ""}), tmp_path)
    assert shown and all(same_words(prompt) for prompt in shown)
    assert not set(texts(tmp_path)) & private_lines(shared)
    assert summary["epsilon"] is None and trust_of(summary) == NONE
    assert "NO PRIVACY" in summary["privacy_short"] and "NO PRIVACY" in summary["privacy"]
    assert "NO PRIVACY" in (tmp_path / "run.log").read_text()
    assert {"synthetic", "private"} <= set(summary["benchmark"]["accuracy"])
    assert "| infinity |" in report([summary]) and "epsilon is infinite" in ending(
        summary, tmp_path
    )


def test_dp_prompt_paraphrases_each_text_once_at_the_price_of_epsilon(
    configured: Any, shared: Path, tmp_path: Path
) -> None:
    config = configured("dp-prompt")
    summary = run(config, tmp_path)
    own = summary["dp_prompt"]
    users = private.private_texts(config, _federation(config))
    assert len(users) == 18 and max(map(len, users.values())) == 2
    assert 0 < len(texts(tmp_path)) <= sum(map(len, users.values()))
    # 2 texts of 10 tokens share epsilon = 40; the range is the public texts', T follows.
    assert own["epsilon_of_a_token"] == pytest.approx(2.0)
    assert own["epsilon_of_a_text"] == pytest.approx(20.0)
    price = 2 * (own["logit_high"] - own["logit_low"]) / own["temperature"]
    assert price == pytest.approx(2.0) and summary["epsilon"] == pytest.approx(40.0)
    sent = sum(len(text.encode()) for text in texts(tmp_path))
    assert sent / 18 <= own["bytes_of_a_user"] <= sent
    assert trust_of(summary) == LOCAL and summary["adjacency"] == "replace-one"
    assert "paraphrases themselves" in summary["privacy"]
    assert {"synthetic", "random_public", "private"} <= set(summary["benchmark"]["accuracy"])


def _federation(config: RunConfig) -> Any:
    return public_text(config, silent).federation


def test_dp_prompts_draws_are_the_systems_unless_for_tests(
    configured: Any, tmp_path: Path, shared: Path
) -> None:
    given = {"dp-prompt.logit-low": -3.0, "dp-prompt.logit-high": 3.0, "epsilon": 4e5}
    seeded = {**given, "simulation-seeded-noise": True, "data.held-out-users": 1}
    found = []
    for number, values in enumerate([seeded, seeded, {**seeded, "simulation-seeded-noise": False}]):
        config = configured("dp-prompt", **values)
        folder = tmp_path / str(number)
        recipe: Any = recipe_of(config)(*_parts(config, folder))
        recipe.owners = ["u1"] * 6
        found.append([one.text for one in recipe.write(sentences(6, 3), "synthetic")])
        assert recipe.figures([])["dp_prompt"]["temperature"] == pytest.approx(12 / 2e4)
    assert found[0] == found[1]
    claim = baseline(configured("dp-prompt", **seeded))
    assert claim is not None and claim.threat_model.startswith("none")
    draws = {dp_prompt.DPPromptRecipe._generator(recipe).integers(2**60) for _ in range(4)}
    assert len(draws) == 4  # the last configuration's: no seed


def _parts(config: RunConfig, folder: Path) -> tuple[Any, Any]:
    """What a recipe is made with, without a run."""
    own = RunFolder(folder)
    models = Models(config, public_text(config, silent), own, silent)
    return SimpleNamespace(config=config, folder=own, progress=silent), models


# Before a run --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ROWS)
def test_a_row_has_no_phases_and_is_ready(configured: Any, tmp_path: Path, method: str) -> None:
    config = configured(method)
    assert not recipe_of(config).phases(config)
    claim = baseline(config)
    assert claim is not None and claim.benchmark and claim.simulated
    with pytest.raises(ConfigError, match="asks no user anything"):
        privacy_plan(config)
    with pytest.raises(ConfigError, match="asks no user anything"):
        recipe_of(config).question(config)
    assert not [finding for finding in check_ready(config, tmp_path / "run") if finding.fatal]


def test_a_method_with_rounds_is_no_baseline(configured: Any) -> None:
    assert baseline(configured("pretext")) is None and baseline(configured("popri")) is None


@pytest.mark.parametrize("method", ["expand-private", "dp-prompt"])
def test_private_text_is_opened_for_benchmarks_alone(
    configured: Any, tmp_path: Path, method: str
) -> None:
    config = configured(method, benchmark=False)
    assert any("benchmark = true" in finding.text for finding in keys(config))
    with pytest.raises(ConfigError, match="benchmark = true"):
        run(config, tmp_path)
    assert not (tmp_path / "synthetic.jsonl").exists()
    with pytest.raises(ConfigError, match="benchmark = true"):
        private.private_texts(config, _federation(config))


@pytest.mark.parametrize("values", [{"expand.include-seeds": True}, {"expand.samples": 0}])
def test_private_seeds_never_become_the_result(
    configured: Any, tmp_path: Path, values: dict[str, Any]
) -> None:
    config = configured("expand-private", **values)
    assert any("the seeds are the private texts" in finding.text for finding in keys(config))
    with pytest.raises(ConfigError, match="the seeds are the private texts"):
        run(config, tmp_path)


def test_private_prompts_stay_on_this_machine(configured: Any, tmp_path: Path) -> None:
    far = {"generation.backend": "openai", "generation.base-url": "https://models.example.org/v1"}
    config = configured("expand-private", **far)
    assert any("must not leave this machine" in finding.text for finding in keys(config))
    with pytest.raises(ConfigError, match="must not leave this machine"):
        run(config, tmp_path)
    near = configured("expand-private", **{**far, "generation.base-url": "http://127.0.0.1:80/v1"})
    assert not list(recipe_of(near).faults(near))


@pytest.mark.parametrize("method", ROWS)
def test_a_row_has_no_place_among_real_users_if_it_needs_their_text(
    configured: Any, method: str
) -> None:
    config = configured(method, **{"data.path": "", "benchmark": False})
    found = [finding.text for finding in keys(config)]
    assert bool(found) == (method in ("expand-private", "dp-prompt"))


@pytest.mark.parametrize("method", ROWS)
def test_a_rival_needs_noise(configured: Any, method: str) -> None:
    found = keys(configured(method, **{"evaluation.rival": "pretext"}))
    assert any("evaluation.rival = 'pretext'" in finding.text for finding in found)


def test_dp_prompt_needs_logits_and_a_range(configured: Any) -> None:
    with pytest.raises(ConfigError, match="gives no logits to clip"):
        configured("dp-prompt", **{"generation.backend": "vllm"})
    with pytest.raises(ConfigError, match=r"logit-low = 3\.0 must be below"):
        configured("dp-prompt", **{"dp-prompt.logit-low": 3.0, "dp-prompt.logit-high": 1.0})
    config = configured("dp-prompt", **{"data.public-validation": 0})
    assert any("data.public-validation = 0" in finding.text for finding in keys(config))
