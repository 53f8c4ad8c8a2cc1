"""The published folder: what is in it, what never is, and that the libraries load it offline."""

from __future__ import annotations

import json
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import DatasetCard, ModelCard

from privsyn_flower.app.report.guarantee import CARRIES, fact_sheet
from privsyn_flower.app.report.publishing.card import NOTHING_CLAIMED, TAG, Facts
from privsyn_flower.app.report.publishing.folder import publish
from privsyn_flower.app.report.publishing.product import SPLIT, PublishError, read_product
from privsyn_flower.server_apps.methods import recipe_of
from tests.app.report.pages import QUALITY
from tests.app.report.publishing.runs import BENCHMARK, FIGURE, ROWS, SECRET, make_run

FACTS = Facts(loaded=["embedder", "infiller"])
FILES = {
    "README.md", "data/train.parquet", "privacy.md", "privacy.yaml", "publish.json", "run.toml"
}  # fmt: skip


def published(run: Path, target: Path, facts: Facts = FACTS, **how: Any) -> Path:
    return publish(read_product(run, **how), target, facts)


def files_of(folder: Path) -> dict[str, bytes]:
    there = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in there}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.usefixtures("offline")
def test_datasets_loads_it_without_a_network(tmp_path: Path) -> None:
    from datasets import load_dataset

    rows = [{**row, "topic": i, "keywords": ["array", "shape"]} for i, row in enumerate(ROWS)]
    run = make_run(tmp_path / "run", rows=rows, method="ctcl")
    folder = published(run, tmp_path / "out")
    found = load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert list(found) == ["train"] and found["train"].to_list() == rows
    assert found["train"].column_names == ["text", "topic", "keywords"]


@pytest.mark.usefixtures("offline")
def test_what_votes_picked_goes_along(tmp_path: Path) -> None:
    from datasets import load_dataset

    seeds = [{"text": f"public {i}", "round": 1, "votes": 2.5 - i} for i in range(3)]
    run = make_run(tmp_path / "run", summary={"seeds": 3})
    lines = "".join(f"{json.dumps(row)}\n" for row in seeds)
    (run / "seeds.jsonl").write_text(lines)
    folder = published(run, tmp_path / "out")
    found = load_dataset(str(folder), "seeds", split="train", cache_dir=str(tmp_path / "cache"))
    assert found.to_list() == seeds
    assert "under the public text's own licence" in (folder / "README.md").read_text()
    (run / "seeds.jsonl").write_text(lines + '{"text": "of somebody else"}\n')
    with pytest.raises(PublishError, match="seeds = 3 in summary"):
        published(run, tmp_path / "more")


def test_the_card_begins_with_why_a_text_is_of_no_use(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", summary={"unusable": ["61 % of the words are unknown"]})
    card = (published(run, tmp_path / "out") / "README.md").read_text()
    assert "**NOT USABLE: 61 % of the words are unknown.**" in card


def test_the_card_of_a_data_set(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", epsilon=1.29)
    folder = published(run, tmp_path / "out", Facts(["infiller"], licence="cc-by-4.0"))
    card = DatasetCard.load(folder / "README.md")
    about = card.data.to_dict()
    assert about["license"] == "cc-by-4.0" and about["size_categories"] == ["n<1K"]
    assert {TAG, "synthetic"} <= set(about["tags"])
    claim, summary = about["differential_privacy"], json.loads((run / "summary.json").read_text())
    for name in ("delta", "unit", "adjacency", "threat_model"):
        assert claim[name] == summary[name]
    assert summary["epsilon"] <= claim["epsilon"] == 1.29, "rounded up, as in words"
    assert "epsilon: 1.29\n" in (folder / "README.md").read_text()
    for told in (
        summary["privacy"], summary["privacy_short"], "| epsilon | 1.29 |", "| delta | 3e-06 |",
        "| adjacency | zero-out |", "PrE-Text", "under `cc-by-4.0`", "| sqlalchemy |", "| MIT |",
        "Known limits", "5 texts",
    ):  # fmt: skip
        assert told in card.text, told
    assert NOTHING_CLAIMED not in card.text


@pytest.mark.parametrize(
    ("source", "since"), [("chats", "public since 2019"), ("emails", "public since 2002")]
)
def test_the_card_says_that_the_writer_may_have_read_what_is_public(
    tmp_path: Path, source: str, since: str
) -> None:
    flat = {"data.source": source, "models.generator": "smollm2", "expand.samples": 5}
    if source == "emails":
        flat["data.path"] = str(tmp_path / "mails")
    run = make_run(tmp_path / "run", summary={"quality": QUALITY}, **flat)
    loaded = recipe_of(read_product(run).config).loads(read_product(run).config)
    card = (published(run, tmp_path / "out", Facts(loaded)) / "README.md").read_text()
    assert f"{since}, so that a public model may have read them" in card
    assert "- `generator`: SmolLM2-135M-Instruct (`smollm2`), 134.5 million parameters" in card
    assert "written by smollm2 (134.5 million parameters)" in card
    assert str(tmp_path) not in card


def test_the_card_says_what_was_checked_and_no_figure_of_a_benchmark(tmp_path: Path) -> None:
    values = {"quality": QUALITY, "benchmark": BENCHMARK | {"closeness": {"x": {}}}}
    run = make_run(tmp_path / "run", summary=values)
    card = (published(run, tmp_path / "out") / "README.md").read_text()
    part = card[card.index("## What was checked") :]
    assert "- The text, by public things alone: 3.1% of the words unknown" in part
    assert "- Checked: how close the text comes" in part and "0.876" not in part
    assert "- Not checked: copies of private text" in part and "`privsyn inspect RUN`" in part
    close = {"the_run's": {"frechet": [0.5, 0.25, 0.75], "mauve": [0.9, 0.8, 1.0]}}
    told = make_run(tmp_path / "told", summary={"benchmark": BENCHMARK | {"closeness": close}})
    card = (published(told, tmp_path / "three", Facts([], figures=True)) / "README.md").read_text()
    assert "| the run's | 0.5000 [0.2500, 0.7500] | 0.9000 [0.8000, 1.0000] | - | - |" in card
    trained = make_run(tmp_path / "model", rows=None, model=True, method="dp-fedavg")
    card = (published(trained, tmp_path / "two") / "README.md").read_text()
    assert "- Not checked: what the result is worth" in card and "inspect" not in card


def test_the_card_of_a_model_and_its_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=None, model=True, method="dp-fedavg")
    folder = published(run, tmp_path / "out", Facts(["downstream"], name="me/it"))
    assert set(files_of(folder)) == {
        "README.md", "config.json", "model.safetensors", "privacy.md", "privacy.yaml",
        "publish.json", "run.toml",
    }  # fmt: skip
    card = ModelCard.load(folder / "README.md")
    about = card.data.to_dict()
    assert about["library_name"] == "transformers" and about["pipeline_tag"] == "text-generation"
    assert about["license"] == "unknown" and TAG in about["tags"]
    assert 'AutoModelForCausalLM.from_pretrained("me/it")' in card.text
    assert "DP-FedAvg" in card.text and "base_model" not in about
    assert "_name_or_path" not in json.loads((folder / "config.json").read_text())


@pytest.mark.usefixtures("offline")
def test_transformers_loads_the_model(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run = make_run(tmp_path / "run", rows=None, model=True, method="dp-fedavg")
    model = AutoModelForCausalLM.from_pretrained(published(run, tmp_path / "out"))
    assert model.num_parameters() == 8 * 4 + 7 * 16 + 3 * 4
    assert all(bool((weights == 1).all()) for weights in model.parameters())


def test_of_text_and_model_one_is_published(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model=True, method="ctcl")
    assert set(files_of(published(run, tmp_path / "text"))) == FILES
    assert "model.safetensors" in files_of(published(run, tmp_path / "model", model=True))
    text = make_run(tmp_path / "other")
    with pytest.raises(PublishError, match="left no model/"):
        read_product(text, model=True)
    none = make_run(tmp_path / "none", rows=None)
    with pytest.raises(PublishError, match=r"neither synthetic\.jsonl nor model/"):
        read_product(none)


def test_nothing_private_and_no_place_goes_along(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    flat = {
        "data.source": "files", "data.path": str(tmp_path / "own/users.jsonl"),
        "data.public-path": str(tmp_path / "own/public.jsonl"),
        "models.infiller": str(tmp_path / "own/roberta"), "generation.base-url": "http://10.0.0.7",
        "ledger": str(tmp_path / "own/ledger.jsonl"), "models.embedder": "sentence/t5",
    }  # fmt: skip
    run = make_run(tmp_path / "run", model=True, summary={"benchmark": BENCHMARK}, **flat)
    for model in (False, True):
        folder = published(run, tmp_path / f"out-{model}", model=model)
        for name, content in files_of(folder).items():
            for secret in (SECRET, str(tmp_path), "10.0.0.7", str(FIGURE), "PRIVATE"):
                assert secret.encode() not in content, (name, secret)
    found = files_of(tmp_path / "out-False")
    assert set(found) == FILES
    settings = found["run.toml"].decode()
    assert tomllib.loads(settings)["models"] == {"embedder": "sentence/t5"}
    assert "data.public-path, models.infiller, generation.base-url" in settings
    card = found["README.md"].decode()
    assert "A file of the publisher's own; its licence: unknown here." in card
    assert "[sentence/t5](https://huggingface.co/sentence/t5)" in card


def test_a_file_that_names_a_place_stops_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with (run / "privacy.yaml").open("a") as file:
        file.write(f"where: {run}/ledger.jsonl\n")
    with pytest.raises(PublishError, match=r"privacy.yaml would name .*run, a place"):
        published(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_figures_of_the_benchmark_only_when_asked(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", summary={"benchmark": BENCHMARK})
    folder = published(run, tmp_path / "without")
    assert not [n for n, content in files_of(folder).items() if b"0.876" in content]
    asked = Facts(["infiller"], figures=True)
    card = (published(run, tmp_path / "with", asked) / "README.md").read_text()
    assert "| (b) on the synthetic text | 0.8765 [0.8600, 0.8900] | 3.2500 |" in card
    assert "NOT covered by epsilon" in card and "- against random public text: better" in card
    bare = make_run(tmp_path / "bare")
    with pytest.raises(PublishError, match="no benchmark figures"):
        published(bare, tmp_path / "none", asked)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("flat", "why"),
    [
        ({"simulation-seeded-noise": True}, "none: the noise came from the run's seed"),
        ({"method": "expand-private", "benchmark": True}, "epsilon is infinite"),
        (
            {"method": "popri", "benchmark": True, "popri.checkpoint": "private"},
            "checkpoints were chosen by private text",
        ),
        ({"benchmark": True, "data.near-duplicates": "remove"}, SPLIT),
        ({"method": "public-only", "benchmark": True, "data.near-duplicates": "remove"}, SPLIT),
    ],
)
def test_what_nothing_is_claimed_for(flat: dict[str, Any], why: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", **flat)
    with pytest.raises(PublishError, match=rf"no privacy is claimed.*{why}.*--no-privacy-claimed"):
        read_product(run)
    folder = published(run, tmp_path / "out", anyway=True)
    card = DatasetCard.load(folder / "README.md")
    assert TAG not in card.data.tags and "differential_privacy" not in card.data.to_dict()
    assert card.text.split("\n\n")[1].startswith(f"**{NOTHING_CLAIMED}: ") and why in card.text


def test_public_text_alone_is_not_tagged_as_private(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="public-only")
    card = DatasetCard.load(published(run, tmp_path / "out") / "README.md")
    assert TAG not in card.data.tags and NOTHING_CLAIMED not in card.text
    assert "synthetic" not in card.data.tags and "# Public text of" in card.text
    assert "| epsilon | 0 |" in card.text and "no rounds in which users" in card.text


def test_unfinished_and_damaged_runs(tmp_path: Path) -> None:
    waits = make_run(tmp_path / "waits", summary={"unfinished": "benchmark"})
    with pytest.raises(PublishError, match=r"not finished \(to come: benchmark\): `privsyn run"):
        read_product(waits)
    (waits / "summary.json").unlink()
    with pytest.raises(ValueError, match="is not the summary of a finished run"):
        read_product(waits)
    with pytest.raises(PublishError, match="no run folder"):
        read_product(tmp_path)
    strange = make_run(tmp_path / "strange", rows=[{"text": "a"}, {"text": "b", "user_id": "u"}])
    with pytest.raises(PublishError, match=r"row 2 has user_id"):
        published(strange, tmp_path / "out")
    empty = make_run(tmp_path / "empty", rows=[])
    with pytest.raises(PublishError, match="holds no text"):
        published(empty, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    first = files_of(published(run, tmp_path / "one"))
    assert first == files_of(published(run, tmp_path / "deep" / "two")) and set(first) == FILES


def test_only_what_it_wrote_is_replaced(tmp_path: Path) -> None:
    run, target = make_run(tmp_path / "run"), tmp_path / "out"
    target.mkdir()  # empty: taken
    before = files_of(published(run, target))
    licensed = Facts(["infiller"], licence="mit")
    after = files_of(published(run, target, licensed))
    assert set(after) == set(before) and b"license: mit" in after["README.md"]
    (run / "synthetic.jsonl").write_text("{damaged")
    with pytest.raises(PublishError, match="line 1 is damaged"):
        published(run, target)
    assert files_of(target) == after
    (target / "README.md").write_text("my own words")
    with pytest.raises(PublishError, match=r"was changed since .* \(README.md\)"):
        published(run, target)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(PublishError, match="did not write it"):
        published(run, foreign)
    assert (foreign / "thesis.tex").read_text() == "years of work"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out", "foreign"}


def test_the_old_folder_stays_when_the_new_one_cannot_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, target = make_run(tmp_path / "run"), tmp_path / "out"
    before = files_of(published(run, target))
    rename = Path.rename

    def refuse(self: Path, place: Path) -> Path:
        if self.name == "new":
            raise KeyboardInterrupt
        return rename(self, place)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(KeyboardInterrupt):
        published(run, target, Facts(["infiller"], licence="mit"))
    assert files_of(target) == before
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


@pytest.mark.parametrize(
    ("about", "told", "library"),
    [
        ({"model_type": "privsyn-lstm"}, 'models.downstream = "FOLDER"', None),
        (
            {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"},
            "AutoModelForSeq2SeqLM.from_pretrained",
            "transformers",
        ),
    ],
)
def test_models_that_are_loaded_in_other_ways(
    about: dict[str, Any], told: str, library: str | None, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", rows=None, model=True, method="dp-fedavg")
    (run / "model" / "config.json").write_text(json.dumps(about))
    card = ModelCard.load(published(run, tmp_path / "out") / "README.md")
    assert told in card.text and card.data.library_name == library
    assert card.data.pipeline_tag is None
    (run / "model" / "model.safetensors").unlink()
    with pytest.raises(PublishError, match="holds no weights"):
        published(run, tmp_path / "none")


def test_the_card_has_the_fact_sheet_of_what_opened_private_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", epsilon=1.29)
    card = (published(run, tmp_path / "out") / "README.md").read_text()
    sheet = card.partition("## Fact sheet")[2].partition("\n## ")[0]
    items = fact_sheet(json.loads((run / "summary.json").read_text()))
    rows = [line for line in sheet.splitlines() if line.startswith("| section ")]
    assert len(rows) == len(items) > 15 and all(row.count(" | ") == 2 for row in rows)
    assert "| section 2: the promise | What is promised? | (epsilon = 1.29, delta = 3e-06)" in sheet
    again = (published(run, tmp_path / "again") / "README.md").read_text()
    assert again == card
    public = make_run(tmp_path / "public", method="public-only")
    assert "Fact sheet" not in (published(public, tmp_path / "out-p") / "README.md").read_text()
    local = make_run(tmp_path / "local", method="dp-prompt", benchmark=True)
    assert "| Replace-one: " in (published(local, tmp_path / "out-l") / "README.md").read_text()


@pytest.mark.parametrize(
    ("key", "value"),
    [("epsilon", 0.1), ("delta", 1e-9), ("threat_model", "local: nobody is trusted")],
)
def test_numbers_that_the_claim_does_not_have_stop_it(key: str, value: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", summary={key: value})
    with pytest.raises(PublishError, match=rf"summary\.json was changed .*: {key} in it differ"):
        published(run, tmp_path / "out")


def test_text_that_the_run_did_not_end_with_stops_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    text = (run / "synthetic.jsonl").read_text()
    (run / "synthetic.jsonl").write_text(text + '{"text": "somebody has something"}\n')
    with pytest.raises(PublishError, match=r"synthetic_samples = 5 in summary\.json, 6 here"):
        published(run, tmp_path / "out")
    (run / "synthetic.jsonl").write_text(text.replace("text 3", "mine"))
    with pytest.raises(PublishError, match="synthetic_sha256 = "):
        published(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "name",
    ["synthetic.jsonl", "privacy.yaml", "summary.json", "config.toml", "model/model.safetensors",
     "model/config.json"],
)  # fmt: skip
def test_no_link_is_followed(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model=True, method="ctcl")
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PublishError, match=r"is a link, or no plain file"):
        published(run, tmp_path / "out", model=name.startswith("model/"))
    assert not (tmp_path / "out").exists()


def test_the_statement_is_the_summarys(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    own = (run / "privacy.md").read_text()
    (run / "privacy.md").unlink()
    (run / "privacy.md").symlink_to(run / "private/users.jsonl")
    assert (published(run, tmp_path / "out") / "privacy.md").read_text() == own


def test_a_record_may_be_filled_in_and_claims_what_the_run_claims(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    text = (run / "privacy.yaml").read_text()
    filled = text.replace("TO BE FILLED IN: what it is for.", "Testing keyboards.")
    (run / "privacy.yaml").write_text(filled)
    assert (published(run, tmp_path / "out") / "privacy.yaml").read_text() == filled != text
    (run / "privacy.yaml").write_text(text.replace("epsilon: 7.5", "epsilon: 0.5"))
    with pytest.raises(PublishError, match=r"privacy.yaml claims .*0\.5.* its run .*7\.5"):
        published(run, tmp_path / "out")
    empty = "deployment:\n  privacy_loss:\n    privacy_parameters: {}\n  dp_variant:\n"
    for damaged in ("tier: 1\n", empty):
        (run / "privacy.yaml").write_text(damaged)
        with pytest.raises(PublishError, match=r"privacy\.yaml is damaged"):
            published(run, tmp_path / "out")


def test_a_card_begins_with_what_the_public_text_carries(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="public-only", summary={"public_text_carries": True})
    (run / "privacy.yaml").unlink()
    card = (published(run, tmp_path / "out") / "README.md").read_text()
    assert f"**{CARRIES}**" in card.partition("## Privacy")[0]
