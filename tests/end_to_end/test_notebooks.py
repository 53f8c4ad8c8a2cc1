"""The notebooks run as they are, from the first cell to the last, on a kernel of their own."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from scripts.tutorial import NOTEBOOKS, TUTORIAL, environment, executed, printed, without_places
from tests.end_to_end.conftest import left_running

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_the_tutorial(home: Path) -> None:
    notebook = executed(TUTORIAL, home)
    (run,) = home.glob("t/tutorial-*/run")
    shares = re.search(r"about bread: (\d+)% of the public text, (\d+)% of the", printed(notebook))
    assert shares, printed(notebook)
    public, seeds = map(int, shares.groups())
    assert public == 10 and seeds > 40  # the votes know what the users write about
    without_places(notebook, home)
    told = printed(notebook)
    assert "Epsilon = 4 at delta = 1e-05 for each user" in told and str(home) not in told
    assert len(re.findall(r"round \d: epsilon so far", told)) == 3
    assert re.search(r"^12 synthetic texts, after \d+ seeds in synthetic.jsonl", told, re.MULTILINE)
    # What is kept was printed by these cells: all figures that do not depend on noise.
    for cell, kept in zip(notebook.cells, nbformat.read(TUTORIAL, as_version=4).cells, strict=True):
        assert cell.source == kept.source
        if not any(
            word in cell.source for word in ("privsyn run", "side_by_side", "metrics.jsonl")
        ):
            assert cell.get("outputs", []) == kept.get("outputs", [])
    assert left_running(str(run)) == []


def test_an_existing_app_of_ones_own(home: Path) -> None:
    told = printed(executed(NOTEBOOKS / "existing-app.ipynb", home))
    figures = re.search(r"accuracy ([\d.]+) with privacy, ([\d.]+) without", told)
    assert figures, told
    private, plain = map(float, figures.groups())
    assert plain > 0.9 and private > 0.7  # the larger class has 0.63
    assert "Epsilon = 4 at delta = 0.001 for each user" in told
    assert "Simulated: one machine saw everything" in told
    assert "\ntensorboard\n" in told and "tracker" not in told
    assert "function failed" not in "".join(path.read_text() for path in home.rglob("node.log"))
    assert left_running(str(home)) == []


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_outputs_are_the_tutorials_alone_and_name_no_place(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < 100_000
    assert bool(printed(notebook)) == (path == TUTORIAL)
    assert not re.search(r"(?<![\w./:\u2026])/\w|\\x1b|\x1b", printed(notebook))  # places, colours
    for cell in notebook.cells:
        assert not cell.get("execution_count")
        assert len(cell.source.splitlines()) <= 60
