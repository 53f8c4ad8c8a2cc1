"""Text -> unit rows by a transformer: ONNX Runtime on a CPU, torch on a GPU.

A folder that `privsyn embedder export` made holds the graph with its weights, the tokenizer and
embedder.json; it needs onnxruntime and tokenizers, no torch. The graph of all-MiniLM-L6-v2 ships
without weights, which come from the model's own safetensors file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from privsyn_flower.common.arrays import F32
from privsyn_flower.common.progress import Progress, bar
from privsyn_flower.text.fingerprints import (
    FACTS,
    GRAPH,
    TOKENIZER,
    file_digest,
    folder_fingerprint,
    read_facts,
)
from privsyn_flower.text.models.devices import cpu_workers, one_worker

WEIGHTS = "model.safetensors"
IDS, ROW = "ids", "row"  # the graph's input (1, tokens) and output (1, d)


class OnnxEmbedder:
    """A sentence encoder in ONNX Runtime on the CPU, from an exported folder.

    Each text goes through the model alone, without padding, in one thread that never spins: a row
    is a function of its text alone, to the last bit on one machine, and a busy machine slows it by
    its share. Texts are spread over `workers` threads; 0: one for each core that this process may
    use, or OMP_NUM_THREADS where it is set. graph: folder of a graph without weights, which are
    then those of `folder`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        graph: Path | None = None,
        progress: bool | Progress = True,
        workers: int = 0,
    ) -> None:
        self.fingerprint = folder_fingerprint(folder)
        graph = graph or folder
        self.model = _onnx_model(folder, graph, self.fingerprint, file_digest(graph / FACTS))
        self.dimension = self.model.dimension
        self.workers = workers or cpu_workers()
        self.progress = progress

    def embed(self, texts: Sequence[str]) -> F32:
        """n texts -> (n, d) unit rows."""
        check_texts(texts)
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        with bar(self.progress, "embedding", len(texts)) as advance:
            for i, row in enumerate(self._rows(texts)):
                rows[i] = row
                advance(1)
        return unit(rows)

    def _rows(self, texts: Sequence[str]) -> Iterator[F32]:
        if min(self.workers, len(texts)) < 2:
            yield from map(self.model.row, texts)
            return
        with ThreadPoolExecutor(min(self.workers, len(texts))) as pool:
            try:
                yield from pool.map(self.model.row, texts)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class OnnxModel:
    """A loaded graph with its tokenizer; any number of threads may call it.

    weights: what the session points to, if anything.
    """

    session: Any
    tokenizer: Any
    dimension: int
    weights: list[Any]

    def row(self, text: str) -> F32:
        """One text -> (d,), not normalised."""
        ids = np.array([self.tokenizer.encode(text).ids], dtype=np.int64)  # (1, tokens)
        row: F32 = self.session.run([ROW], {IDS: ids})[0][0]
        return row


@functools.lru_cache(maxsize=1)
def _onnx_model(folder: Path, graph: Path, *_digests: str) -> OnnxModel:
    """The model, loaded once while its files stay the same. Raises ValueError."""
    import onnxruntime
    from tokenizers import Tokenizer

    # Where somebody imported it before this package had set ORT_DISABLE_TELEMETRY.
    onnxruntime.disable_telemetry_events()
    facts = read_facts(graph)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.no_padding()
    tokenizer.enable_truncation(facts["max-tokens"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Errors are raised; printed, they would tell of a private text where a server may read.
    options.log_severity_level = 4
    names, values = _weights(folder / WEIGHTS, facts["weights"]) if graph != folder else ([], [])
    if names:
        options.add_external_initializers(names, values)
    session = onnxruntime.InferenceSession(
        str(graph / GRAPH), options, providers=["CPUExecutionProvider"]
    )
    return OnnxModel(session, tokenizer, int(facts["dimension"]), values)


def _weights(path: Path, wanted: dict[str, str]) -> tuple[list[str], list[Any]]:
    """Initialisers of a graph without weights: its names, and their values from safetensors."""
    import onnxruntime
    from safetensors import safe_open

    with safe_open(str(path), "np") as tensors:
        values = [
            onnxruntime.OrtValue.ortvalue_from_numpy(tensors.get_tensor(name))
            for name in wanted.values()
        ]
    return list(wanted), values


class SentenceEmbedder:
    """A sentence-transformers model (or any encoder, then mean-pooled) from a folder, in torch.

    On a CPU texts go through the model one by one, without padding: a row is a function of its
    text alone, to the last bit (for one machine and number of threads), and for texts of a few
    words or more it costs no more than batches do. Other devices need batches, whose padding and
    rounding move a row by about 1e-7: keep texts of different users in different calls.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "cpu",
        progress: bool | Progress = True,
    ) -> None:
        self.fingerprint = folder_fingerprint(folder)
        self.model, self.dimension = _sentence_model(folder, self.fingerprint, device)
        self.batch_size = 1 if device == "cpu" else 64
        self.progress = progress

    def embed(self, texts: Sequence[str]) -> F32:
        """n texts -> (n, d) unit rows; batches of similar length, results in the given order."""
        from privsyn_flower.text.models.batches import longest_first  # not for every vote

        check_texts(texts)
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        with one_worker(), bar(self.progress, "embedding", len(texts)) as advance:
            for batch in longest_first([len(text) for text in texts], self.batch_size):
                rows[batch] = self.model.encode(
                    [texts[i] for i in batch],
                    batch_size=self.batch_size,
                    show_progress_bar=False,
                    convert_to_numpy=True,
                )
                advance(len(batch))
        return unit(rows)


@functools.lru_cache(maxsize=1)
def _sentence_model(folder: Path, _fingerprint: str, device: str) -> tuple[Any, int]:
    """The model and its dimension, loaded once while its files stay the same.

    A folder may bring code of its own, which is never run: ValueError.
    """
    from sentence_transformers import SentenceTransformer

    path = folder / "modules.json"
    for module in json.loads(path.read_text("utf-8")) if path.is_file() else []:
        if not str(module.get("type")).startswith("sentence_transformers."):
            raise ValueError(f"{path}: {module.get('type')!r} is code of its own, which is not run")
    model = SentenceTransformer(str(folder), device=device, trust_remote_code=False)
    return model, int(model.encode("", show_progress_bar=False).shape[0])


def unit(rows: npt.NDArray[np.floating]) -> F32:
    """Rows of L2 norm 1, normalised in float64; zero rows become the row of equal entries.

    Raises ValueError for a row that is not finite: it would hide what is wrong with the model.
    """
    wide = rows.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("the model gives rows that are not finite")
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    wide = np.where(norms > 0, wide / np.where(norms > 0, norms, 1.0), rows.shape[1] ** -0.5)
    return wide.astype(np.float32)


def check_texts(texts: Sequence[str]) -> None:
    """Raise TypeError for what is not text; the message never quotes it (it may be PRIVATE)."""
    if isinstance(texts, str):
        raise TypeError("expected a sequence of texts, got one string")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {index} is of type {type(text).__name__}, expected str")
