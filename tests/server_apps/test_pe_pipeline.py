"""Private evolution through the whole pipeline in one process: real handlers, a random Llama."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.config import RunConfig
from privsyn_flower.randomness import seeded
from privsyn_flower.runs import read_jsonl
from privsyn_flower.server_apps.methods.sft import imitations
from privsyn_flower.text.models.adapters import WEIGHTS
from privsyn_flower.text.prompts import expand_prompt
from privsyn_flower.text.rewriting import Rewrite
from tests.server_apps.in_process import one_thread, run, shared, small_config, texts

pytestmark = pytest.mark.slow

__all__ = ["one_thread", "shared"]  # pytest finds fixtures by name

AUG_PE: dict[str, Any] = {
    "pe.selection": "rank",
    "pe.copies": 2,
    "pe.initial": "model",
    "pe.prompt": "A short text about tea.",
    "pe.variation": "rewrite",
}


def configured(shared: Path, generator: Path, method: str = "pe", **values: Any) -> RunConfig:
    base: dict[str, Any] = {
        "method": method,
        "epsilon": 500.0,
        "rounds": 2,
        "simulation-seeded-noise": True,
        f"{method}.population": 8,
        f"{method}.lookahead": 1,
        f"{method}.threshold": 0.0,
        f"{method}.variation": "retrieval",
        "expand.samples": 0,
    }
    return small_config(shared, generator, **{**base, **values})


def test_pe_ends_with_public_neighbours_of_its_survivors(
    shared: Path, causal_folder: Path, loopback: Any, tmp_path: Path
) -> None:
    config = configured(shared, causal_folder, benchmark=True)
    summary, _ = run(config, loopback, tmp_path)
    written = texts(tmp_path)
    assert summary["method"] == "pe" and summary["rounds"] == 2
    assert summary["synthetic_samples"] == len(written) == len(set(written)) <= 8
    pool = {row["text"] for row in read_jsonl(shared / "public.jsonl")}
    assert set(written) <= pool
    benchmark = summary["benchmark"]
    assert {"synthetic", "noise_votes", "random_public"} <= benchmark["accuracy"].keys()
    assert len(benchmark["true_votes"]["survivors"]) == 2


def test_aug_pe_of_a_model_interrupted_and_resumed(
    shared: Path,
    causal_folder: Path,
    loopback: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = configured(shared, causal_folder, **AUG_PE)
    summary, _ = run(config, loopback, tmp_path / "whole")
    assert len(texts(tmp_path / "whole", "initial")) == 16
    query = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[0])
    assert query["survivors"] <= 8 and summary["synthetic_samples"] <= 8

    vary, left = Rewrite.vary, [1]  # the first round's variation is the one that breaks

    def breaking(*arguments: Any) -> list[str]:
        if left.pop() if left else 0:
            raise RuntimeError("the server went away")
        return vary(*arguments)

    monkeypatch.setattr(Rewrite, "vary", breaking)
    with pytest.raises(RuntimeError, match="went away"):
        run(config, loopback, tmp_path / "broken")
    assert not (tmp_path / "broken" / "synthetic.jsonl").exists()
    run(config, loopback, tmp_path / "broken")
    assert texts(tmp_path / "broken") == texts(tmp_path / "whole")
    assert texts(tmp_path / "broken", "initial") == texts(tmp_path / "whole", "initial")


def test_sft_writes_with_what_it_learned(
    shared: Path, causal_folder: Path, loopback: Any, tmp_path: Path
) -> None:
    """POPri's PE+SFT: PrE-Text's seeds teach the generator, at the same epsilon."""
    found = {}
    for epochs in (0, 2):
        values = {"sft.epochs": epochs, "sft.learning-rate": 1e-2, "expand.samples": 6}
        config = configured(shared, causal_folder, "pretext", **values)
        found[epochs] = run(config, loopback, tmp_path / str(epochs))[0]
    adapter = tmp_path / "2" / "sft" / "synthetic" / "epoch-2" / WEIGHTS
    assert adapter.is_file() and not (tmp_path / "0" / "sft").exists()
    assert found[2]["synthetic_samples"] == found[0]["synthetic_samples"] == 6
    assert found[2]["epsilon"] == found[0]["epsilon"]
    assert texts(tmp_path / "2") != texts(tmp_path / "0")


def test_imitations_show_other_texts() -> None:
    seeds = [f"text {i}\nof mine" for i in range(7)]
    pairs = imitations([*seeds, seeds[0]], 3, seeded(0, "sft"))
    lines = [" ".join(seed.split()) for seed in seeds]
    assert sorted(pair["chosen"] for pair in pairs) == lines
    for pair in pairs:
        shown = [line for line in lines if line in pair["prompt"]]
        assert len(shown) == 3 and pair["chosen"] not in shown
        assert any(
            pair["prompt"] == expand_prompt(list(order)) for order in itertools.permutations(shown)
        )
    assert [p["chosen"] for p in pairs] != lines
    with pytest.raises(ValueError, match=r"3 distinct.*sft\.epochs"):
        imitations(seeds[:3], 3, np.random.default_rng(0))
