"""The site that `make docs` builds: its home page, its API page, its notebooks, its search."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import privsyn_flower
from tests.rigs.docs import DOCS, FENCE, ROOT, text_of

SITE = os.environ.get("PRIVSYN_SITE", "")  # where `make docs` has built it
built = pytest.mark.skipif(not SITE, reason="make docs builds the site and sets PRIVSYN_SITE")


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rest(conf: ModuleType, docstring: str, of: object) -> list[str]:
    lines = docstring.splitlines()
    conf.as_rest(lines, of)
    return [line for line in lines if line]


def drawn(users: int, rate: float, seed: int = 0, folder: str = "") -> None: ...


def test_arguments_and_errors_of_prose_are_fields(conf: ModuleType) -> None:
    prose = """Draw a cohort. rate: of Poisson sampling, at
most 1: see `users`. Raises ValueError on a rate of 0. It costs nothing.

users, seed: whole numbers; folder: T. of the run. not_one: of its arguments."""
    assert rest(conf, prose, drawn) == [
        "Draw a cohort. It costs nothing.",
        ":param rate: of Poisson sampling, at most 1: see ``users``.",
        ":raises ValueError: on a rate of 0.",
        ":param users: whole numbers",
        ":param seed: whole numbers",
        r":param folder: \T. of the run. not\_one: of its arguments.",
    ]


def test_a_list_of_parameters_is_fields_and_the_rest_stays(conf: ModuleType) -> None:
    listed = """Draw.

Parameters
----------
users : how many there are,
    declared.
rate : q."""
    fields = [":param users: how many there are, declared.", r":param rate: \q."]
    assert rest(conf, listed, drawn) == ["Draw.", *fields]
    assert rest(conf, "users: many.", None) == ["users: many."]
    assert rest(conf, "Names:\n\n    users: many.", drawn)[1:] == ["::", "    users: many."]


def test_every_entry_of_the_home_page_has_a_sentence() -> None:
    page = text_of(DOCS / "index.md")
    entries = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): (\S.*)$", page, re.MULTILINE)
    entries += [
        (target, "of tables") for target in re.findall(r"\]\(((?:results|proofs)/\S+)\)", page)
    ]
    told = {(DOCS / target).resolve() for target, _ in entries}
    listed = "".join(code for kind, code in FENCE.findall(page) if "toctree" in kind)
    places = re.findall(r"^(?:[\w ]+<)?([\w/-]+)>?$", listed, re.MULTILINE)
    notebooks = {path.stem: path for path in (ROOT / "notebooks").glob("*.ipynb")}
    for place in places:
        root, name = place.startswith("_root/"), place.removeprefix("_root/")
        page_of = notebooks.get(name) or (ROOT if root else DOCS) / f"{name}.md"
        assert page_of in told, place
    assert listed.count(":hidden:") == page.count("```{toctree}")
    assert entries[0][0].endswith("tutorial.ipynb")


def test_notebooks_are_pages_with_code_commands_and_outputs(conf: ModuleType) -> None:
    cells: list[dict[str, Any]] = [
        {"cell_type": "markdown", "source": ["# A title\n", "and text"]},
        {"cell_type": "code", "source": ["x = 1\n", "!ls x\n", "x"], "outputs": []},
        {"cell_type": "code", "source": "y", "outputs": [{"text": ["1\n", "2\n"]}]},
    ]
    page = conf.notebook_page(cells)
    parts = [
        "# A title\nand text",
        "```python\nx = 1\n```",
        "```sh\nls x\n```",
        "```python\nx\n```",
    ]
    assert page == "\n\n".join([*parts, "```python\ny\n```", "```text\n1\n2\n```"]) + "\n"
    tutorial = conf.notebook_page(json.loads(text_of(ROOT / "notebooks/tutorial.ipynb"))["cells"])
    assert "12 synthetic texts, after " in tutorial
    linked = conf.relinked("[a](../notebooks/tutorial.ipynb#x)", DOCS, DOCS)
    assert linked == "[a](_root/tutorial.md#x)"


def test_names_that_are_imported_lazily_are_there_for_the_site(conf: ModuleType) -> None:
    conf.load_names()
    for package in re.findall(r"automodule:: (\S+)$", text_of(DOCS / "api.md"), re.MULTILINE):
        module = importlib.import_module(package)
        assert set(getattr(module, "__all__", ())) <= set(vars(module)), package


@built
def test_the_api_page_has_every_public_name_and_fields() -> None:
    page = (Path(SITE) / "api.html").read_text(encoding="utf-8")
    names = {name.rpartition(".")[2] for name in re.findall(r'id="(privsyn_flower[\w.]+)"', page)}
    exported = {name for name in privsyn_flower.__all__ if name != "__version__"}
    assert exported - names == set()
    assert page.count("field-list") > 100 and "<em>min_weight</em>" not in page
    assert "<strong>min_weight</strong>" in page  # secure_vector's, which its docstring explains


@built
def test_there_is_one_search_box() -> None:
    page = (Path(SITE) / "index.html").read_text(encoding="utf-8")
    assert page.count('type="search"') == 1 and page.count("search-button-field") == 1


@built
def test_the_tutorial_is_on_the_site_with_outputs() -> None:
    page = (Path(SITE) / "_root" / "tutorial.html").read_text(encoding="utf-8")
    assert "about bread: " in page and "12 synthetic texts" in page
