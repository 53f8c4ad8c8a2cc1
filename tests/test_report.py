"""The technical report says what is kept: its markers, typed numbers, references and figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from scripts import report
from scripts.report import MARKER, accuracy, check_numbers, markdown, resolved, value
from scripts.report_figures import FIGURES, RESULTS, draw, page_table
from tests.rigs.docs import DOCS, ROOT, text_of

SOURCE = text_of(DOCS / "report" / "report.md")
ONE = "chats/pretext-epsilon7.58-seed0.json"


def test_every_marker_has_a_value() -> None:
    assert len(MARKER.findall(SOURCE)) > 10
    text = resolved(SOURCE)
    assert "{{" not in text and "}}" not in text and "nan" not in text.lower().split()


@pytest.mark.parametrize(
    "marker",
    [
        "{{closeness}}",
        f"{{{{{ONE} benchmark.accuracy.nobody .4f}}}}",
        f"{{{{{ONE} privacy .4f}}}}",
        "{{chats/none.json epsilon .2f}}",
        "{{rows correlated-noise.md | Mechanisms | name; nothing}}",
        "{{rows correlated-noise.md | No heading | name}}",
    ],
)
def test_a_marker_without_a_value_is_named(marker: str) -> None:
    with pytest.raises(ValueError, match=re.escape(marker)):
        resolved(f"It is {marker}.")


def test_no_number_is_free() -> None:
    assert check_numbers(SOURCE) > 80
    wrong = SOURCE.replace("258,145", "258,146", 1)
    with pytest.raises(ValueError, match=r"Chats of a thousand people: \[258146\.0\] on none"):
        check_numbers(wrong)
    with pytest.raises(ValueError, match=r"New: \[3\.0\] on none of \[\]"):
        check_numbers(f"{SOURCE}\n## New\n\nIt took 3 days.\n")


def test_no_table_is_typed() -> None:
    assert not [line for line in SOURCE.splitlines() if line.startswith("|")]


def test_the_table_of_chats_is_that_of_the_summaries() -> None:
    table, rows, private = accuracy(), dict[str, list[list[float]]](), []
    for path in sorted((RESULTS / "chats").glob("*-seed?.json")):
        found = json.loads(text_of(path))["benchmark"]
        name = next(one for one in ("trained", "synthetic") if one in found["accuracy"])
        own = [found["accuracy"][name], *found["accuracy_interval"][name]]
        rows.setdefault(path.name.partition("-seed")[0], []).append(own)
        if path.name.startswith("public-only"):
            private.append(found["accuracy"]["private"])
    for runs in rows.values():
        mean, low, high = np.mean(runs, axis=0)
        assert f"{mean:.4f} [{low:.4f},\N{NO-BREAK SPACE}{high:.4f}]" in table
    assert f"| {np.mean(private):.4f} [" in table
    kept, page = sum(map(len, rows.values())), text_of(DOCS / "results.md")
    assert kept and f"Measured: {kept} of the" in page
    told = re.search(r"Measured: \d+ of the (\d+) runs of \[compare-chats\]", page)
    assert told and f"Of the grid's {told[1]} runs {kept} are kept" in SOURCE
    methods = {name.partition("-epsilon")[0] for name in rows}
    assert len(table.splitlines()) == 2 + len(methods) + 2


def test_who_is_trusted() -> None:
    rows = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in accuracy().split("\n")
    }
    assert rows["PrE-Text"] == "nobody" and rows["DP-FTRL"] == "aggregator"
    assert rows["DP fine-tuning by a trusted curator"] == "curator"


def test_a_pages_table_is_as_it_stands_there() -> None:
    table = page_table("correlated-noise.md", "Mechanisms", ["by nodes", "name"])
    assert table[0] == ["by nodes", "name"] and ["22.18", "`banded`"] in table
    linked = markdown([["a", "b"], ["[x](y.md) ([below](#z))", "1<br>users~ [0.5, 0.6]"]])
    assert linked.splitlines()[1:] == ["| --- | ---: |", "| x | 1<br>[0.5,\N{NO-BREAK SPACE}0.6] |"]


def test_values_are_formatted() -> None:
    assert (
        value(ONE, "epsilon", ".2f") == "7.58" and value(ONE, "privacy_curve.0.0", ".1f") == "1.1"
    )


def test_references_are_cited_listed_and_known_to_the_documentation() -> None:
    listed = dict(re.findall(r"^\[\^(\w+)\]: (.+)$", SOURCE, re.MULTILINE))
    assert set(re.findall(r"\[\^(\w+)\](?!:)", SOURCE)) == set(listed) and len(listed) > 20
    pages = " ".join(text_of(page) for page in DOCS.rglob("*.md") if page.parent.name != "report")
    pages = " ".join(pages.split())
    for entry in listed.values():
        author = re.split(r",|\. \*| et al", entry)[0].split()[-1]
        identifier = re.findall(r"arXiv ([\d.]+\d)\.", entry)
        assert (identifier and identifier[0] in pages) or author in pages, entry


def test_parts_that_the_text_names_are_there() -> None:
    count = {"Table": ":::{table}", "Figure": ":::{figure}", "Theorem": "{admonition} Theorem"}
    for part, sign in count.items():
        named = {int(n) for n in re.findall(rf"{part} (\d+)", SOURCE)}
        assert named == set(range(1, SOURCE.count(sign) + 1)), part
    drawn = set(re.findall(r"\{figure\} (\S+)\.svg", SOURCE))
    assert drawn == {*FIGURES, "round"}


def test_figures_are_the_same_every_time_and_need_no_network(tmp_path: Path) -> None:
    draw(tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    draw(tmp_path)
    assert first == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(first) == 3 and b"0.028" not in first["secure-sum.svg"]


def test_the_page_has_numbers_math_and_references(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser", reason="pip install '.[docs]', as make report does")
    page = text_of(report.html(tmp_path))
    assert page.count("<math") > 60 and page.count("<figure") == 4 and page.count("<caption") == 8
    assert "7.58" in page and "Preprint, 2026" in page and "system-message" not in page
    assert not re.findall(r'(?:src|href)="https?:', page)  # it is opened without a network


@pytest.mark.parametrize("pages", [7, 13, 9])
def test_a_pdf_of_another_length_is_refused(
    pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(command: list[str], **_: object) -> None:
        (option,) = (word for word in command if word.startswith("--print-to-pdf="))
        Path(option.partition("=")[2]).write_bytes(b"/Type /Pages" + b"/Type /Page " * pages)

    monkeypatch.setenv("PRIVSYN_BROWSER", "a browser")
    monkeypatch.setattr(report.subprocess, "run", printed)
    if pages == 9:
        assert report.pdf(tmp_path / "report.html").exists()
        return
    with pytest.raises(ValueError, match=f"{pages} pages, not 8 to 12"):
        report.pdf(tmp_path / "report.html")


def test_the_report_is_no_page_of_the_site() -> None:
    assert '"report"' in text_of(DOCS / "conf.py")
    assert (ROOT / "docs" / "report" / "report.css").exists()
