"""The notebooks run as they are, from the first cell to the last, on a kernel of their own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.end_to_end.conftest import left_running

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
pytestmark = [pytest.mark.slow, pytest.mark.e2e]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the notebook's own: caches, ledgers, temporary files and Flower's, too."""
    scratch = tmp_path / "t"
    scratch.mkdir()
    binaries = Path(sys.executable).parent
    environment = {
        "HOME": str(tmp_path),
        "TMPDIR": str(scratch),
        "FLWR_HOME": str(tmp_path / "flower"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(scratch),
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def executed(name: str, home: Path) -> str:
    """Everything that its cells print. A cell that raises ends the test."""
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    sockets = str(home / "t" / "k")  # no port is opened
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=sockets)
    place = {"metadata": {"path": str(home)}}
    client = NotebookClient(notebook, km=kernel, timeout=1500, resources=place)
    client.owns_km = True  # it starts the kernel, and ends it
    client.execute()
    outputs: list[Any] = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    return "\n".join(one.get("text", "") for one in outputs)


def test_own_data(home: Path) -> None:
    printed = executed("own-data", home)
    shares = re.search(r"about bread: (\d+)% of the public text, (\d+)% of the seeds", printed)
    assert shares, printed
    public, seeds = map(int, shares.groups())
    assert public == 10 and seeds > 50  # the votes know what the users write about
    assert "Epsilon = 2 at delta = 1e-05 for each user" in printed
    assert len(re.findall(r"round \d: epsilon so far", printed)) == 3
    (run,) = home.glob("t/own-data-*/run")
    assert (run / "summary.json").exists()
    assert left_running(str(run)) == []


def test_an_existing_app_of_ones_own(home: Path) -> None:
    printed = executed("existing-app", home)
    figures = re.search(r"accuracy ([\d.]+) with privacy, ([\d.]+) without", printed)
    assert figures, printed
    private, plain = map(float, figures.groups())
    assert plain > 0.9 and private > 0.7  # the larger class has 0.63
    assert "Epsilon = 4 at delta = 0.001 for each user" in printed
    assert "Simulated: one machine saw everything" in printed
    assert "\ntensorboard\n" in printed and "tracker" not in printed
    assert "function failed" not in "".join(path.read_text() for path in home.rglob("node.log"))
    assert left_running(str(home)) == []


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_outputs_are_kept(path: Path) -> None:
    """What a cell prints has this machine's paths in it."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and not cell.get("execution_count")
        assert len(cell.source.splitlines()) <= 60
