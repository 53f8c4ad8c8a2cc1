"""What each embedder costs, and which votes it moves: nearest candidates of public docstrings.

    python benchmarks/embedders.py [--samples 500] [--candidates 256]

Prints for each embedder the bytes of its files, the processor's milliseconds for a text in one
thread, those of the load, and the peak memory of a process that loads it and embeds; then its
cosine to all-MiniLM-L6-v2 in torch, and the share of samples whose nearest candidate is torch's
too: with this embedder on both sides, and on the device alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.config import cache_folder, load_config
from privsyn_flower.data import Federation, prepare

ROOT = Path(__file__).resolve().parent.parent
EMBEDDERS = ("minilm (torch)", "minilm", "minilm-int8", "ngram-256")


def texts(count: int) -> list[str]:
    """Docstrings of the demo's public packages, drawn by a fixed seed."""
    config = load_config(ROOT / "configs" / "docstrings-demo.toml")
    found = sorted(set(Federation(prepare(config.data, cache_folder(config))).public()))
    return random.Random(0).sample(found, count)


def measure(name: str, samples: list[str], candidates: list[str], file: str) -> None:
    """Embed both lists in this process; rows to `file`.npz and what they cost to `file`.json."""
    os.environ["OMP_NUM_THREADS"] = "1"
    start = time.process_time()
    embedder, folder = load(name)
    embedder.embed(["a first text"])
    loaded = time.process_time()
    rows = embedder.embed(samples)
    embedded = time.process_time()
    np.savez(file + ".npz", samples=rows, candidates=embedder.embed(candidates))
    facts = {
        "bytes": sum(path.stat().st_size for path in folder) if folder else 0,
        "load": loaded - start,
        "milliseconds": 1000 * (embedded - loaded) / len(samples),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    Path(file + ".json").write_text(json.dumps(facts))


def load(name: str) -> tuple[Any, list[Path]]:
    """The embedder, and the files that a device needs of it."""
    from privsyn_flower.text.embedders import load_embedder, model_folder
    from privsyn_flower.text.encoders import GRAPH, TOKENIZER, WEIGHTS, SentenceEmbedder

    if name.startswith("ngram"):
        return load_embedder(name), []
    own = name.partition(" ")[0]
    folder = model_folder(own)
    files = [folder / file for file in (GRAPH, TOKENIZER, WEIGHTS) if (folder / file).is_file()]
    if name.endswith("(torch)"):
        import torch

        torch.set_num_threads(1)
        return SentenceEmbedder(folder, progress=False), files
    return load_embedder(own, "cpu", progress=False), files


def cost(facts: dict[str, float]) -> str:
    """A row's cells: MB, seconds to load, milliseconds a text, MB of memory."""
    return (
        f"{facts['bytes'] / 1e6:.1f} | {facts['load']:.2f} | {facts['milliseconds']:.2f} "
        f"| {facts['megabytes']:.0f}"
    )


def agreement(found: dict[str, Any], exact: dict[str, Any]) -> str:
    """A row's cells: cosine, and the votes that stay where torch has them."""
    votes = (exact["samples"] @ exact["candidates"].T).argmax(axis=1)  # (n,)
    both = (found["samples"] @ found["candidates"].T).argmax(axis=1)
    if found["samples"].shape != exact["samples"].shape:
        return f" | {(both == votes).mean():.3f} | "
    cosine = (found["samples"] * exact["samples"]).sum(axis=1).mean()
    device = (found["samples"] @ exact["candidates"].T).argmax(axis=1)
    return f"{cosine:.4f} | {(both == votes).mean():.3f} | {(device == votes).mean():.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--candidates", type=int, default=256)
    options = parser.parse_args()
    drawn = texts(options.samples + options.candidates)
    samples, candidates = drawn[: options.samples], drawn[options.samples :]
    words = np.mean([len(text.split()) for text in samples])
    print(f"{len(samples)} samples of {words:.0f} words, {len(candidates)} candidates, one thread")
    print("| embedder | MB | load, s CPU | ms CPU a text | peak MB | cosine | both | device |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    spawn = multiprocessing.get_context("spawn")  # a process of its own: memory, and no torch
    exact: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(EMBEDDERS):
            file = str(Path(folder) / str(number))
            process = spawn.Process(target=measure, args=(name, samples, candidates, file))
            process.start()
            process.join()
            found, facts = (
                dict(np.load(file + ".npz")),
                json.loads(Path(file + ".json").read_text()),
            )
            exact = exact or found
            print(f"| {name} | {cost(facts)} | {agreement(found, exact)} |")


if __name__ == "__main__":
    main()
