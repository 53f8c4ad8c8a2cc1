"""A sentence encoder as one folder that a device runs without torch.

The folder holds model.onnx (its weights in model.onnx.data, unless they have 8 bits),
tokenizer.json and embedder.json: whose rows the graph gives (the fingerprint that questions name),
their dimension, the longest text in tokens, and the sha256 of the other files. Needs the extras
`server` and `export`, on the machine that exports.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.files import file_digest, new_folder
from privsyn_flower.text.embedders import model_folder, ngram_dimension
from privsyn_flower.text.encoders import IDS, ROW, OnnxEmbedder, SentenceEmbedder
from privsyn_flower.text.fingerprints import (
    DATA,
    FACTS,
    FORMAT,
    GRAPH,
    TOKENIZER,
    folder_fingerprint,
    text_fingerprint,
)

OPSET = 20
# Entries of a weight matrix, and of what it is multiplied with, that share a scale. Of 1,500
# docstrings, the nearest of 256 candidates is the exact model's for 97 % with 32 and for 96 % with
# 128; for 85 % with one scale a column and one for all it is multiplied with (quantize_dynamic).
BLOCK = 32
LEAST_COSINE = 0.9  # of a row in 8 bits with the exact one: below it, something is broken
TOLERANCE = 1e-5  # of a row's entries: below it, the exported model counts as the same function
PROBES = (
    "Return the distance between two points.",
    "",
    "  Tabs\tand\n lines, [SEP] and <mask>, as they are written.  ",
    "Zürich, naïve, 東京, 🙂",
    "a longer text " * 120,
)


class ExportError(RuntimeError):
    """The model cannot be exported so that its rows stay what they are."""


def export_embedder(name: str, folder: Path, *, int8: bool = False) -> dict[str, Any]:
    """Export the sentence encoder `name` (as `models.embedder`) to `folder`; returns its facts.

    int8: weights in 8 bits, a quarter of the bytes; rows differ by about 1e-2, so it is an
    embedder of its own, which server and nodes must both use. Raises ExportError, FileExistsError
    when the folder is there, ImportError, and ModelUnavailableError.
    """
    if ngram_dimension(name) is not None:
        raise ExportError(f"{name!r} has no files: nodes take it by its name, without any extra")
    source = model_folder(name)
    if (source / FACTS).is_file():
        raise ExportError(f"{name!r} is an exported folder already: {source}")
    if folder.exists():
        raise FileExistsError(f"{folder} is there already: name another folder, or remove it")
    if not (source / TOKENIZER).is_file():
        raise ExportError(f"{source} has no {TOKENIZER}, which a device without torch needs")
    exact = SentenceEmbedder(source, device="cpu", progress=False)
    tokens = int(getattr(exact.model, "max_seq_length", None) or 512)

    def fill(target: Path) -> None:
        shutil.copyfile(source / TOKENIZER, target / TOKENIZER)
        # Weights in a file of their own are mapped, not read: 76 MB less of memory for MiniLM.
        write_graph(exact, target / GRAPH, tokens, beside=not int8)
        if int8:
            quantise(target / GRAPH)
        files = [file for file in (GRAPH, DATA, TOKENIZER) if (target / file).is_file()]
        digests = {file: file_digest(target / file) for file in files}
        own = text_fingerprint(f"onnx:{digests[GRAPH]}:{digests[TOKENIZER]}:{tokens}")
        facts = {
            "format": FORMAT,
            "name": name if not Path(name).is_dir() else Path(name).name,
            "fingerprint": own if int8 else folder_fingerprint(source),
            "dimension": exact.dimension,
            "max-tokens": tokens,
            "bits": 8 if int8 else 32,
            "files": digests,
        }
        (target / FACTS).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
        check_rows(exact, OnnxEmbedder(target, progress=False), LEAST_COSINE if int8 else None)

    folder.parent.mkdir(parents=True, exist_ok=True)
    new_folder(folder, fill, result=True)
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text("utf-8"))
    return facts


def check_rows(exact: Any, exported: Any, cosine: float | None = None) -> float:
    """The largest difference of their rows of PROBES. Raises ExportError above TOLERANCE, or where
    one's cosine is below `cosine`, if that is given."""
    wanted, rows = exact.embed(PROBES), exported.embed(PROBES)
    apart, least = float(np.abs(wanted - rows).max()), float((wanted * rows).sum(axis=1).min())
    if cosine is not None:
        if not least >= cosine:
            raise ExportError(f"rows in 8 bits have cosines down to {least:.2f} with the model's")
        return apart
    if not apart <= TOLERANCE:
        raise ExportError(
            f"rows of the exported model are up to {apart:.2g} from the model's own, more than "
            f"{TOLERANCE}: this kind of model cannot be exported"
        )
    return apart


def write_graph(
    exact: SentenceEmbedder,
    path: Path,
    tokens: int,
    *,
    optimised: bool = True,
    beside: bool = False,
) -> None:
    """The encoder with its pooling, for one text of 2 to `tokens` tokens, as an ONNX file.

    optimised: weights folded into the form in which they are used; else they keep their names.
    beside: weights in a second file, `path`.data.
    """
    import torch

    class Encoder(torch.nn.Module):
        """ids (1, tokens) -> row (1, d)."""

        def __init__(self) -> None:
            super().__init__()
            self.model = exact.model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            features = {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "token_type_ids": torch.zeros_like(ids),
            }
            row: torch.Tensor = self.model(features)["sentence_embedding"]
            return row

    length = torch.export.Dim("tokens", min=2, max=tokens)
    quiet = logging.getLogger("torch.onnx")
    before, quiet.level = quiet.level, logging.ERROR
    try:
        program = torch.onnx.export(
            Encoder().eval(),
            (torch.zeros((1, 16), dtype=torch.int64),),
            None,
            input_names=[IDS],
            output_names=[ROW],
            opset_version=OPSET,
            dynamic_shapes=({1: length},),
            dynamo=True,
            optimize=optimised,
            verbose=False,
        )
    except Exception as error:  # the exporter raises errors of several libraries
        raise ExportError(f"torch cannot export this model: {error}") from error
    finally:
        quiet.level = before
    assert program is not None
    program.save(str(path), external_data=beside)
    _forget_origin(path)


def quantise(path: Path) -> None:
    """Weights to 8 bits, in place: blocks of BLOCK entries of a matrix share a scale, and each row
    of the word embeddings has its own. What lies between is computed as ONNX Runtime has it for
    accuracy level 4: activations in 8 bits too, block by block."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.getLogger("onnxruntime.quantization").setLevel(logging.WARNING)
    quantizer = MatMulNBitsQuantizer(
        onnx.load(path), bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=4
    )
    quantizer.process()
    model = quantizer.model.model
    _quantise_embeddings(model.graph)
    onnx.save(model, str(path))


def _quantise_embeddings(graph: Any) -> None:
    """Word embeddings (V, d) float32 -> int8, and a scale for each row (V, 1)."""
    from onnx import TensorProto, helper, numpy_helper

    tables = {table.name: table for table in graph.initializer if len(table.dims) == 2}
    for node in [node for node in graph.node if node.op_type == "Gather"]:
        table = tables.get(node.input[0])
        if table is None or table.dims[0] < 1000:  # positions and types are small
            continue
        rows = numpy_helper.to_array(table)  # (V, d)
        scales = np.abs(rows).max(axis=1, keepdims=True).astype(np.float32) / 127  # (V, 1)
        scales[scales == 0] = 1
        whole = np.rint(rows / scales).astype(np.int8)
        name, ids, out = table.name, node.input[1], node.output[0]
        graph.initializer.remove(table)
        graph.initializer.extend(
            [
                numpy_helper.from_array(whole, name + ".q"),
                numpy_helper.from_array(scales, name + ".s"),
            ]
        )
        place = list(graph.node).index(node)
        graph.node.remove(node)
        steps = [
            helper.make_node("Gather", [name + ".q", ids], [name + ".ids"]),
            helper.make_node("Cast", [name + ".ids"], [name + ".floats"], to=TensorProto.FLOAT),
            helper.make_node("Gather", [name + ".s", ids], [name + ".scales"]),
            helper.make_node("Mul", [name + ".floats", name + ".scales"], [out]),
        ]
        for offset, step in enumerate(steps):
            graph.node.insert(place + offset, step)


def _forget_origin(path: Path) -> None:
    """The exporter notes the lines of code, with their paths, that each node comes from."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.ClearField("value_info")
    onnx.save(model, str(path))
