"""Generation through a vLLM server: what one request per prompt and adapters over its API save.

    python benchmarks/generation.py [--prompts 32] [--responses 8] [--model FOLDER]

Prints two ratios, each measured within this one run: J completions of a prompt in one request
(n = J) against J requests with the same prompt; and swapping an adapter over the server's API
against merging it into the base, writing the merged model and starting an engine with it. Needs
`make vllm`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import privsyn_flower
from privsyn_flower.text.models.adapters import base_of, save_adapter
from privsyn_flower.text.prompts import expand_prompt
from privsyn_flower.text.serving.vllm_server import VllmGenerator, VllmServer

TINY = Path(privsyn_flower.__file__).parent / "assets" / "generator"
WORDS = ["mean", "array", "axis", "model", "fit", "table", "row", "matrix", "of", "the", "value"]
RANK = 4


def make_prompts(count: int, rng: np.random.Generator) -> list[str]:
    """Prompts of three examples of 45 words, as POPri's."""
    texts = [" ".join(rng.choice(WORDS, 45)) for _ in range(count * 3)]
    return [expand_prompt(texts[3 * i : 3 * i + 3]) for i in range(count)]


def make_adapter(model: Path, folder: Path) -> Path:
    """A random LoRA adapter on all linear layers."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = LoraConfig(r=RANK, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = get_peft_model(base, config)
    for name, weights in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.02)
    save_adapter(adapted, folder, base_of(model, base.config, "--model"))
    return folder


def merge(model: Path, adapter: Path, folder: Path) -> Path:
    """Base and adapter -> one model on disk."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(model)
    merged: Any = PeftModel.from_pretrained(base, str(adapter))
    merged.merge_and_unload().save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def seconds(generator: VllmGenerator, prompts: list[str], n: int, seed: int) -> float:
    """Wall time of n completions of each prompt."""
    start = time.perf_counter()
    found = generator.complete(prompts, n, np.random.default_rng(seed))
    assert all(len(texts) == n for texts in found)
    return time.perf_counter() - start


def responses(generator: VllmGenerator, arguments: argparse.Namespace) -> None:
    """n = J against J requests, fresh prompts each time so that no pass finds the other's cache."""
    rng, j = np.random.default_rng(0), arguments.responses
    together, repeated = [], []
    for seed in range(arguments.repeats):
        together.append(seconds(generator, make_prompts(arguments.prompts, rng), j, seed))
        again = [p for p in make_prompts(arguments.prompts, rng) for _ in range(j)]
        repeated.append(seconds(generator, again, 1, seed))
    one, many = statistics.median(together), statistics.median(repeated)
    print(f"{arguments.prompts} prompts x {j} responses of up to {arguments.tokens} tokens")
    print(f"n = J: {one:.2f} s ({arguments.prompts * j / one:.0f} responses/s)   "
          f"J requests: {many:.2f} s   ratio {many / one:.2f}")  # fmt: skip


def adapters(generator: VllmGenerator, arguments: argparse.Namespace, folder: Path) -> None:
    """Until the first completion with an adapter: over the API, and by merge and reload."""
    adapter = make_adapter(arguments.model, folder / "adapter")
    prompt = make_prompts(1, np.random.default_rng(1))
    swaps = []
    for _ in range(arguments.repeats):
        generator.use_adapter(None)
        start = time.perf_counter()
        generator.use_adapter(adapter)
        swaps.append(time.perf_counter() - start + seconds(generator, prompt, 1, 0))
    start = time.perf_counter()
    merged = merge(arguments.model, adapter, folder / "merged")
    reloaded = make_generator(merged, arguments, folder / "merged.log")
    try:
        seconds(reloaded, prompt, 1, 0)
        reload = time.perf_counter() - start
    finally:
        reloaded.close()
    swap = statistics.median(swaps)
    print(f"swap over the API: {swap:.3f} s   merge and reload: {reload:.1f} s   "
          f"ratio {reload / swap:.0f}")  # fmt: skip


def make_generator(model: Path, arguments: argparse.Namespace, log: Path) -> VllmGenerator:
    """A generator with a server of its own, which starts at its first use."""
    server = VllmServer(model, log=log, python=arguments.python, lora_rank=RANK)
    return VllmGenerator(server, max_tokens=arguments.tokens, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--python", type=Path, default=None, help="of vLLM's environment")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--responses", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generator = make_generator(arguments.model, arguments, folder / "vllm.log")
        try:
            start = time.perf_counter()
            seconds(generator, make_prompts(4, np.random.default_rng(2)), 2, 0)
            print(f"engine started in {time.perf_counter() - start:.0f} s")
            responses(generator, arguments)
            adapters(generator, arguments, folder)
        finally:
            generator.close()


if __name__ == "__main__":
    main()
