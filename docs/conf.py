"""The site that `make docs` builds of these pages with Sphinx; on GitHub they read as they are."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import os
import re
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
NOTEBOOKS = ROOT / "notebooks"
COPIES = DOCS / "_root"  # the root's pages, and notebooks as pages, with links as from here
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
INTERVAL = re.compile(r"(\[[-+\d.]+), ([-+\d.]+\])")

project = "privsyn-flower"
author = copyright = "The privsyn-flower authors"
release = version = importlib.metadata.version(project)

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "examples", "report", "results/*.json", "results/*.toml"]
html_theme = "sphinx_book_theme"
html_title = f"{project} {release}"
html_copy_source = False
html_static_path = ["site.css", "versions.js"]
html_js_files = [("versions.js", {"defer": "defer"})]  # their menu: make site
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system
html_theme_options = {"navbar_persistent": []}  # the search stands in the sidebar, and nowhere else

myst_heading_anchors = 4  # GitHub's anchors, so that links work here and there
linkcheck_ignore = [r"https?://"]  # nothing is fetched

autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}  # else it is spelled out
python_use_unqualified_type_names = True


def setup(app: Any) -> None:
    """Sphinx calls this."""
    copy_root()
    load_names()
    app.connect("source-read", lambda _, name, source: for_the_site(name, source))
    app.connect("autodoc-process-signature", lambda *event: short_signature(*event[-2:]))
    app.connect("autodoc-process-docstring", lambda *event: as_rest(event[-1], event[3]))


def copy_root() -> None:
    """README.md and its neighbours, and the notebooks, so that they are pages of the site, too."""
    COPIES.mkdir(exist_ok=True)
    for page in [*ROOT.glob("*.md"), *NOTEBOOKS.glob("*.ipynb")]:
        text, copy = page.read_text(encoding="utf-8"), COPIES / f"{page.stem}.md"
        text = notebook_page(json.loads(text)["cells"]) if page.suffix == ".ipynb" else text
        text = relinked(text, page.parent, COPIES)
        if not copy.exists() or copy.read_text(encoding="utf-8") != text:
            copy.write_text(text, encoding="utf-8")


def notebook_page(cells: list[dict[str, Any]]) -> str:
    """A notebook as Markdown: its text, its code, its commands, and what they printed."""
    parts: list[str] = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(source)
            continue
        for typed, lines in groupby(source.split("\n"), lambda line: line.startswith("!")):
            code = "\n".join(line[typed:] for line in lines).strip("\n")
            parts.append(f"```{'sh' if typed else 'python'}\n{code}\n```")
        printed = "".join("".join(one.get("text", "")) for one in cell["outputs"]).strip("\n")
        if printed:
            parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts) + "\n"


def load_names() -> None:
    """Import what the packages of the API page import when it is first asked for: Sphinx lists
    what is there."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for package in re.findall(r"^\.\. automodule:: (\S+)$", page, re.MULTILINE):
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            getattr(module, name)


def for_the_site(name: str, source: list[str]) -> None:
    """A page's links that lead out of docs/, and intervals that stay on one line, in place."""
    if not name.startswith(COPIES.name):
        folder = (DOCS / name).parent
        source[0] = relinked(source[0], folder, folder)
    source[0] = INTERVAL.sub("\\1,\N{NO-BREAK SPACE}\\2", source[0])


def relinked(text: str, here: Path, there: Path) -> str:
    """A page's text whose relative links are as from `here`, for its place in the site, `there`.

    A link to a page of the root goes to its copy, one to a folder is left out: a site has none.
    """

    def link(match: re.Match[str]) -> str:
        picture, words, target, anchor = match.groups(default="")
        path = (here / target).resolve()
        if not path.exists():  # of the web, or no link at all
            return match[0]
        if path.is_dir():
            return words
        if (path.parent, path.suffix) in ((ROOT, ".md"), (NOTEBOOKS, ".ipynb")):
            path = COPIES / f"{path.stem}.md"
        return f"{picture}[{words}]({os.path.relpath(path, there)}{anchor})"

    return LINK.sub(link, text)


def short_signature(signature: str | None, returns: str | None) -> tuple[str | None, str | None]:
    """A signature with `autodoc_type_aliases` by their names, in unions too, and short zeros."""
    if signature == "(*args, **kwargs)":  # of a protocol, which nobody calls
        return "", returns
    named = re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature or "")
    short = re.sub(r"b'(\\x00)+'", lambda zeros: f"bytes({len(zeros[0][2:-1]) // 4})", named)
    return short or None, returns


def as_rest(lines: list[str], of: object = None) -> None:
    """A docstring as reStructuredText, in place: prose with `code`, lists, indented examples, and
    at the end a field for each argument of `of` and for what is raised."""
    paragraphs = "\n".join(lines).strip("\n").split("\n\n")
    names, fields = arguments(of), list[str]()
    lines[:] = [""]
    for paragraph in paragraphs:
        own = [line for line in paragraph.split("\n") if line.strip("- ")]
        deep = [line.startswith("  ") for line in own]
        if own[:1] == ["Parameters"]:
            fields.extend(field for one in listed(own[1:]) for field in split(one, names)[1])
        elif all(deep):
            lines.extend(["::", "", *own, ""])
        elif any(deep):  # a list of names and meanings: its lines stay lines
            lines.extend([*(f"| {escaped(line)}" for line in own), ""])
        else:
            prose, more = split(" ".join(own), names)
            lines.extend([escaped(prose), ""])
            fields.extend(more)
    lines.extend([*fields, ""])


def arguments(of: object) -> Collection[str]:
    """Names of a function's parameters, or of those that make an object of a class."""
    try:
        return inspect.signature(of).parameters.keys()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # no callable, or one without a signature
        return ()


def listed(lines: list[str]) -> Iterator[str]:
    """`name : meaning`, with its indented lines, as one line "name: meaning" each."""
    text = "\n".join(lines)
    for one in re.split(r"\n(?=\S)", text):
        yield " ".join(one.split()).replace(" : ", ": ", 1)


def split(text: str, names: Collection[str]) -> tuple[str, list[str]]:
    """What is prose of a paragraph, and the fields of the arguments and errors that it explains.

    An explanation begins with "name: ", or "name, name: ", and goes on until the next; "Raises
    Error ..." is one sentence.
    """
    prose, fields = list[str](), list[str]()
    own = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    begin = rf"(?:{own})(?:, (?:{own}))*: " if own else r"(?!)"
    for part in re.split(rf"(?:^|(?<=[.;:] ))(?={begin}|Raises \w)", text):
        if re.match(begin, part):
            head, _, meaning = part.partition(": ")
            meaning = escaped(meaning.strip().removesuffix(";"))
            meaning = f"\\{meaning}" if re.match(r"\w+[.)]", meaning) else meaning  # no list
            fields.extend(f":param {name}: {meaning}" for name in head.split(", "))
        elif raised := re.match(r"Raises (\w+),? (.*?\.)(?: (?=[A-Z])(.*))?$", part.strip()):
            fields.append(f":raises {raised[1]}: {escaped(raised[2])}")
            prose.append(raised[3] or "")
        else:
            prose.append(part)
    return " ".join(one.strip() for one in prose if one.strip()), fields


def escaped(line: str) -> str:
    """`code` is code; no other character has a meaning."""
    parts = re.split(r"`([^`]+)`", line)
    parts[::2] = [re.sub(r"([*_|\\`])", r"\\\1", part) for part in parts[::2]]
    for number in range(1, len(parts), 2):
        joined = "\\ " if parts[number + 1][:1].isalnum() else ""  # `Name`s
        parts[number] = f"``{parts[number]}``{joined}"
    return "".join(parts)
