"""`privsyn topics`: made of public text, shown, imported; and how each ends that cannot be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from privsyn_flower.common.arrays import F32
from privsyn_flower.common.progress import silent
from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.server_apps.public_text import carried_by, public_text
from privsyn_flower.server_apps.topics import topics_of
from privsyn_flower.text import topic_training
from privsyn_flower.text.embedders import NgramEmbedder, embedder_fingerprint
from privsyn_flower.text.topics import load_topics
from tests.rigs import command_line

privsyn = partial(command_line.privsyn, "topics")

TEXTS = [
    f"{a} {b} water stone {c}" for a in ("river", "cloud") for b in ("deep", "high") for c in "xyz"
]


def jsonl(path: Path, column: str = "text") -> Path:
    rows = [*({column: text} for text in TEXTS), {column: None}, {"other": 1}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "no json\n")
    return path


@pytest.fixture
def ngrams(tmp_path: Path) -> tuple[str, ...]:
    return ("--set", "models.embedder=ngram-64", "--set", f"cache={tmp_path / 'cache'}")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "public.txt"
    path.write_text("\n".join(TEXTS) + "\n\n")
    return path


def test_topics_have_the_statement_of_the_text_that_they_are_of(
    tmp_path: Path, lines: Path, ngrams: Any
) -> None:
    lines.with_name("privacy.md").write_text("# Privacy of this run\n\nEpsilon = 3\n")
    folder = tmp_path / "deeper" / "topics"
    made = privsyn("make", folder, "--texts", lines, "--count", 2, *ngrams)
    assert made.exit_code == 0, made.stderr
    config = RunConfig.from_flat({"method": "ctcl", "ctcl.topics": str(folder)})
    assert carried_by(config) == (folder / "privacy.md").read_text().strip() != ""


def test_topics_of_a_text_file_and_what_is_shown_of_them(
    tmp_path: Path, lines: Path, ngrams: Any
) -> None:
    folder = tmp_path / "topics"
    made = privsyn("make", folder, "--texts", lines, "--count", 2, "--words", 3, *ngrams)
    assert made.exit_code == 0, made.stderr
    assert "2 topics of 12 public texts, 64 dimensions" in made.stdout
    model = load_topics(folder, embedder_fingerprint("ngram-64"))
    first = {words[0] for words in model.keywords}
    assert sum(model.sizes) == 12 and first in ({"river", "cloud"}, {"deep", "high"})
    shown = privsyn("show", folder).stdout.splitlines()
    assert shown[0] == made.stdout.strip() and len(shown) == 3
    assert shown[1].split(maxsplit=2) == ["0", str(model.sizes[0]), ", ".join(model.keywords[0])]
    facts = json.loads(privsyn("show", folder, "--json").stdout)
    assert facts["fingerprint"] == model.fingerprint and facts["topics"] == 2
    assert facts["keywords"] == [list(words) for words in model.keywords]


def test_the_same_text_gives_the_same_topics_from_any_format(
    tmp_path: Path, lines: Path, ngrams: Any
) -> None:
    table = jsonl(tmp_path / "public.jsonl", "body")
    asked = ("--count", 2, "--seed", 3, "--rerank", *ngrams)
    assert privsyn("make", tmp_path / "a", "--texts", lines, *asked).exit_code == 0
    made = privsyn("make", tmp_path / "b", "--texts", table, "--text-column", "body", *asked)
    assert made.exit_code == 0, made.stderr
    assert load_topics(tmp_path / "a").fingerprint == load_topics(tmp_path / "b").fingerprint


def test_topics_of_a_configurations_public_text(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'[data]\nsource = "files"\npublic-path = "{jsonl(tmp_path / "p.jsonl")}"\n'
        'sample-words = 4\n[models]\nembedder = "ngram-64"\n'
    )
    settings = ("--set", f"cache={tmp_path / 'cache'}")
    made = privsyn("make", tmp_path / "new", "--config", config, "--count", 2, *settings)
    assert made.exit_code == 0, made.stderr
    assert "of 4 public texts" in made.stdout  # the pool's: of four words each, and distinct
    assert list((tmp_path / "cache" / "public").glob("*.npy"))  # embedded once


def test_a_configuration_says_what_its_run_would_make(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'method = "ctcl"\nseed = 5\ncache = "{tmp_path / "cache"}"\n'
        f'[data]\nsource = "files"\npublic-path = "{jsonl(tmp_path / "p.jsonl")}"\n'
        "public-pool = 12\npublic-validation = 0\n"
        '[models]\nembedder = "ngram-64"\n[ctcl]\ntopic-count = 3\ntopic-words = 2\n'
    )
    made = privsyn("make", tmp_path / "a", "--config", config)
    assert made.exit_code == 0, made.stderr
    found, loaded = load_topics(tmp_path / "a"), load_config(config)
    pool = public_text(loaded, silent).pool
    own = topics_of(loaded, pool, NgramEmbedder(64), silent)
    assert found.fingerprint == load_topics(own).fingerprint
    assert len(found) == 3 and {len(words) for words in found.keywords} == {2}
    options = ("--count", 2, "--words", 1, "--seed", 0, "--clustering", "k-means")
    assert privsyn("make", tmp_path / "b", "--config", config, *options).exit_code == 0
    found = load_topics(tmp_path / "b")
    assert len(found) == 2 and {len(words) for words in found.keywords} == {1}
    set_too = ("--set", "ctcl.topic-count=4")
    assert privsyn("make", tmp_path / "c", "--config", config, *set_too).exit_code == 0
    assert len(load_topics(tmp_path / "c")) == 4


def test_an_interrupted_command_embeds_no_text_twice(
    tmp_path: Path, lines: Path, ngrams: Any, monkeypatch: Any
) -> None:
    embedded: list[str] = []
    embed = NgramEmbedder.embed

    def fails_once(self: NgramEmbedder, texts: Sequence[str]) -> F32:
        embedded.extend(texts)
        if len(embedded) == 8:
            raise KeyboardInterrupt
        return embed(self, texts)

    monkeypatch.setattr(NgramEmbedder, "embed", fails_once)
    monkeypatch.setattr(topic_training, "BLOCK", 4)
    asked = ("make", tmp_path / "new", "--texts", lines, "--count", 2, *ngrams)
    assert privsyn(*asked).exit_code != 0
    assert not (tmp_path / "new").exists() and embedded == TEXTS[:8]
    assert privsyn(*asked).exit_code == 0
    assert embedded == TEXTS[:8] + TEXTS[4:]


def bad(
    tmp_path: Path, lines: Path, ngrams: tuple[str, ...]
) -> dict[str, tuple[tuple[str | Path, ...], str]]:
    new, table = tmp_path / "new", jsonl(tmp_path / "public.jsonl", "body")
    return {
        "nothing named": (("make", new), "--config FILE or --texts FILE"),
        "both named": (("make", new, "--config", "c", "--texts", lines), "one of them"),
        "too few texts": (("make", new, "--texts", lines, *ngrams), "topic-count = 64 is above"),
        "column": (("make", new, "--texts", table, *ngrams), "no column 'text' but 'body'"),
        "no file": (("make", new, "--texts", tmp_path / "none.txt"), "No such file"),
        "format": (("make", new, "--texts", tmp_path / "p.doc"), "format '.doc' is not known"),
        "clustering": (
            ("make", new, "--texts", lines, "--clustering", "k", *ngrams),
            "ctcl.clustering = 'k'",
        ),
        "setting": (("make", new, "--texts", lines, "--set", "no-key=1"), "no-key"),
        "no topics": (("show", new), "is not there"),
        "no bertopic": (("import", tmp_path, new, "--embedder", "ngram-8"), "is not there"),
    }


CASES = (
    "nothing named,both named,too few texts,column,no file,format,clustering,setting,no topics,"
    "no bertopic"
).split(",")


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, lines: Path, ngrams: Any, case: str
) -> None:
    arguments, said = bad(tmp_path, lines, ngrams)[case]
    result = privsyn(*arguments)
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ") and said in last
    assert not (tmp_path / "new").exists()


def test_topics_are_not_written_over(tmp_path: Path, lines: Path, ngrams: Any) -> None:
    asked = ("make", tmp_path / "new", "--texts", lines, "--count", 2, *ngrams)
    assert privsyn(*asked).exit_code == 0
    again = privsyn(*asked)
    assert again.exit_code == 2 and "holds topics already" in again.stderr


def test_import_of_the_authors_format(tmp_path: Path) -> None:
    source = tmp_path / "ctcl_topic"
    source.mkdir()
    rows = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    save_file({"topic_embeddings": rows}, source / "topic_embeddings.safetensors")
    infos = [{"topic_idx": i, "topic_words": [f"word{i}"] if i >= 0 else None} for i in (-1, 0, 1)]
    (source / "topic_infos.json").write_text(json.dumps(infos))
    other = privsyn("import", source, tmp_path / "new", "--embedder", "ngram-32")
    assert other.exit_code == 2 and "rows of 64 dimensions" in other.stderr
    (source / "privacy.md").write_text("# Privacy of this run\n\nEpsilon = 3")
    taken = privsyn("import", source, tmp_path / "new", "--embedder", "ngram-64")
    assert (tmp_path / "new" / "privacy.md").read_text().strip().endswith("Epsilon = 3")
    assert taken.exit_code == 0 and ": 2 topics, 64 dimensions" in taken.stdout
    assert privsyn("show", tmp_path / "new").stdout.splitlines()[1:] == [
        "    0  word0",
        "    1  word1",
    ]
    refused = privsyn("show", source)
    assert refused.exit_code == 2 and "topics.json is not there" in refused.stderr
