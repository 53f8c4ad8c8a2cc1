"""POPri through the whole pipeline in one process: real handlers, random models, a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.cli.ending import ending
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy import calibrate
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.preference import PreferenceTrainer
from privsyn_flower.text.prompts import HEADING
from privsyn_flower.text.serving.http_client import ServerError
from tests.rigs.http_generator import Body, Fake, choices
from tests.server_apps.in_process import (
    POPRI,
    PRETEXT,
    Killed,
    charges,
    killing,
    reviews_config,
    run,
    texts,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def configured(small: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Dotted keys on top of a run of one round -> the configuration."""
    return partial(small, **POPRI, **PRETEXT)


def test_a_benchmark_at_full_size_in_small(configured: Any, loopback: Any, tmp_path: Path) -> None:
    """Public text first, epochs, micro-batches, the epoch that development users choose."""
    keys = {
        "start": "public", "public-epochs": 1, "public-batch-size": 16, "epochs": 2,
        "batch-size": 8, "micro-batch-size": 3, "schedule": "constant", "warm-up": 0.0,
        "gradient-clip": 0.0, "precision": "bfloat16", "special-tokens": "bos-eos",
        "checkpoint": "development", "controls": "random-public",
    }  # fmt: skip
    config = configured(benchmark=True, **{f"evaluation.{key}": v for key, v in keys.items()})
    found = run(config, loopback, tmp_path / "run")[0]["benchmark"]
    assert list(found["methods"]) == ["pretrained", "random_public", "synthetic", "private"]
    # (a) is the start of the others: 60 public texts, tuned once.
    assert found["steps_per_fine_tuning"] == {"synthetic": 2, "private": 14}
    assert "which epsilon does not cover either" in found["note"]
    left = [path.name for path in (Path(config.cache) / "benchmark").glob("work-*")]
    assert left == [] and list((Path(config.cache) / "models").glob("start-*.work")) == []


def test_benchmark_compares_with_every_control(
    configured: Any, loopback: Any, tmp_path: Path
) -> None:
    private = {
        "benchmark": True, "popri.checkpoint": "private", "popri.select": "private",
        "evaluation.rival": "pretext",
    }  # fmt: skip
    config = configured(**private, **{"popri.epochs": 2})
    summary, grid = run(config, loopback, tmp_path / "run")
    assert {m.metadata.message_type.partition(".")[2] for m in grid.sent} == {"hello", "scores"}
    assert "EPSILON DOES NOT COVER THE SELECTION" in summary["privacy"]
    found = summary["benchmark"]
    made = ["unaligned", "noise_scores", "pretext", "synthetic"]
    assert list(found["methods"]) == ["pretrained", "random_public", *made, "private"]
    assert set(found["loss_difference"]) == {
        *(f"synthetic-{name}" for name in ("random_public", *made[:-1])),
        "private-random_public",
        "private-synthetic",
    }
    assert found["training_texts"] == {"random_public": 60, "private": 54} | dict.fromkeys(made, 8)
    assert set(found["frechet"]["synthetic"]) == {*made, "random_public", "private"}
    assert found["near_duplicates"].keys() == {"private", "held_out", "public"}
    assert found["near_duplicates"]["private"]["texts"] == 8
    assert found["costs"]["releases"] == 1 and found["costs"]["client_cpu_seconds_per_user"] > 0
    assert found["costs"]["bytes_up_per_user_round"] == summary["bytes_up_per_user_round"]
    rounds = found["responses"]
    assert [len(values) for values in rounds.values()] == [1] * 6
    assert min(rounds["frechet_chosen"] + rounds["medoid_distance"]) > 0
    assert 0 <= rounds["recovery_rate"][0] <= 1
    for name in ("accuracy", "candidates", "distances"):
        assert (tmp_path / "run" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    # The controls are generators of their own: the same prompts, other texts.
    names = ("synthetic", "control", "unaligned", "rival")
    assert len({tuple(texts(tmp_path / "run", name)) for name in names}) == 4
    # The noise is the released one's, and no user is in it.
    (own,) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    (noise,) = read_jsonl(tmp_path / "run" / "control" / "metrics.jsonl")
    assert noise["pairs"] > 0 and noise["score_std"] != own["score_std"]
    diagnostics = {
        "score_std", "signal_to_noise", "signal_to_noise_within", "preference_margin",
        "frechet_public", "training_loss", "training_reward_accuracy", "training_reward_margin",
        "training_kl", "pairs", "epoch", "noise_std", "seconds",
    }  # fmt: skip
    assert diagnostics <= set(own)
    assert all(isinstance(own[name], float | int) for name in diagnostics)

    again, grid = run(config, loopback, tmp_path / "run")
    assert grid.sent == [] and again["benchmark"] == found


@pytest.mark.parametrize("method", ["pretext", "popri", "dp-rft"])
def test_controls_that_were_left_out_are_nowhere(
    configured: Any, loopback: Any, tmp_path: Path, method: str
) -> None:
    chosen = "" if method == "pretext" else "unaligned"
    config = configured(**{"method": method, "benchmark": True, "evaluation.controls": chosen})
    summary, _ = run(config, loopback, tmp_path / "run")
    found, made = summary["benchmark"], [chosen] * bool(chosen)
    assert list(found["methods"]) == ["pretrained", *made, "synthetic", "private"]
    assert list(found["accuracy"]) == list(found["methods"])
    assert set(found["accuracy_difference"]) == {
        "private-synthetic", *(f"synthetic-{name}" for name in made),
    }  # fmt: skip
    for distances in found["frechet"].values():
        assert not {"random_public", "noise_votes", "noise_scores"} & set(distances)
    assert ("true_votes" in found, "responses" in found) == (method != "popri", method == "popri")
    there = {path.name for path in (tmp_path / "run").iterdir()}
    assert there & {"control.jsonl", "unaligned.jsonl", "rival.jsonl"} == (
        {"unaligned.jsonl"} if chosen else set()
    )
    assert "control" not in summary["stage_seconds"] and "control" not in there
    assert {"accuracy.png", "candidates.png"} <= there
    assert "no control on random public text" in " ".join(ending(summary, tmp_path).split())


def test_a_selected_round_is_paid_for_once(configured: Any, loopback: Any, tmp_path: Path) -> None:
    config = configured(
        **{
            "rounds": 2,
            "benchmark": True,
            "popri.select": "federated",
            "popri.select-samples": 16,
            "evaluation.controls": "noise",
            "ledger": str(tmp_path / "ledger.jsonl"),
            "population-name": "everybody",
        }
    )
    summary, grid = run(config, loopback, tmp_path / "run")
    assert sum(m.metadata.message_type.startswith("query.evaluation") for m in grid.sent) > 0
    # The noise is calibrated for two rounds, a spare one and the evaluation.
    assert summary["noise_multiplier"] == calibrate(500.0, 4, gaussian_delta(config.delta))
    assert "over 2 rounds and 1 spare and 1 evaluation of models on the nodes" in summary["privacy"]
    name = RunFolder(tmp_path / "run").load_value("run")
    paid = [row["run"] for row in charges(tmp_path / "run")]
    assert paid == [name, name, f"{name}-selection"]  # the export; the ledger itself is elsewhere
    assert paid == [row["run"] for row in charges(tmp_path)]
    selected = summary["selection"]
    losses = {key: value["loss"] for key, value in selected["estimates"].items()}
    assert f"round-{selected['round']:04d}" == min(losses, key=lambda key: losses[key])
    assert list(losses) == ["round-0001", "round-0002"]
    assert "noise_scores" in summary["benchmark"]["accuracy"]

    synthetic = (tmp_path / "run" / "synthetic.jsonl").read_bytes()
    for left in ("synthetic.jsonl", "summary.json"):
        (tmp_path / "run" / left).unlink()
    again, grid = run(config, loopback, tmp_path / "run")
    assert grid.sent == []
    assert (again["selection"], again["epsilon_ledger"]) == (selected, summary["epsilon_ledger"])
    assert (tmp_path / "run" / "synthetic.jsonl").read_bytes() == synthetic


@pytest.mark.parametrize("fails", [False, True])
def test_the_models_are_closed_whatever_happens(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(HuggingFaceGenerator, "close", lambda self: closed.append(id(self)))
    if not fails:
        run(configured(), loopback, tmp_path / "run")
    else:
        killing(monkeypatch, PreferenceTrainer, "train")
        with pytest.raises(Killed):
            run(configured(), loopback, tmp_path / "run")
        assert not (tmp_path / "run" / "summary.json").exists()
        # What was released is in the run's ledger, and a resumed run begins with it.
        assert len(charges(tmp_path / "run")) == 1
    assert len(closed) == 1


@pytest.fixture
def server(fake: Fake) -> Fake:
    """Distinct texts, then what a base model goes on with."""

    def complete(body: Body) -> Any:
        texts = (f"served {body['seed']} copy {i}\n{HEADING} 9\nrest" for i in range(body["n"]))
        return 200, choices(*texts)

    fake.answers["/v1/completions"] = complete
    return fake


def test_pretext_expands_on_a_given_server(
    configured: Any, loopback: Any, tmp_path: Path, server: Fake
) -> None:
    config = configured(
        **{
            "method": "pretext",
            "generation.backend": "openai",
            "generation.base-url": server.url,
            "models.generator": "m",
            "expand.temperature": 0.5,
            "expand.top-p": 0.25,
        }
    )
    summary, _ = run(config, loopback, tmp_path / "run")
    bodies = server.bodies()
    assert {(b["model"], b["temperature"], b["top_p"], b["max_tokens"]) for b in bodies} == {
        ("m", 0.5, 0.25, 12)
    }
    assert all(b["prompt"].startswith("List of 6 diverse") for b in bodies)
    written = texts(tmp_path / "run")[summary["seeds_in_front"] :]
    assert len(written) == 8 and set(written) <= {f"served {b['seed']} copy 0" for b in bodies}


def test_a_server_without_adapters_is_named_before_anything_is_asked(
    configured: Any, loopback: Any, tmp_path: Path, server: Fake, causal_folder: Path
) -> None:
    """The error says what the server lacks; where it has that, the same folder goes on."""
    values = {"generation.backend": "vllm", "generation.base-url": server.url, "rounds": 2}
    with pytest.raises(ServerError, match=r"adapter .*cannot be loaded.*--enable-lora"):
        run(configured(**values), loopback, tmp_path / "run")
    assert not RunFolder(tmp_path / "run").has_rounds() and not charges(tmp_path / "run")
    assert [path for path, _ in server.asked if "adapter" in path] == ["/v1/load_lora_adapter"]
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        server.answers[path] = lambda body: (200, {})
    summary, _ = run(configured(**values), loopback, tmp_path / "run")
    assert summary["rounds"] == 2 and len(charges(tmp_path / "run")) == 2
    assert {b["model"] for b in server.bodies()} > {str(causal_folder)}
    assert not list((tmp_path / "run" / "popri").glob("trial*"))


def test_openreview_end_to_end(
    loopback: Any, tmp_path: Path, causal_folder: Path, masked_folder: Path
) -> None:
    """The paper's class-conditional run with labelled stand-ins: one node, no public text."""
    values = {
        "rounds": 1, "popri.prompts": 10, "popri.responses": 3, "popri.rejected-rank": 3,
        "popri.epochs": 1, "popri.select-samples": 16, "expand.samples": 15,
        "evaluation.controls": "all",
    }  # fmt: skip
    name, models = "popri-openreview-eps4", (causal_folder, masked_folder)
    config = reviews_config(name, tmp_path, *models, **values)
    labels = config.classes
    summary, grid = run(config, loopback, tmp_path / "run")
    assert len(grid.nodes) == 1
    synthetic = read_jsonl(tmp_path / "run" / "synthetic.jsonl")
    assert len(synthetic) == 15 and {row["label"] for row in synthetic} <= set(labels)
    assert len({row["label"] for row in synthetic}) > 1
    found = summary["benchmark"]
    assert (found["task"], found["classes"]) == ("classification", labels)
    made = ["unaligned", "noise_scores", "synthetic"]
    assert list(found["methods"]) == ["pretrained", "majority", *made, "private"]
    assert found["training_texts"] == {"private": 30} | dict.fromkeys(made, 15)
    assert (found["held_out_users"], found["held_out_texts"]) == (15, 15)
    for measure in ("accuracy", "macro_f1"):
        assert list(found[measure]) == list(found["methods"])
        for name, value in found[measure].items():
            low, high = found[f"{measure}_interval"][name]
            assert 0 <= low <= high <= 1 and 0 <= value <= 1
        assert set(found[f"{measure}_difference"]) == {
            "synthetic-majority", "synthetic-unaligned", "synthetic-noise_scores",
            "private-synthetic",
        }  # fmt: skip
    assert "loss" not in found and "random_public" not in found["frechet"]["synthetic"]
    assert (tmp_path / "run" / "accuracy.png").exists()
    assert "on classes of " in ending(summary, tmp_path / "run")
