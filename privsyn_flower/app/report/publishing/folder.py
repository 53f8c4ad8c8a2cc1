"""The published folder: made beside its place, looked over, and put there whole; and to the hub."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from privsyn_flower import __version__
from privsyn_flower.app.report.places import local_places, named_places, settings
from privsyn_flower.app.report.publishing.card import (
    NOTHING_CLAIMED,
    PARQUET,
    PICKED,
    SETTINGS,
    Facts,
    card,
)
from privsyn_flower.app.report.publishing.product import (
    SUMMARY,
    Kind,
    Product,
    PublishError,
    columns_of,
    is_own_file,
    write_parquet,
)
from privsyn_flower.app.report.registry import FILE as FORMS
from privsyn_flower.app.report.registry import record
from privsyn_flower.common.files import file_digest, share
from privsyn_flower.privacy.sentence import FILE as STATEMENT
from privsyn_flower.privacy.wording import page
from privsyn_flower.runs import SEEDS, write_json

MANIFEST = "publish.json"  # the sha256 of every other file: what `privsyn publish` wrote
# Of a model's folder; anything else there is not copied.
MODEL_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
}
NAMES = {"_name_or_path", "name_or_path", "tokenizer_file", "vocab_file", "merges_file"}
VOCABULARY = {"tokenizer.json", "vocab.json", "added_tokens.json"}  # words, which may look so


def publish(product: Product, target: Path, facts: Facts) -> Path:
    """Write the product to the folder `target`, whole or not at all; returns where it is.

    The same run, settings and library versions give the same bytes. A folder of an earlier call is
    replaced: a reader sees the old one, for a moment none, or the new one. Raises PublishError for
    a place that holds anything else, and before anything would name a path of this machine.
    """
    target = target.expanduser().absolute()
    check_place(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        made = scratch / "new"
        made.mkdir()
        _fill(product, made, facts)
        _check_places(product, made)
        write_json(made / MANIFEST, _manifest(made))
        share(made)
        check_place(target)
        if target.exists():
            target.rename(scratch / "old")
        try:
            made.rename(target)
        except BaseException:  # also Ctrl-C: what was there stays there
            if (scratch / "old").exists():
                (scratch / "old").rename(target)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def check_place(target: Path) -> None:
    """Raises PublishError unless nothing is there, or what `publish` wrote, as it wrote it."""
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink():
        raise PublishError(f"{target} is no folder: name another")
    there = {p.relative_to(target).as_posix() for p in target.rglob("*") if not p.is_dir()}
    if not there:
        return
    try:
        known = json.loads((target / MANIFEST).read_text(encoding="utf-8"))["sha256"]
        changed = {
            name
            for name in (there | set(known)) - {MANIFEST}
            if name not in there or known.get(name) != file_digest(target / name)
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise PublishError(
            f"{target} is not empty, and `privsyn publish` did not write it: name another folder"
        ) from None
    if changed:
        raise PublishError(
            f"{target} was changed since `privsyn publish` wrote it ({', '.join(sorted(changed))}):"
            " move it away, or name another folder"
        )


def _fill(product: Product, folder: Path, facts: Facts) -> None:
    """All files but the manifest."""
    if product.kind == "text":
        rows, columns = columns_of(product.source, product.left_out)
        _check_text(product, rows + len(product.left_out))
        facts = replace(facts, rows=rows, columns=columns)
        (folder / PARQUET).parent.mkdir()
        write_parquet(product.source, folder / PARQUET, columns, product.left_out)
        if not product.without_seeds:
            facts = replace(facts, seeds=_copy_seeds(product, folder))
    else:
        facts = replace(facts, **_copy_model(product.source, folder))
    _write(folder / "README.md", card(product, facts))
    _write(folder / SETTINGS, settings(product.config))
    if text := _statement(product):
        _write(folder / STATEMENT, text)
    if is_own_file(product.run / FORMS) and not product.without_seeds:  # it is of the whole text
        _write(folder / FORMS, _record(product))


def _copy_seeds(product: Product, folder: Path) -> int:
    """The texts that votes picked, which are public ones or made of them; how many there are."""
    source, noted = product.run / SEEDS, product.summary.get("seeds")
    if not noted or not is_own_file(source):
        return 0
    rows, columns = columns_of(source)
    if rows != noted:
        raise PublishError(
            f"{source} was changed since its run wrote it: seeds = {noted} in {SUMMARY}, {rows} "
            "here"
        )
    write_parquet(source, folder / PICKED, columns)
    return rows


def _check_text(product: Product, rows: int) -> None:
    """Raises PublishError for text that is not what the run ended with."""
    for key, found in (
        ("synthetic_samples", rows),
        ("synthetic_sha256", file_digest(product.source)),
    ):
        noted = product.summary.get(key, found)  # an earlier version noted no digest
        if noted != found:
            raise PublishError(
                f"{product.source} was changed since its run wrote it: {key} = {noted} in "
                f"{SUMMARY}, {found} here"
            )


def _statement(product: Product) -> str:
    """The run's own, as its summary has it; a file only where an earlier version noted none."""
    summary, path = product.summary, product.run / STATEMENT
    if "privacy_short" in summary:
        own = str(summary["privacy_short"]), str(summary["privacy"])
        text = page(*own, str(summary.get("carries", "")))
    else:
        text = path.read_text(encoding="utf-8") if is_own_file(path) else ""
    if text and product.without_seeds:
        return f"**{NOTHING_CLAIMED}: {product.unclaimed}.** What follows is of the run.\n\n{text}"
    return text


def _record(product: Product) -> str:
    """The record of the run, in which whoever publishes may have filled in blanks. Raises
    PublishError where it claims other numbers than the run."""
    path = product.run / FORMS
    text = path.read_text(encoding="utf-8")
    try:
        told = _numbers(yaml.safe_load(text))
    except (yaml.YAMLError, TypeError, KeyError, AttributeError):
        raise PublishError(f"{path} is damaged: delete it, or put the run's own back") from None
    own = _numbers(record(product.summary, date.min))
    if told != own:
        raise PublishError(f"{path} claims {told}, its run {own}: delete it, or mend it")
    return text


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    """What a record claims for programs."""
    deployment = record["deployment"]
    return {
        **deployment["privacy_loss"]["privacy_parameters"],
        "variant": deployment["dp_variant"].get("variant_name", "none"),
    }


def _copy_model(source: Path, folder: Path) -> dict[str, Any]:
    """Copy a model's own files; returns what its config.json says of it.

    Raises PublishError for a folder without weights.
    """
    found = [
        path
        for path in sorted(source.iterdir())
        if (path.name in MODEL_FILES or path.suffix == ".safetensors") and is_own_file(path)
    ]
    if not any(path.suffix == ".safetensors" for path in found):
        raise PublishError(f"{source} holds no weights (*.safetensors)")
    for path in found:
        if path.suffix == ".json" and path.name not in VOCABULARY:
            value = json.loads(path.read_text(encoding="utf-8"))
            write_json(folder / path.name, {k: v for k, v in value.items() if k not in NAMES})
        else:
            shutil.copyfile(path, folder / path.name)
    about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = (about.get("architectures") or [""])[0]
    return {"model_type": str(about.get("model_type", "")), "architecture": str(architecture)}


def _check_places(product: Product, folder: Path) -> None:
    """Raises PublishError when a file of words names a place of this machine."""
    for path in sorted(folder.rglob("*")):
        words = path.suffix in (".md", ".toml", ".yaml", ".json", ".jinja")
        if words and path.name not in VOCABULARY:
            text = path.read_text(encoding="utf-8")
            if named := named_places(text, local_places(product.config, product.run)):
                raise PublishError(
                    f"{path.name} would name {', '.join(named)}, a place of this machine: nothing "
                    "was written"
                )


def _manifest(folder: Path) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {path.relative_to(folder).as_posix(): file_digest(path) for path in files}
    return {"by": "privsyn publish", "version": __version__, "sha256": digests}


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


REPOSITORIES: dict[Kind, str] = {"text": "dataset", "model": "model"}


def check_name(name: str) -> None:
    """Raises PublishError unless the hub takes OWNER/NAME as a repository's name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise PublishError(f"--push {name}: {' '.join(str(error).split())}") from None
    if name.count("/") != 1:
        raise PublishError(f"--push {name}: name its owner, too, as in OWNER/NAME")


def push(folder: Path, name: str, kind: Kind, *, public: bool = False) -> str:
    """Upload a folder to the repository OWNER/NAME, and return its address.

    A repository that is not there is made: private, or with `public` for everyone. Raises
    PublishError for one that is public already and not asked for, and with the client's reason.
    """
    from huggingface_hub import HfApi

    api = HfApi(library_name="privsyn-flower", library_version=__version__)
    own = {"repo_id": name, "repo_type": REPOSITORIES[kind]}
    try:
        return _push(api, folder, own, public)
    except PublishError:
        raise
    except Exception as error:  # the client's, its HTTP library's, the network's: many kinds
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise PublishError(f"{folder} is written, but {name} was not pushed: {why}") from error


def _push(api: Any, folder: Path, own: dict[str, str], public: bool) -> str:
    if not api.repo_exists(**own):
        api.create_repo(**own, private=not public)
    elif not public and not api.repo_info(**own).private:
        raise PublishError(
            f"{folder} is written, but not pushed: {own['repo_id']} is public already; say "
            "--public if it is meant for everyone"
        )
    said = "Written by privsyn publish"
    # What an earlier push left belongs to another card; the client keeps what is uploaded again.
    api.upload_folder(**own, folder_path=folder, commit_message=said, delete_patterns="*")
    place = "datasets/" if own["repo_type"] == "dataset" else ""
    return f"{api.endpoint}/{place}{own['repo_id']}"
