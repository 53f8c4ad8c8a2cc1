"""Hashes that say which function an embedder computes, and which files a model is made of.

Server and nodes must embed alike, so a query names the embedder by the hash of its files and a node
refuses what differs. Two copies of one model in different folders have one fingerprint.

A process hashes a file once. A device starts a process for every message, so a node keeps digests
in its own folder too. They say which model this is, not how private anything is: whoever can write
there can read the node's keys and change its policy as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from privsyn_flower.common import files
from privsyn_flower.common.files import replace_private

DIGESTS_FILE = "digests.json"
MOST_FILES = 64  # files that are kept
MOST_BYTES = 1 << 19  # bytes of a file of digests
# A file may change again within one tick of its file system's clock and look the same. A file that
# rested for longer than any tick when it was hashed cannot.
RESTED = 2_000_000_000  # ns

# Of a file: start of the machine, device, inode, bytes, when content and inode changed in ns.
Stamp = tuple[Any, ...]

_seen: dict[str, tuple[Stamp, str]] = {}  # by this process
_kept: dict[str, tuple[Stamp, str]] = {}  # by the node's folder, while a block below runs


def file_digest(path: Path) -> str:
    """sha256 of a file in hex, hashed again when anything about it changed."""
    name, stamp = str(path.resolve()), _stamp(path)
    for known in (_seen, _kept):
        entry = known.get(name)
        if entry is not None and entry[0] == stamp:
            _seen[name] = entry
            return entry[1]
    rested = time.time_ns() - max(stamp[-2:]) > RESTED
    digest = files.file_digest(path)
    if rested and _stamp(path) == stamp:
        _seen[name] = (stamp, digest)
    return digest


@contextlib.contextmanager
def persistent_digests(path: Path) -> Iterator[None]:
    """Inside, digests are also taken from and kept in `path`, a file of the node's owner alone.

    A file that cannot be used or written is done without.
    """
    before = _read(path)
    _kept.update(before)
    try:
        yield
    finally:
        _kept.clear()
    if any(before.get(name) != entry for name, entry in _seen.items()):
        rows = list((before | _seen).items())[-MOST_FILES:]
        with contextlib.suppress(OSError):
            files.private_folder(path.parent)
            replace_private(path, json.dumps(dict(rows)).encode())


def _stamp(path: Path) -> Stamp:
    facts = path.stat()
    times = facts.st_mtime_ns, facts.st_ctime_ns
    return (_boot(), facts.st_dev, facts.st_ino, facts.st_size, *times)


def _boot() -> str:
    """This start of the machine: after another one a file system may be a new image of the same
    inodes and times."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _read(path: Path) -> dict[str, tuple[Stamp, str]]:
    """The entries of a file of digests; none where it is damaged, or others can write it."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return {}
            rows: Any = json.loads(file.read(MOST_BYTES))
        return {str(name): (tuple(stamp), str(digest)) for name, (stamp, digest) in rows.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


SCHEME = "privsyn-embedder-1"
LARGEST = 65_536  # of a dimension, or of the tokens of a text
FACTS = "embedder.json"  # of a folder that was exported for devices
FORMAT = 1  # of it
GRAPH, TOKENIZER = "model.onnx", "tokenizer.json"
DATA = "model.onnx.data"  # the graph's weights, where they lie beside it
CONFIGS = ("config.json", "sentence_bert_config.json")
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model",
              "sentencepiece.bpe.model", "tokenizer.model")  # fmt: skip


def text_fingerprint(text: str) -> str:
    """The fingerprint of an embedder that has no files."""
    return hashlib.sha256(f"{SCHEME}:{text}".encode()).hexdigest()


def folder_fingerprint(folder: Path) -> str:
    """The fingerprint of a model folder: its weights, tokenizer and configuration files.

    Files of other formats (ONNX, TensorFlow, a .bin beside safetensors) do not count, so a
    hub snapshot and a trimmed copy agree. An exported folder says whose rows its own are, and its
    files must be those that it names. Raises FileNotFoundError when there are no weights, and
    ValueError for a file that is another.
    """
    if (folder / FACTS).is_file():
        return _exported_fingerprint(folder)
    listing = folder / "modules.json"
    parts = {""}
    if listing.is_file():
        parts |= {str(module["path"]) for module in json.loads(listing.read_text("utf-8"))}
    files = [path for part in sorted(parts) for path in _model_files(folder / part)]
    if not any(path.suffix in {".safetensors", ".bin"} for path in files):
        raise FileNotFoundError(f"{folder} holds no model weights (*.safetensors or *.bin)")
    digest = hashlib.sha256(SCHEME.encode())
    for path in files + ([listing] if listing.is_file() else []):
        digest.update(f"\n{path.relative_to(folder).as_posix()} {file_digest(path)}".encode())
    return digest.hexdigest()


def read_facts(folder: Path) -> dict[str, Any]:
    """embedder.json of an exported folder, whose entries are what they should be.

    Raises ValueError for one of another format, OSError.
    """
    path = folder / FACTS
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    found = facts.get("format") if isinstance(facts, dict) else None
    if type(found) is not int or found != FORMAT:
        raise ValueError(
            f"{path} has format {found!r}, this version reads {FORMAT}: export the embedder again"
        )
    files = _strings(facts.get("files"))
    needed = {GRAPH} if _strings(facts.get("weights")) else {GRAPH, TOKENIZER}
    digests = [facts.get("fingerprint"), *files.values()]
    whole = all(map(_is_digest, digests)) and needed <= set(files) <= {GRAPH, TOKENIZER, DATA}
    numbers = [facts.get("dimension"), facts.get("max-tokens")]
    if not whole or not all(type(n) is int and 1 <= n <= LARGEST for n in numbers):
        raise ValueError(f"{path} is damaged: copy the folder again, or export the embedder again")
    return dict(facts)


def _strings(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _exported_fingerprint(folder: Path) -> str:
    facts = read_facts(folder)
    for name, digest in facts["files"].items():
        path = folder / name
        found = file_digest(path) if path.is_file() else "no such file"
        if found != digest:
            raise ValueError(f"{path}: {found}, expected sha256 {digest}: copy the folder again")
    return str(facts["fingerprint"])


def _model_files(folder: Path) -> list[Path]:
    """Weights, first tokenizer file that says it all, and configurations of one module."""
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    tokenizer = [folder / name for name in TOKENIZERS if (folder / name).is_file()]
    configs = [folder / name for name in CONFIGS if (folder / name).is_file()]
    # tokenizer.json holds vocabulary and merges; copies of them beside it are optional.
    first = tokenizer[:1] if tokenizer and tokenizer[0].name == TOKENIZERS[0] else tokenizer
    return weights + first + configs
