"""Rewrite the tables of keys in docs/ from privsyn_flower/config (`make app-config`)."""

from __future__ import annotations

from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

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
SIGNS = {Gt: ("gt", ">"), Ge: ("ge", ">="), Lt: ("lt", "<"), Le: ("le", "<=")}
SHARED = 10  # keys that a section must share with an earlier one to name them once


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
    """One table for the top-level keys and one per section; keys that a section shares with an
    earlier one, or with one of a run's configuration, are named there alone."""
    sections, runs = sections_of(config), "[configuration.md](configuration.md)"
    known = [] if type(config) is RunConfig else sections_of(RunConfig())
    elsewhere = [(f"`[{name}]` in {runs}", section) for name, section in known]
    parts = []
    for number, (name, section) in enumerate([("", config), *sections]):
        before = [(f"`[{other}]`", earlier) for other, earlier in sections[: max(0, number - 1)]]
        shared = [(other, same_keys(section, found)) for other, found in [*before, *elsewhere]]
        other, keys = max(shared, key=lambda pair: len(pair[1]), default=("", set[str]()))
        parts.append(table(name, section, (other, keys) if len(keys) >= SHARED else ("", set())))
    return "\n".join(parts)


def sections_of(config: BaseModel) -> list[tuple[str, Any]]:
    """Name -> table of keys."""
    return [(name.replace("_", "-"), value) for name, value in config if is_section(value)]


def same_keys(section: BaseModel, other: BaseModel) -> set[str]:
    """Names of the keys that two sections have with the same values, default and meaning."""

    def rows(of: BaseModel) -> set[tuple[str, str, str, str | None]]:
        return {
            (name, toml_value(getattr(of, name)), values(field), field.description)
            for name, field in type(of).model_fields.items()
            if not is_section(getattr(of, name))
        }

    return {name for name, *_ in rows(section) & rows(other)}


def is_section(value: object) -> bool:
    return isinstance(value, BaseModel)


def table(name: str, section: BaseModel, shared: tuple[str, set[str]] = ("", set())) -> str:
    """A heading and the keys of one section. shared: an earlier section, and keys of it."""
    title = f"`[{name}]`" if name else "Top level"
    lines = [f"### {title}", ""]
    if shared[1]:
        lines += [f"All keys of {shared[0]}, with the same defaults and meanings, and:", ""]
    lines += ["| key | default | values | meaning |", "|---|---|---|---|"]
    for field_name, field in type(section).model_fields.items():
        default = getattr(section, field_name)
        if is_section(default) or field_name in shared[1]:
            continue
        key = f"{name}.{field_name}" if name else field_name
        cells = [code(key.replace("_", "-")), code(toml_value(default)), values(field)]
        lines.append(" | ".join(["", *cells, escaped(field.description or ""), ""]).strip())
    return "\n".join(lines) + "\n"


def values(field: FieldInfo) -> str:
    """What a key accepts: the words, or the type with its bounds."""
    kinds: dict[Any, str] = {bool: "true, false", int: "integer", float: "number", str: "text"}
    if get_origin(field.annotation) in (Union, UnionType):
        parts = (FieldInfo(annotation=one) for one in get_args(field.annotation))
        return ", ".join(values(part) for part in parts)
    if get_origin(field.annotation) is Literal:
        return ", ".join(code(str(word) or '""') for word in get_args(field.annotation))
    bounds = [
        f"{word}\N{NO-BREAK SPACE}{getattr(bound, attribute):g}"
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
