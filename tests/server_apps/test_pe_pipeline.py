"""Private evolution through the whole pipeline in one process: real handlers, a random Llama."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import RunConfig
from privsyn_flower.data import Federation, label_of, prepare
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.server_apps.methods.pretext import imitations
from privsyn_flower.server_apps.methods.synthesis import Synthesis
from privsyn_flower.text.models.adapters import WEIGHTS
from privsyn_flower.text.prompts import expand_prompt
from privsyn_flower.text.variation import Rewrite
from tests.conftest import sentences
from tests.server_apps.in_process import EVOLUTION, Killed, killing, reviews_config, run, texts

pytestmark = pytest.mark.slow


AUG_PE: dict[str, Any] = {
    "pe.selection": "rank",
    "pe.copies": 2,
    "pe.initial": "model",
    "pe.prompt": "A short text about tea.",
    "pe.variation": "rewrite",
}


@pytest.fixture
def configured(small: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Method and further keys -> a small configuration."""

    def make(method: str = "pe", **values: Any) -> RunConfig:
        own = {key.replace("pretext", method): value for key, value in EVOLUTION.items()}
        return small(**{**own, "method": method, **values})

    return make


def test_pe_ends_with_public_neighbours_of_its_survivors(
    configured: Any, shared: Path, loopback: Any, tmp_path: Path
) -> None:
    config = configured(benchmark=True)
    summary, _ = run(config, loopback, tmp_path)
    written = texts(tmp_path)
    assert summary["method"] == "pe" and summary["rounds"] == 2
    assert summary["synthetic_samples"] == len(written) == len(set(written)) <= 8
    pool = {row["text"] for row in read_jsonl(shared / "public.jsonl")}
    assert set(written) <= pool
    benchmark = summary["benchmark"]
    assert {"synthetic", "noise_votes", "random_public"} <= benchmark["accuracy"].keys()
    found = benchmark["true_votes"]
    assert len(found["survivors"]) == 2 and 0 <= found["seeds_against_random"] <= 1


def test_aug_pe_of_a_model_interrupted_and_resumed(
    configured: Any, loopback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(**AUG_PE)
    summary, _ = run(config, loopback, tmp_path / "whole")
    assert len(texts(tmp_path / "whole", "initial")) == 16
    query, *_ = read_jsonl(tmp_path / "whole" / "metrics.jsonl")
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


LABELS = ("glad", "sad", "never")  # nobody writes the last one


@pytest.fixture
def labelled(tmp_path: Path) -> dict[str, Any]:
    """Users with texts of two classes and of labels outside the list; public text of all three."""
    private = [
        {"user_id": f"u{i // 3}", "text": text, "label": ("glad", "sad", "odd", "")[i % 4]}
        for i, text in enumerate(sentences(120, 1))
    ]
    public = [
        {"user_id": f"p{i}", "text": text, "label": LABELS[i % 3]}
        for i, text in enumerate(sentences(120, 2))
    ]
    write_jsonl(tmp_path / "private.jsonl", private)
    write_jsonl(tmp_path / "public.jsonl", public)
    return {
        "data.path": str(tmp_path / "private.jsonl"),
        "data.public-path": str(tmp_path / "public.jsonl"),
        "data.label-column": "label",
        "cache": str(tmp_path / "cache"),
    }


@pytest.mark.parametrize("method", ["pe", "pretext"])
def test_votes_within_classes_of_public_text(
    configured: Any, loopback: Any, tmp_path: Path, labelled: dict[str, Any], method: str
) -> None:
    """Masked sums of three nodes: texts move candidates of their own class alone, others nothing,
    and the text that is written has the class of the seeds that the generator was shown."""
    own = {f"{method}.labels": ", ".join(LABELS), f"{method}.lookahead": 2, "expand.samples": 9}
    values = {**labelled, **own, f"{method}.clip": "worst-case", f"{method}.vote-bound": 3.0}
    values |= {"benchmark": True, "evaluation.controls": "noise"}
    config = configured(method, **values)
    summary, _ = run(config, loopback, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    users = Federation(prepare(config.data, tmp_path / "cache")).shard(0, 1)
    written = [label_of(text) for texts in users.values() for text in texts]
    for row in folder.metrics():
        query, released = folder.load_query(row["round"]), folder.load_release(row["round"])
        assert query is not None and released is not None
        classes = np.array(LABELS)[query.extra["classes"]]
        spread = row["noise_std"]
        for name in LABELS:
            of_class = released[classes == name]
            assert of_class.sum() == pytest.approx(
                written.count(name), abs=5 * spread * len(of_class) ** 0.5 + 0.1
            )
    assert written.count("glad") > 5 and written.count("odd") and not written.count("never")
    rows = read_jsonl(tmp_path / "run" / "synthetic.jsonl")
    written = rows[summary["seeds_in_front"] :]
    assert len(rows) == summary["synthetic_samples"] and len(written) == 9
    assert {row["label"] for row in written} == set(LABELS)
    found = summary["benchmark"]["true_votes"]
    assert len(found["survivors"]) == 2 and "seeds_against_random" not in found
    assert "noise_votes" in summary["benchmark"]["accuracy"]


def test_aug_pe_on_reviews_end_to_end(
    loopback: Any,
    tmp_path: Path,
    causal_folder: Path,
    masked_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The paper's configuration with labelled stand-ins: one node, no public text; resumed, too."""
    values = {
        "rounds": 2, "simulation-seeded-noise": True, "generation.chat": False,
        "pe.population": 12, "pe.copies": 2, "pe.rewrite": "A {label} one {style}: {text}",
        "evaluation.controls": "noise",
    }  # fmt: skip
    name, models = "aug-pe-popri-openreview-eps4", (causal_folder, masked_folder)
    config = reviews_config(name, tmp_path, *models, **values)
    labels = config.classes
    vary, asked = Rewrite.vary, list[tuple[str, int]]()

    def watched(self: Rewrite, *arguments: Any) -> list[str]:
        if (tmp_path / "fail").exists() and len(asked) == 3:
            raise RuntimeError("the server went away")
        asked.append((self.instruction, len(arguments[0])))
        return vary(self, *arguments)

    monkeypatch.setattr(Rewrite, "vary", watched)
    summary, grid = run(config, loopback, tmp_path / "whole")
    assert len(grid.nodes) == 1
    # 12 survivors of five classes: 3, 3, 2, 2, 2, varied once, by an instruction for each class;
    # before, a few of the first candidates are tried.
    told = [f"A {label} one {{style}}: {{text}}" for label in labels]
    tried = next(i for i in range(len(asked)) if asked[i][0] == told[0] and i)
    assert asked[tried : tried + 5] == list(zip(told, [3, 3, 2, 2, 2], strict=True))
    initial = read_jsonl(tmp_path / "whole" / "initial.jsonl")
    assert [row["label"] for row in initial] == [name for name in labels for _ in range(6)]
    synthetic = read_jsonl(tmp_path / "whole" / "synthetic.jsonl")
    assert {row["label"] for row in synthetic} == set(labels)
    assert len(synthetic) == summary["synthetic_samples"] <= 12
    found = summary["benchmark"]
    assert (found["task"], found["classes"]) == ("classification", labels)
    made = ["noise_votes", "synthetic"]
    assert list(found["methods"]) == ["pretrained", "majority", *made, "private"]
    assert found["training_texts"]["synthetic"] == len(synthetic)
    assert (found["held_out_users"], found["held_out_texts"]) == (15, 15)

    (tmp_path / "fail").touch()
    asked.clear()
    with pytest.raises(RuntimeError, match="went away"):
        run(config, loopback, tmp_path / "broken")
    (tmp_path / "fail").unlink()
    with monkeypatch.context() as patch:  # the benchmark is that of the other run
        killing(patch, Synthesis, "benchmark")
        with pytest.raises(Killed):
            run(config, loopback, tmp_path / "broken")
    assert read_jsonl(tmp_path / "broken" / "synthetic.jsonl") == synthetic


def test_sft_writes_with_what_it_learned(configured: Any, loopback: Any, tmp_path: Path) -> None:
    """POPri's PE+SFT: PrE-Text's seeds teach the generator, at the same epsilon."""
    found = {}
    for epochs in (0, 2):
        values = {"sft.epochs": epochs, "sft.learning-rate": 1e-2, "expand.samples": 6}
        config = configured("pretext", **values)
        found[epochs] = run(config, loopback, tmp_path / str(epochs))[0]
    adapter = tmp_path / "2" / "sft" / "synthetic" / "epoch-2" / WEIGHTS
    assert adapter.is_file() and not (tmp_path / "0" / "sft").exists()
    for summary in found.values():
        assert summary["synthetic_samples"] - summary["seeds_in_front"] == 6
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
