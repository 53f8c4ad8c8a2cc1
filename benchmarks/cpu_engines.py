"""SmolLM2 on a CPU by llama.cpp and by vLLM: tokens a CPU second, beside cpu_generation.py.

    python benchmarks/cpu_generation.py --write-prompts prompts.json
    ENVIRONMENT/bin/python benchmarks/cpu_engines.py llama-cpp FILE.gguf prompts.json
    .venv-vllm/bin/python benchmarks/cpu_engines.py vllm MODEL_FOLDER prompts.json

Each runs in an environment of its own: `pip install llama-cpp-python`, which builds llama.cpp, and
`make vllm`. Prompts and new tokens are those of cpu_generation.py, none ends early; one thread.
llama.cpp's Python package completes one prompt at a time, and keeps what the next one shares with
it; vLLM batches. Loading is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path


def llama_cpp(path: str, tokens: int, batch: int) -> Callable[[list[str]], int]:
    """Completions by llama-cpp-python, one after the other."""
    from llama_cpp import Llama

    model = Llama(path, n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False)

    def write(prompts: list[str]) -> int:
        written = 0
        for prompt in sorted(prompts):
            found = model.create_completion(
                prompt, max_tokens=tokens, top_p=0.95, top_k=0, min_p=0.0, temperature=1.0,
                repeat_penalty=1.0, logit_bias={model.token_eos(): float("-inf")},
            )  # fmt: skip
            written += found["usage"]["completion_tokens"]
        return written

    return write


def vllm(path: str, tokens: int, batch: int) -> Callable[[list[str]], int]:
    """Completions by vLLM in this process, in batches."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }  # fmt: skip
    from vllm import LLM, SamplingParams

    model = LLM(path, max_model_len=1024, max_num_seqs=batch, dtype="bfloat16", enforce_eager=True)
    asked = SamplingParams(top_p=0.95, temperature=1.0, max_tokens=tokens, ignore_eos=True)

    def write(prompts: list[str]) -> int:
        found = model.generate(prompts, asked, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in found)

    return write


ENGINES = {"llama-cpp": llama_cpp, "vllm": vllm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    prompts = json.loads(arguments.prompts.read_text(encoding="utf-8"))
    write = ENGINES[arguments.engine](arguments.model, arguments.tokens, arguments.batch)
    found = []
    for _ in range(arguments.repeats):
        start = time.process_time()
        found.append(write(prompts) / (time.process_time() - start))
    print(f"{arguments.engine}: {statistics.median(found):.1f} tokens a CPU second {sorted(found)}")


if __name__ == "__main__":
    main()
