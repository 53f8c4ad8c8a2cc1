"""The site that `make docs` builds of these pages with Sphinx; on GitHub they read as they are."""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
COPIES = DOCS / "_root"  # the pages of the repository's root, with links as from here
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
INTERVAL = re.compile(r"(\[[-+\d.]+), ([-+\d.]+\])")

project = "privsyn-flower"
author = copyright = "The privsyn-flower authors"
release = version = importlib.metadata.version(project)

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "examples", "results/*.json", "results/*.toml"]
html_theme = "sphinx_book_theme"
html_title = f"{project} {release}"
html_copy_source = False
html_static_path = ["site.css", "versions.js"]
html_js_files = [("versions.js", {"defer": "defer"})]  # their menu: make site
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system

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
    app.connect("source-read", lambda _, name, source: for_the_site(name, source))
    app.connect("autodoc-process-signature", lambda *event: short_signature(*event[-2:]))
    app.connect("autodoc-process-docstring", lambda *event: as_rest(event[-1]))


def copy_root() -> None:
    """README.md and its neighbours, so that they are pages of the site, too."""
    COPIES.mkdir(exist_ok=True)
    for page in ROOT.glob("*.md"):
        text, copy = relinked(page.read_text(encoding="utf-8"), ROOT, COPIES), COPIES / page.name
        if not copy.exists() or copy.read_text(encoding="utf-8") != text:
            copy.write_text(text, encoding="utf-8")


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
        if path.parent == ROOT and path.suffix == ".md":
            path = COPIES / path.name
        return f"{picture}[{words}]({os.path.relpath(path, there)}{anchor})"

    return LINK.sub(link, text)


def short_signature(signature: str | None, returns: str | None) -> tuple[str | None, str | None]:
    """A signature with `autodoc_type_aliases` by their names, in unions too, and short zeros."""
    if signature == "(*args, **kwargs)":  # of a protocol, which nobody calls
        return "", returns
    named = re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature or "")
    short = re.sub(r"b'(\\x00)+'", lambda zeros: f"bytes({len(zeros[0][2:-1]) // 4})", named)
    return short or None, returns


def as_rest(lines: list[str]) -> None:
    """A docstring as reStructuredText, in place: prose with `code`, lists, indented examples."""
    paragraphs = "\n".join(lines).strip("\n").split("\n\n")
    lines[:] = [""]
    for paragraph in paragraphs:
        own = [line for line in paragraph.split("\n") if line.strip("- ")]
        deep = [line.startswith("  ") for line in own]
        if all(deep):
            lines.extend(["::", "", *own, ""])
        elif any(deep):  # a list of names and meanings: its lines stay lines
            lines.extend([*(f"| {escaped(line)}" for line in own), ""])
        else:
            lines.extend([*map(escaped, own), ""])


def escaped(line: str) -> str:
    """`code` is code; no other character has a meaning."""
    parts = re.split(r"`([^`]+)`", line)
    parts[::2] = [re.sub(r"([*_|\\`])", r"\\\1", part) for part in parts[::2]]
    for number in range(1, len(parts), 2):
        joined = "\\ " if parts[number + 1][:1].isalnum() else ""  # `Name`s
        parts[number] = f"``{parts[number]}``{joined}"
    return "".join(parts)
