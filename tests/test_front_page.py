"""The front page, the site and the tables of results: short, complete, and what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts import update_results
from tests.rigs.docs import DOCS, FENCE, ROOT, blocks, text_of


def test_the_front_page_is_one_that_a_newcomer_finishes() -> None:
    """Its app is examples/quickstart-pretext: tests/end_to_end/test_examples.py runs it."""
    page = text_of(ROOT / "README.md")
    assert len(page.splitlines()) <= 160 and len(page.split()) <= 1100
    first = " ".join(page.splitlines()[:10])
    assert "federat" in first.lower() or "Flower" in first
    assert "pip install" in page.partition("\n## Install and run\n")[2][:80]


def test_texts_on_the_front_page_are_kept_ones_with_their_claim() -> None:
    kept = json.loads(text_of(DOCS / "results" / "demo-texts.json"))
    page = text_of(ROOT / "README.md")
    writes = page.partition("SmolLM2 writes")[2].partition("Its guarantee:")[0]
    quoted = re.findall(r"^> (.+?)(?:<br>)?$", writes, re.MULTILINE)
    assert len(quoted) == 3 and set(quoted) <= set(kept["texts"])
    claim = page.partition("demo-sentence:start -->\n> ")[2].partition("\n")[0]
    assert kept["claim"] == claim and kept["run"].split()[-1] == "configs/chats-demo.toml"


def test_the_pages_that_examples_shortened_stay_short() -> None:
    words = [len(text_of(DOCS / name).split()) for name in ("dropin.md", "extending.md")]
    assert sum(words) <= 2600


def test_every_page_has_its_place_on_the_site() -> None:
    found = "".join(code for kind, code in FENCE.findall(text_of(DOCS / "index.md")))
    listed = re.findall(r"^(?:[\w ]+<)?([\w/-]+)>?$", found, re.MULTILINE)
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    elsewhere = ("_", "examples/", "report/")
    pages = {page for page in pages if not page.startswith(elsewhere)} - {"index"}
    copies = [*ROOT.glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    assert sorted(listed) == sorted(pages | {f"_root/{page.stem}" for page in copies})


def test_the_site_has_every_package_that_pages_import_from() -> None:
    listed = re.findall(r"^\.\. automodule:: (\S+)$", text_of(DOCS / "api.md"), re.MULTILINE)
    code = "\n".join(code for _, code in blocks("python"))
    imported = set(re.findall(r"^from (privsyn_flower\.\w+) import", code, re.MULTILINE))
    packages = {name for name in imported if (ROOT / name.replace(".", "/")).is_dir()}
    assert len(packages) > 5 and packages <= set(listed)


def test_the_packages_of_the_layout_are_those_there_are() -> None:
    layout = text_of(ROOT / "CONTRIBUTING.md").partition("\n## Layout\n")[2].partition("\n```\n")[0]
    listed = set(re.findall(r"^  (\w+)/ ", layout, re.MULTILINE))
    assert listed == {path.parent.name for path in (ROOT / "privsyn_flower").glob("*/__init__.py")}


def test_the_tables_of_results_are_those_of_the_summaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_results, "RUNS", tmp_path)  # what is kept, whoever has runs besides
    grid, outcomes = update_results.here()
    kept = [outcome for outcome in outcomes if outcome.folder is None]
    found = update_results.blocks(grid, kept)
    assert found, "no method has all of its summaries in docs/results"
    page = text_of(update_results.PAGE)
    for marker, block in found.items():
        assert f"<!-- {marker}:start -->\n{block}\n<!-- {marker}:end -->" in page
    if "results" in found:
        assert update_results.front_block(grid, kept) in text_of(update_results.FRONT)
    for name in update_results.COMPARED:
        block = update_results.compared_block(name)
        assert "### accuracy" in block
        assert f"<!-- {name}:start -->\n{block}\n<!-- {name}:end -->" in page


def test_a_table_needs_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- t:start -->\nold\n<!-- t:end -->\nb\n", encoding="utf-8")
    update_results.fill(page, "t", "new")
    assert text_of(page) == "a\n<!-- t:start -->\nnew\n<!-- t:end -->\nb\n"
    with pytest.raises(ValueError, match="u:start"):
        update_results.fill(page, "u", "new")
    assert "new" in text_of(page)
