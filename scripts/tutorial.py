"""Execute notebooks/tutorial.ipynb anew and keep what its cells print (`make tutorial`)."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
TUTORIAL = NOTEBOOKS / "tutorial.ipynb"


def environment(home: Path) -> dict[str, str]:
    """A home of the notebook's own: caches, ledgers, temporary files and Flower's, too."""
    scratch = home / "t"
    scratch.mkdir(exist_ok=True)
    return {
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "COLUMNS": "100",
        "FLWR_HOME": str(home / "flower"),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(scratch),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def executed(path: Path, home: Path) -> Any:
    """The notebook with its outputs, of a kernel in `environment`. A cell that raises ends it."""
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    sockets = str(home / "t" / "k")  # no port is opened
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=sockets)
    place = {"metadata": {"path": str(home)}}
    client = NotebookClient(notebook, km=kernel, timeout=1500, resources=place, record_timing=False)
    client.owns_km = True  # it starts the kernel, and ends it
    client.execute()
    return notebook


def printed(notebook: Any) -> str:
    """Everything that its cells print."""
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    return "\n".join(one.get("text", "") for one in outputs)


def without_places(notebook: Any, home: Path) -> Any:
    """The notebook with outputs of text alone, in which this machine's folders are not named."""
    (work,) = map(str, home.glob("t/tutorial-*"))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = None
            kept = [one for one in cell.outputs if one.output_type == "stream"]
            text = "".join(one.text for one in kept).replace(f"{work}/", "").replace(work, ".")
            text = text.replace("\r\n", "\n")
            new = nbformat.v4.new_output("stream", name="stdout", text=text)
            cell.outputs = [new] if text.strip() else []
            cell.metadata = {}
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        os.environ.update(environment(home))
        notebook = without_places(executed(TUTORIAL, home), home)
    nbformat.validate(notebook)
    nbformat.write(notebook, TUTORIAL)


if __name__ == "__main__":
    main()
