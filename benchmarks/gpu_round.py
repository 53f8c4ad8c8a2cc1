"""A POPri round at paper size with random weights: generation, DPO, and the way between them.

    python benchmarks/gpu_round.py --shape llama-3-8b --work /scratch [--only generation,dpo]
    python benchmarks/gpu_round.py --shape llama-3-8b --backend vllm [--json OUT]

The model has the sizes of the one named and random numbers (random_llama.py); tokens are counted by
its tokenizer. Random weights hardly ever end a text, so completions are about --max-tokens long,
where a trained model stops earlier. Phases, each printed when it is done:

    generation  --prompts x --completions responses (POPri, appendix B: 1,800 x 10)
    expansion   --texts completions of a prompt each (PrE-Text, section 3 (6)), and what two
                million of them would take
    dpo         --steps optimiser steps on 24 pairs each, reference log-probabilities before them
    handover    what a round pays between the two: rest, adapter on, until the first token
    reference   the authors' order instead: an engine loaded, the adapter merged into the base and
                written, an engine loaded again. Goal: at least 5 times the hand-over's seconds

`handover` and `reference` use the adapter that `dpo` left in --work. Loading the base for DPO is
the same in both orders and counts for neither.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from random_llama import SHAPES, make_model, parameters, random_texts

from privsyn_flower.common.files import write_atomic
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.models.devices import empty_cache, resolve_device
from privsyn_flower.text.models.pretrained import load_model, load_tokenizer
from privsyn_flower.text.preference import PreferenceTrainer
from privsyn_flower.text.preference.tuning import EXPAND_ENDING, encode_pairs
from privsyn_flower.text.prompts import ExamplePrompts
from privsyn_flower.text.serving.vllm_server import VllmGenerator, VllmServer, default_python

PHASES = ("generation", "expansion", "dpo", "handover", "reference")
GOAL = 5  # times the hand-over's seconds
PROMPTS, RESPONSES, PAIRS, EPOCHS = 1800, 10, 1800, 2  # of a round (POPri, appendix B)
BATCH, RANK, ALPHA = 24, 4, 8.0  # likewise
TEXTS = 2_000_000  # PrE-Text, section 5
EXAMPLE = 64  # tokens of a sample (POPri, appendix F)


class Report:
    """Prints every result at once, and keeps all of them in a file of JSON."""

    def __init__(self, target: Path | None, **about: Any) -> None:
        self.target, self.values = target, {"about": about}
        print("  ".join(f"{name} {value}" for name, value in about.items()), flush=True)

    def add(self, phase: str, text: str, **values: float) -> None:
        """One line of a phase, and its values (seconds, tokens, GB)."""
        print(f"{phase}: {text}", flush=True)
        self.values.setdefault(phase, {}).update(
            {name: round(float(value), 5) for name, value in values.items()}
        )
        if self.target is not None:
            write_atomic(self.target, (json.dumps(self.values, indent=1) + "\n").encode())


@contextmanager
def stopwatch(module: ModuleType, *names: str) -> Iterator[dict[str, float]]:
    """Seconds spent in these functions of a module meanwhile, by name."""
    spent = dict.fromkeys(names, 0.0)
    originals = {name: getattr(module, name) for name in names}

    def timed(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return originals[name](*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - start

        return call

    for name in names:
        setattr(module, name, timed(name))
    try:
        yield spent
    finally:
        for name, function in originals.items():
            setattr(module, name, function)


class Bench:
    """The phases, on one model and one generator that is made when it is first needed."""

    def __init__(self, arguments: argparse.Namespace, report: Report, device: str) -> None:
        self.arguments, self.report, self.device = arguments, report, device
        self.model: Path = arguments.work / arguments.shape
        self.adapter = arguments.work / "dpo" / "epoch-1"
        self.rng = np.random.default_rng(0)
        self._generator: HuggingFaceGenerator | VllmGenerator | None = None

    def prepare(self) -> None:
        """The model, its tokenizer, and public texts for prompts."""
        start = time.perf_counter()
        make_model(self.arguments.shape, self.model, self.device)
        self.tokenizer = load_tokenizer(self.model, "--shape")
        self.pool = self.texts(2000)
        seconds = time.perf_counter() - start
        self.report.add("model", f"made or found in {seconds:.1f} s", seconds=seconds)

    def texts(self, count: int) -> list[str]:
        """Random ones of EXAMPLE tokens."""
        return random_texts(self.arguments.shape, count, EXAMPLE, self.rng)

    def prompts(self, count: int) -> list[str]:
        """POPri's: a list of three samples that goes on."""
        return [prompt.text for prompt in ExamplePrompts(self.pool).draw(count, self.rng)]

    def tokens(self, texts: list[str]) -> int:
        """Of the texts, as the tokenizer counts them."""
        found = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return sum(map(len, found))

    def memory(self) -> str:
        """Of the whole GPU now and of this process at most since the last look."""
        if not self.device.startswith("cuda"):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            return f"peak of this process {peak:.1f} GB"
        import torch

        free, total = torch.cuda.mem_get_info()
        peak = torch.cuda.max_memory_reserved() / 1e9
        torch.cuda.reset_peak_memory_stats()
        return f"GPU in use {(total - free) / 1e9:.1f} GB, peak of this process {peak:.1f} GB"

    def open(self, model: Path) -> HuggingFaceGenerator | VllmGenerator:
        """An engine with `model`; a vLLM server starts at its first request."""
        a = self.arguments
        if a.backend == "huggingface":
            return HuggingFaceGenerator(
                model, max_tokens=a.max_tokens, batch_size=a.batch_size, device=self.device,
                progress=False,
            )  # fmt: skip
        server = VllmServer(
            model, log=a.work / "vllm.log", python=a.python, lora_rank=RANK,
            arguments=a.vllm_arguments,
        )  # fmt: skip
        return VllmGenerator(
            server, max_tokens=a.max_tokens, concurrency=a.concurrency, timeout=600, progress=False
        )

    def generator(self) -> HuggingFaceGenerator | VllmGenerator:
        """The engine of the round, awake."""
        if self._generator is None:
            seconds, self._generator = self.loaded(self.model)
            text = f"{self.arguments.backend} ready for its first token in {seconds:.1f} s"
            self.report.add("engine", f"{text}; {self.memory()}", seconds=seconds)
        return self._generator

    def loaded(self, model: Path) -> tuple[float, HuggingFaceGenerator | VllmGenerator]:
        """Seconds until the first token of an engine with `model`, and the engine."""
        start = time.perf_counter()
        generator = self.open(model)
        self.first_token(generator)
        return time.perf_counter() - start, generator

    def first_token(self, generator: HuggingFaceGenerator | VllmGenerator) -> None:
        """One token after one prompt."""
        most, generator.max_tokens = generator.max_tokens, 1
        try:
            generator.complete(self.prompts(1), 1, self.rng)
        finally:
            generator.max_tokens = most

    def hashed(self) -> None:
        """The base's files, by which its adapters name it: once a run, so outside what is timed."""
        if "base" in self.report.values:
            return
        start = time.perf_counter()
        folder_fingerprint(self.model)
        seconds = time.perf_counter() - start
        self.report.add("base", f"files hashed in {seconds:.1f} s, once a run", identity=seconds)

    def close(self) -> None:
        """End the engine, if there is one."""
        if self._generator is not None:
            self._generator.close()
            self._generator = None

    def _complete(self, phase: str, prompts: list[str], copies: int, whole: int) -> None:
        """Time `copies` completions of each prompt; what `whole` completions would take."""
        generator = self.generator()
        start = time.perf_counter()
        found = generator.complete(prompts, copies, self.rng)
        seconds = time.perf_counter() - start
        texts = [text for row in found for text in row]
        new, read = self.tokens(texts), self.tokens(prompts)
        self.report.add(
            phase,
            f"{len(prompts)} prompts of {read / len(prompts):.0f} tokens x {copies} completions of "
            f"{new / len(texts):.1f} in {seconds:.1f} s: {new / seconds:.0f} tokens/s, "
            f"{len(texts) / seconds:.1f} completions/s; {self.memory()}",
            seconds=seconds, completions=len(texts), new_tokens=new, prompt_tokens=read,
            tokens_per_second=new / seconds,
        )  # fmt: skip
        if len(texts) != whole:
            scaled = seconds * whole / len(texts)
            self.report.add(
                phase, f"extrapolated, not measured: {whole} in {scaled:.0f} s",
                extrapolated_seconds=scaled,
            )  # fmt: skip

    def generation(self) -> None:
        """The responses of a round."""
        a = self.arguments
        self._complete("generation", self.prompts(a.prompts), a.completions, PROMPTS * RESPONSES)

    def expansion(self) -> None:
        """PrE-Text's: one completion of every prompt."""
        self._complete("expansion", self.prompts(self.arguments.texts), 1, TEXTS)

    def dpo(self) -> None:
        """Pairs of random texts -> an adapter, with the seconds of each part."""
        from privsyn_flower.text.preference import fit

        if self._generator is not None:
            self._generator.rest()
        prompts = self.prompts(self.arguments.steps * BATCH)
        better, worse = self.texts(len(prompts)), self.texts(len(prompts))
        pairs = [
            {"prompt": prompt, "chosen": chosen, "rejected": rejected}
            for prompt, chosen, rejected in zip(prompts, better, worse, strict=True)
        ]
        marks: list[float] = []

        def mark(stage: str, done: float, total: float, note: str = "") -> None:
            marks.append(time.perf_counter())

        trainer = PreferenceTrainer(
            self.model, epochs=1, batch_size=BATCH, lora_rank=RANK, lora_alpha=ALPHA,
            micro_batch_size=self.arguments.micro_batch, device=self.device, progress=mark,
        )  # fmt: skip
        work = self.adapter.parent
        shutil.rmtree(work, ignore_errors=True)
        self.hashed()
        start = time.perf_counter()
        with stopwatch(fit, "load_model", "_with_reference") as spent:
            trainer.train(pairs, start=None, work=work, seed=0)
        self._tell_dpo(pairs, marks, spent, time.perf_counter() - start)

    def _tell_dpo(
        self,
        pairs: list[dict[str, str]],
        marks: list[float],
        spent: dict[str, float],
        seconds: float,
    ) -> None:
        rows = encode_pairs(pairs, self.tokenizer, context=1 << 30, ending=EXPAND_ENDING)
        tokens = sum(
            2 * len(r["prompt_ids"]) + len(r["chosen_ids"]) + len(r["rejected_ids"]) for r in rows
        )
        steps = np.diff(marks)
        step = statistics.median(steps.tolist()) if len(steps) else float("nan")
        reference = spent["_with_reference"]
        self.report.add(
            "dpo",
            f"{len(pairs)} pairs of {tokens / len(pairs):.0f} tokens: base loaded in "
            f"{spent['load_model']:.1f} s, reference log-probabilities in {reference:.1f} s, "
            f"{len(marks)} steps of {step:.2f} s ({1 / step:.3f} steps/s, "
            f"{tokens / len(marks) / step:.0f} tokens/s); {seconds:.1f} s in all; {self.memory()}",
            load=spent["load_model"], reference=reference, step=step,
            steps_per_second=1 / step, steps=len(marks), pairs=len(pairs), tokens=tokens,
            seconds=seconds,
        )  # fmt: skip
        whole = EPOCHS * PAIRS // BATCH
        scaled = spent["load_model"] + reference * PAIRS / len(pairs) + whole * step
        self.report.add(
            "dpo", f"extrapolated, not measured: a round's {PAIRS} pairs and {whole} steps in "
            f"{scaled:.0f} s", extrapolated_seconds=scaled,
        )  # fmt: skip

    def handover(self) -> None:
        """rest -> (training) -> adapter on -> first token."""
        self.hashed()
        generator = self.generator()
        self.first_token(generator)  # awake: since dpo it may rest
        start = time.perf_counter()
        generator.rest()
        rested = time.perf_counter() - start
        resting = self.memory()
        start = time.perf_counter()
        generator.use_adapter(self.adapter)
        self.first_token(generator)
        back = time.perf_counter() - start
        self.ours = rested + back
        self.report.add(
            "handover", f"to rest {rested:.2f} s ({resting}); adapter on, first token "
            f"{back:.2f} s; together {self.ours:.2f} s",
            rest=rested, back=back, seconds=self.ours,
        )  # fmt: skip

    def reference(self) -> None:
        """Two engines loaded, and between them the adapter merged into the base on disk."""
        self.close()
        first, generator = self.loaded(self.model)
        generator.close()
        del generator
        self.report.add("reference", f"first engine {first:.1f} s", first=first)
        start = time.perf_counter()
        merged = self._merge()
        merging = time.perf_counter() - start
        self.report.add("reference", f"merged and written in {merging:.1f} s", merge=merging)
        second, generator = self.loaded(merged)
        generator.close()
        shutil.rmtree(merged)
        whole = first + merging + second
        self.report.add(
            "reference", f"second engine {second:.1f} s; together {whole:.1f} s",
            second=second, seconds=whole,
        )  # fmt: skip
        if hasattr(self, "ours"):
            ratio = whole / self.ours
            self.report.add(
                "reference", f"{ratio:.1f} times the hand-over (goal: at least {GOAL})",
                ratio=ratio,
            )  # fmt: skip

    def _merge(self) -> Path:
        """Base and adapter -> one model on disk."""
        from peft import PeftModel

        target = self.model.with_name(f"{self.model.name}-merged")
        base = load_model("AutoModelForCausalLM", self.model, "--shape", self.device, "auto")
        adapted: Any = PeftModel.from_pretrained(base, str(self.adapter))
        adapted.merge_and_unload().save_pretrained(target, max_shard_size="4GB")
        self.tokenizer.save_pretrained(target)
        del base, adapted
        empty_cache(self.device)
        return target


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line; what cannot work ends here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--backend", choices=("huggingface", "vllm"), default="huggingface")
    parser.add_argument("--only", default=",".join(PHASES), help="phases, with commas between")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--completions", type=int, default=RESPONSES)
    parser.add_argument("--texts", type=int, default=20_000, help="of expansion")
    parser.add_argument("--max-tokens", type=int, default=85)
    parser.add_argument("--batch-size", type=int, default=640, help="huggingface: side by side")
    parser.add_argument("--steps", type=int, default=20, help="of DPO, 24 pairs each")
    parser.add_argument("--micro-batch", type=int, default=8, help="pairs in memory at once")
    parser.add_argument("--concurrency", type=int, default=64, help="vllm: requests at once")
    parser.add_argument("--python", type=Path, default=None, help="of vLLM's environment")
    parser.add_argument("--vllm-arguments", default="--max-model-len 1024")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, default=None, help="default: one that is removed")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args(words)
    arguments.only = [phase for phase in PHASES if phase in arguments.only.split(",")]
    _check(parser, arguments)
    return arguments


def _check(parser: argparse.ArgumentParser, a: argparse.Namespace) -> None:
    counts = ("prompts", "completions", "texts", "max_tokens", "batch_size", "micro_batch")
    for name, least in {**dict.fromkeys(counts, 1), "steps": 2, "concurrency": 1}.items():
        if getattr(a, name) < least:
            flag = name.replace("_", "-")
            parser.error(f"--{flag} = {getattr(a, name)}: must be at least {least}")
    if not a.only:
        parser.error(f"--only names no phase: {', '.join(PHASES)}")
    if a.backend == "vllm" and not (a.python or default_python()).is_file():
        parser.error("--python: no such interpreter; `make vllm` makes an environment with vLLM")
    there = a.work is not None and (a.work / "dpo" / "epoch-1").is_dir()
    if {"handover", "reference"} & set(a.only) and not (there or "dpo" in a.only):
        parser.error("handover and reference need dpo's adapter: add dpo, or its --work")
    folder = a.work or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = 2.2 * 2 * parameters(a.shape), shutil.disk_usage(folder).free
    if needed > free:
        parser.error(f"--work: {needed / 1e9:.0f} GB are needed, {free / 1e9:.0f} GB are free")


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse(words)
    import torch
    import transformers

    device = resolve_device(arguments.device)
    with tempfile.TemporaryDirectory() as scratch:
        arguments.work = arguments.work or Path(scratch)
        report = Report(
            arguments.json, shape=arguments.shape, parameters=parameters(arguments.shape),
            backend=arguments.backend, torch=torch.__version__,
            device=torch.cuda.get_device_name() if device.startswith("cuda") else device,
            transformers=transformers.__version__,
        )  # fmt: skip
        bench = Bench(arguments, report, device)
        try:
            bench.prepare()
            for phase in arguments.only:
                getattr(bench, phase)()
        finally:
            bench.close()


if __name__ == "__main__":
    main()
