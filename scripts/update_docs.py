"""Rewrite the tables of keys in docs/ from privsyn_flower/config (`make app-config`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from privsyn_flower.config import RunConfig, toml_value
from privsyn_flower.config.public import PublicTextConfig

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES: dict[Path, BaseModel] = {
    DOCS / "configuration.md": RunConfig(),
    DOCS / "public-text.md": PublicTextConfig(),
}
START = "<!-- keys:start (python scripts/update_docs.py) -->\n"
END = "<!-- keys:end -->\n"
SIGNS = {Gt: ("gt", "above"), Ge: ("ge", "at least"), Lt: ("lt", "below"), Le: ("le", "at most")}


def main() -> None:
    for path, config in PAGES.items():
        page = path.read_text(encoding="utf-8")
        path.write_text(with_table(page, config), encoding="utf-8")


def with_table(page: str, config: BaseModel) -> str:
    """A page with its generated part renewed. Raises ValueError when a marker is missing."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the page must hold {START.strip()!r} and {END.strip()!r}")
    return f"{before}{start}\n{tables(config)}\n{end}{after}"


def tables(config: BaseModel) -> str:
    """One table for the top-level keys and one per section."""
    sections = [("", config)]
    sections += [(name.replace("_", "-"), value) for name, value in config if is_section(value)]
    return "\n".join(table(name, section) for name, section in sections)


def is_section(value: object) -> bool:
    return isinstance(value, BaseModel)


def table(name: str, section: BaseModel) -> str:
    """A heading and the keys of one section."""
    title = f"`[{name}]`" if name else "Top level"
    lines = [f"### {title}", "", "| key | default | values | meaning |", "|---|---|---|---|"]
    for field_name, field in type(section).model_fields.items():
        default = getattr(section, field_name)
        if is_section(default):
            continue
        key = f"{name}.{field_name}" if name else field_name
        cells = [code(key.replace("_", "-")), code(toml_value(default)), values(field)]
        lines.append(" | ".join(["", *cells, escaped(field.description or ""), ""]).strip())
    return "\n".join(lines) + "\n"


def values(field: FieldInfo) -> str:
    """What a key accepts: the words, or the type with its bounds."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(code(str(word) or '""') for word in get_args(field.annotation))
    kinds: dict[Any, str] = {bool: "true, false", int: "whole number", float: "number", str: "text"}
    bounds = [
        f"{word} {getattr(bound, attribute):g}"
        for bound in field.metadata
        for kind, (attribute, word) in SIGNS.items()
        if isinstance(bound, kind)
    ]
    return ", ".join([kinds[field.annotation], *bounds])


def code(text: str) -> str:
    return f"`{escaped(text)}`"


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
