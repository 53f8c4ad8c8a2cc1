"""Hashes that say which function an embedder computes, from its files alone.

Server and nodes must embed alike, so a query names the embedder by this hash and a node refuses
what differs. Two copies of one model in different folders have one fingerprint.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from privsyn_flower import files

SCHEME = "privsyn-embedder-1"
CONFIGS = ("config.json", "sentence_bert_config.json")
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model",
              "sentencepiece.bpe.model", "tokenizer.model")  # fmt: skip


def text_fingerprint(text: str) -> str:
    """The fingerprint of an embedder that has no files."""
    return hashlib.sha256(f"{SCHEME}:{text}".encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file in hex; memoised by path, size and time of change."""
    stat = path.stat()
    return _file_digest(path.resolve(), stat.st_size, stat.st_mtime_ns)


def folder_fingerprint(folder: Path) -> str:
    """The fingerprint of a model folder: its weights, tokenizer and configuration files.

    Files of other formats (ONNX, TensorFlow, a .bin beside safetensors) do not count, so a
    hub snapshot and a trimmed copy agree. Raises FileNotFoundError when there are no weights.
    """
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


def _model_files(folder: Path) -> list[Path]:
    """Weights, first tokenizer file that says it all, and configurations of one module."""
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    tokenizer = [folder / name for name in TOKENIZERS if (folder / name).is_file()]
    configs = [folder / name for name in CONFIGS if (folder / name).is_file()]
    # tokenizer.json holds vocabulary and merges; copies of them beside it are optional.
    first = tokenizer[:1] if tokenizer and tokenizer[0].name == TOKENIZERS[0] else tokenizer
    return weights + first + configs


@functools.lru_cache(maxsize=256)
def _file_digest(path: Path, _size: int, _mtime_ns: int) -> str:
    return files.file_digest(path)
