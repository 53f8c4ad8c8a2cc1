"""The papers' data sets, of canned pages and files: as their authors cut them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.common.files import DataError
from privsyn_flower.data import recipes


def rows_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def page(url: str, *lines: str) -> dict[str, str]:
    return {"url": url, "text": "\n".join(lines), "timestamp": "2019"}


LONG = " ".join(str(k) for k in range(99))
PAGES = [
    page("https://www.linkedin.com/jobs/1", "We hire.", "", "  ", "Apply now."),
    page("https://example.org", LONG, "second line"),
    page("https://old.reddit.com/r/tea", "First.", "Second.", "Third."),
    page("https://example.org/empty", "", " "),
    page("https://blog.example/?from=twitter.com", "A site in the address counts."),
    page("https://mobile.twitter.com/x", "short"),
    page("https://uk.linkedin.com/in/x", "not needed"),
]


def test_a_sample_is_a_line_of_a_page_and_the_first_ones_are_kept(tmp_path: Path) -> None:
    read = []

    def stream() -> Iterator[dict[str, str]]:
        for one in PAGES:
            read.append(one)
            yield one

    counts = recipes.c4_sites(stream(), tmp_path, 2, 1)
    assert counts == {"jobs": 2, "forums": 2, "microblog": 2, "c4-public": 1}
    texts = {n: [row["text"] for row in rows_of(tmp_path / f"{n}.jsonl")] for n in counts}
    assert texts["jobs"] == ["We hire.", "Apply now."]
    assert texts["forums"] == ["First.", "Second."]
    assert texts["microblog"] == ["A site in the address counts.", "short"]
    assert texts["c4-public"] == [" ".join(LONG.split()[:48])]
    assert len(read) == 6, "the stream is read no further than it has to be"


def test_too_little_text_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\(forums 3 of 4, microblog 2 of 4, jobs|jobs 3 of 4"):
        recipes.c4_sites(PAGES, tmp_path, 4, 1)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="page 1 has no text in 'url' and 'text'"):
        recipes.c4_sites([{"text": "x"}], tmp_path, 1, 1)


def test_the_stream_is_shuffled_as_the_author_does(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    class Streamed:
        def shuffle(self, **options: int) -> list[dict[str, str]]:
            asked.append(options)
            return PAGES

    def load(*place: str, **options: Any) -> Streamed:
        asked.extend([place, options])
        return Streamed()

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert recipes.c4_stream() is PAGES
    streamed = {"split": "train", "streaming": True}
    assert asked == [("allenai/c4", "en"), streamed, {"seed": 100, "buffer_size": 1_000_000}]


def test_the_command_says_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "c4_stream", lambda: PAGES)
    given = ["data", "c4-sites", str(tmp_path), "--lines", "2", "--public", "1"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0 and f"{tmp_path}/jobs.jsonl: 2 texts" in done.output
    done = CliRunner().invoke(app, [*given[:4], "9", *given[5:]])
    assert done.exit_code == 2 and "lower the numbers" in done.output


def test_aug_pes_splits_become_one_file_each(tmp_path: Path) -> None:
    source, target = tmp_path / "data", tmp_path / "out"
    rows = {
        "pubmed": ("text\n", 'A "study", of\nmice\n'),
        "openreview": (
            "text,label1,label2\n",
            '"a review",Area: ML,"Recommendation: 8: accept, good paper"\n',
        ),
        "yelp": (
            "text,label1,label2\n",
            "good food,Business Category: Bars,Review Stars: 1.0\n"
            "better,Business Category: Bars,Review Stars: 5.0\n",
        ),
    }
    for name, (head, body) in rows.items():
        for part in recipes.AUG_PE[name]:
            (source / part).parent.mkdir(parents=True, exist_ok=True)
            quoted = '"A ""study"", of\nmice"\n' if name == "pubmed" else body
            (source / part).write_text(head + quoted, "utf-8")
    done = CliRunner().invoke(app, ["data", "aug-pe", str(source), str(target)])
    assert done.exit_code == 0, done.output
    assert rows_of(target / "pubmed.jsonl") == [{"text": 'A "study", of\nmice'}] * 3
    assert rows_of(target / "openreview.jsonl")[0] == {"text": "a review", "label": "8: accept"}
    assert [row["label"] for row in rows_of(target / "yelp.jsonl")] == ["1 star", "5 stars"] * 3
    (source / recipes.AUG_PE["yelp"][1]).unlink()
    with pytest.raises(DataError, match=r"has no \S*yelp/dev.csv: yelp needs all"):
        recipes.aug_pe(source, target)
    with pytest.raises(DataError, match="has none of pubmed, openreview, yelp"):
        recipes.aug_pe(tmp_path / "elsewhere", target)
