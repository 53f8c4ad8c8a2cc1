"""The tables of the run configuration (`config/schema.py`): typed, bounded and explained keys."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from privsyn_flower.config.base import Section


class DataConfig(Section):
    """`[data]`: who the users are, what they hold, and what text is public."""

    source: str = Field("docstrings", description="docstrings, files, or hub:NAME")
    path: str = Field("", description="files: jsonl, csv or parquet with the private users' text")
    public_path: str = Field("", description="files/hub: the public text (file, or hub:NAME)")
    private_packages: str = Field(
        "scipy,scikit-learn,pandas", description="docstrings: packages whose modules are users"
    )
    public_packages: str = Field(
        "stdlib,transformers,torch,ray,sqlalchemy,sympy",
        description="docstrings: the general public packages",
    )
    minority_packages: str = Field(
        "numpy", description="docstrings: public packages close to the private domain"
    )
    minority_share: float = Field(
        0.05, ge=0, le=1, description="docstrings: share of the public pool taken from them"
    )
    users: int = Field(1000, ge=1, description="declared number of private users (public)")
    samples_per_user: int = Field(8, ge=1, description="cap on one user's samples")
    min_samples_per_user: int = Field(
        1, ge=1, description="users with fewer are not enrolled; above 1 only with benchmark = true"
    )
    sections_per_module: int = Field(
        4, ge=1, description="docstrings: users made of one module, of consecutive samples each"
    )
    partition: Literal["natural", "uniform", "date"] = Field(
        "natural", description="natural: by user column; uniform: PrE-Text's random partition; "
        "date: by user column, the newest users held out (only with benchmark = true)"
    )  # fmt: skip
    near_duplicates: Literal["own", "remove", "keep"] = Field(
        "own", description="texts that share 13 words in a row: own: a user keeps the first of "
        "theirs, and so does the public text; remove: nobody shares any with anyone (only with "
        "benchmark = true); keep: all stay"
    )  # fmt: skip
    held_out_users: int = Field(150, ge=0, description="test users, read by final runs only")
    development_users: int = Field(
        100, ge=0, description="users for tuning, and for popri.checkpoint = private"
    )
    public_pool: int = Field(8192, ge=1, description="public texts kept as the pool")
    public_validation: int = Field(
        512, ge=0, description="public texts to choose a rate by, or compare with"
    )
    sample_words: int = Field(45, ge=4, description="words of a sample, candidate or response")
    chunk: bool = Field(
        False, description="files/hub: cut a text into consecutive samples of sample-words words"
    )
    user_column: str = Field(
        "user_id", description="files/hub: column of the user's id; empty: every row is a user"
    )
    text_column: str = Field("text", description="files/hub: column of the text")
    public_text_column: str = Field(
        "", description="files/hub: column of the public text; empty: text-column"
    )
    label_column: str = Field("", description="files/hub: column of a label; empty: none")
    date_column: str = Field("", description="files/hub: column of a date; empty: none")
    date_from: str = Field("", description="first date kept, YYYY-MM-DD")
    date_to: str = Field("", description="last date kept, YYYY-MM-DD")
    seed: int = Field(0, ge=0, description="seed of the split")

    @property
    def chosen_by_text(self) -> str:
        """The keys that make one user's text decide about another's or about the public text."""
        keys = {
            "data.near-duplicates = 'remove'": self.near_duplicates == "remove",
            "data.partition = 'date'": self.partition == "date",
            f"data.min-samples-per-user = {self.min_samples_per_user}": (
                self.min_samples_per_user > 1
            ),
        }
        return ", ".join(key for key, used in keys.items() if used)


class ModelsConfig(Section):
    """`[models]`: an embedded tiny model (tiny), a local folder, or a Hugging Face name."""

    embedder: str = Field("minilm", description="minilm, ngram-DIM, a folder, or a hub name")
    infiller: str = Field("tiny", description="masked LM: tiny, a folder, or a hub name")
    generator: str = Field("tiny", description="causal LM: tiny, a folder, or a hub name")
    downstream: str = Field(
        "tiny",
        description="model that is fine-tuned or trained: tiny, "
        "lstm (the keyboard's, over words), a folder, or a hub name",
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0, mps")
    train_seconds: float = Field(240.0, gt=0, description="time budget to train one tiny model")
    train_steps: int = Field(0, ge=0, description="steps for a tiny model; 0: the recipe's")


class PreTextConfig(Section):
    """`[pretext]`: PrE-Text, Algorithms 1 and 2 of the paper."""

    population: int = Field(256, ge=2, description="N_syn: candidates in a round")
    lookahead: int = Field(
        2, ge=1, description="K: variations averaged per candidate; 1: the candidate itself"
    )
    clip: Literal["normalised", "worst-case", "sqrt-count"] = Field(
        "normalised", description="how one user's votes are bounded"
    )
    vote_bound: float = Field(1.0, gt=0, description="L2 bound of one user's votes")
    neighbors: int = Field(1, ge=1, description="candidates one sample votes for")
    metric: Literal["l2", "cosine", "ip"] = Field("l2", description="what nearest means")
    threshold: float = Field(1.0, ge=0, description="H: taken off every candidate's votes")
    threshold_unit: Literal["noise-std", "votes"] = Field(
        "noise-std", description="unit of H: std of the released noise, or votes (the paper)"
    )
    variation: Literal["mask-fill", "retrieval", "mixed"] = Field(
        "mask-fill", description="how survivors are varied"
    )
    retrieval_share: float = Field(0.5, ge=0, le=1, description="mixed: share retrieved")
    retrieval_neighbors: int = Field(16, ge=1, description="public neighbours to draw from")
    mask_fraction: float = Field(0.3, gt=0, lt=1, description="MASK%")
    mask_steps: int = Field(2, ge=1, description="W_steps")
    temperature: float = Field(1.0, gt=0, description="of the mask-fill")
    top_p: float = Field(1.0, gt=0, le=1, description="of the mask-fill")
    max_tokens: int = Field(64, ge=8, description="length of a candidate in tokens")


class PopriConfig(Section):
    """`[popri]`: POPri, Algorithms 1 to 5 of the paper. Sampling of responses is `[expand]`'s."""

    prompts: int = Field(128, ge=1, description="K: prompts in a round")
    responses: int = Field(8, ge=2, description="J: responses to one prompt")
    examples: int = Field(3, ge=0, description="public texts in one prompt; 0: the instruction")
    instruction: str = Field("", description="the prompt when examples = 0; {label}: the class")
    labels: str = Field("", description="public class list; empty: not class-conditional")
    score: Literal["standardised", "centred", "mean-cosine", "nearest"] = Field(
        "standardised", description="a user's answer: z-scored (the paper's code), centred by "
        "prompt, mean cosine (the paper), or nearest-neighbour votes (its ablation)"
    )  # fmt: skip
    score_bound: float = Field(1.0, gt=0, description="L2 bound of one user's scores")
    dimension: int = Field(
        0, ge=0, description="dimension sent to users, by a public projection; 0: the embedder's"
    )
    rejected_rank: int = Field(5, ge=2, description="rank of the rejected response; 1 is chosen")
    training: Literal["dpo", "sft"] = Field("dpo", description="DPO, or SFT on the best (PE+SFT)")
    beta: float = Field(0.01, gt=0, description="DPO: strength of the reference")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="above 0: conservative DPO")
    learning_rate: float = Field(5e-7, gt=0, description="AdamW's peak; a cosine within a round")
    epochs: int = Field(2, ge=1, description="passes over a round's pairs")
    batch_size: int = Field(24, ge=1, description="pairs of one optimiser step")
    micro_batch_size: int = Field(8, ge=1, description="pairs in memory at once")
    lora_rank: int = Field(4, ge=1, description="of the adapter, on all projections")
    lora_alpha: float = Field(8.0, gt=0, description="its scale is alpha / rank")
    checkpoint: Literal["last", "public", "private"] = Field(
        "last", description="epoch kept: the last, or by Frechet distance to public validation "
        "text, or to private text (the paper; benchmark only, outside epsilon)"
    )  # fmt: skip
    select: Literal["last", "public", "federated"] = Field(
        "last", description="round whose generator writes the result: the last, by public "
        "validation text, or by a paid evaluation on the nodes"
    )  # fmt: skip
    select_samples: int = Field(400, ge=16, description="texts made to compare checkpoints")

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        if self.rejected_rank > self.responses:
            raise ValueError(
                f"popri.rejected-rank = {self.rejected_rank} is above popri.responses = "
                f"{self.responses}: lower the one or raise the other"
            )
        if self.score == "nearest" and (self.labels or self.dimension):
            raise ValueError("popri.score = 'nearest' takes neither popri.labels nor dimension")
        if not self.examples and not self.instruction:
            raise ValueError("popri.examples = 0 needs popri.instruction, the prompt itself")
        return self


class TrainingConfig(Section):
    """`[training]`: DP-FedAvg and DP-FTRL, training of `models.downstream` on the nodes."""

    parameters: Literal["full", "lora", "layers"] = Field(
        "full", description="what is trained: all, low-rank factors, or the named layers"
    )
    layers: str = Field("", description="layers: patterns of parameter names, as in *.mlp.*")
    lora_rank: int = Field(8, ge=1, description="lora: rank of the factors, on all projections")
    lora_factors: Literal["both", "up"] = Field(
        "both", description="lora: both factors, or up alone over fixed public down (FFA-LoRA)"
    )
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="of a user's local steps")
    learning_rate: float = Field(0.1, gt=0, description="of a user's local steps")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum of the local steps")
    weight_decay: float = Field(0.0, ge=0, description="of the local steps")
    epochs: int = Field(1, ge=1, description="passes over a user's texts in one round")
    batch_size: int = Field(4, ge=1, description="texts of one local step")
    max_steps: int = Field(
        0, ge=0, description="most local steps of a user in a round; 0: those that "
        "data.samples-per-user texts take"
    )  # fmt: skip
    clip_norm: float = Field(1.0, gt=0, description="L2 bound of one user's update, all layers")
    adaptive_clipping: bool = Field(
        False, description="the bound follows a quantile of the norms (Andrew et al. 2021)"
    )
    target_quantile: float = Field(0.5, gt=0, lt=1, description="adaptive: share within the bound")
    clip_learning_rate: float = Field(
        0.2, gt=0, description="adaptive: geometric step of the bound"
    )
    server_optimizer: Literal["fedavg", "fedavgm", "fedadam", "fedyogi"] = Field(
        "fedavg", description="what the server does with the noisy mean update"
    )
    server_learning_rate: float = Field(1.0, gt=0, description="of the server's step")
    server_momentum: float = Field(0.9, ge=0, lt=1, description="fedavgm, fedadam, fedyogi")
    beta_2: float = Field(0.99, ge=0, lt=1, description="fedadam, fedyogi: of the second moment")
    tau: float = Field(1e-3, gt=0, description="fedadam, fedyogi: added to its root")
    noise: Literal["nodes", "aggregator"] = Field(
        "nodes", description="who adds it: nodes (the server learns noisy sums only), or an "
        "aggregator that is trusted with the sums"
    )  # fmt: skip
    public_steps: int = Field(
        0, ge=0, description="fine-tuning on public text before round 1; 0: none"
    )
    evaluate: bool = Field(
        False, description="one paid evaluation on the nodes: the final model against the start"
    )

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        if (self.parameters == "layers") != bool(self.layers.strip(", ")):
            raise ValueError(
                f"training.layers = {self.layers!r} with training.parameters = "
                f"{self.parameters!r}: patterns of names belong to 'layers', which needs some"
            )
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f"training.momentum = {self.momentum} belongs to training.optimizer = 'sgd', and "
                f"it is {self.optimizer!r}: set momentum = 0"
            )
        if self.adaptive_clipping and self.noise != "nodes":
            raise ValueError(
                "training.adaptive-clipping = true needs training.noise = 'nodes': the noise of a "
                "trusted aggregator is made for one bound in all rounds"
            )
        return self


class FtrlConfig(Section):
    """`[ftrl]`: DP-FTRL's noise, correlated over the rounds, added by a trusted aggregator."""

    mechanism: Literal[
        "independent", "tree", "tree-honaker", "tree-restart", "banded", "banded-optimised", "blt"
    ] = Field("blt", description="how the noise of the rounds is correlated")
    schedule: Literal["users", "nodes"] = Field(
        "users", description="who takes turns when min-separation is above 1: the users of every "
        "node, or whole nodes"
    )  # fmt: skip
    min_separation: int = Field(
        1, ge=1, description="rounds between two answers of a user, kept by the nodes; above 1 "
        "users take turns: each answers every min-separation rounds"
    )  # fmt: skip
    max_participations: int = Field(
        0, ge=0, description="rounds one user answers at most; 0: as many as fit"
    )
    restart_every: int = Field(0, ge=0, description="tree-restart: rounds of one tree")
    completion: bool = Field(False, description="tree-restart: complete a tree before the next")
    bands: int = Field(
        0, ge=0, description="banded, banded-optimised: rounds that share noise; 0: the "
        "separation, or all rounds where a user answers once"
    )  # fmt: skip
    buffers: int = Field(
        4, ge=1, description="blt: buffers of the noise, each as large as the model"
    )

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        restarts = self.mechanism == "tree-restart"
        if restarts != (self.restart_every > 0) or (self.completion and not restarts):
            raise ValueError(
                f"ftrl.restart-every = {self.restart_every}, ftrl.completion = "
                f"{str(self.completion).lower()}: they belong to ftrl.mechanism = 'tree-restart', "
                f"which needs restart-every, and it is {self.mechanism!r}"
            )
        return self


class GenerationConfig(Section):
    """`[generation]`: where the causal LM of `models.generator` runs."""

    backend: Literal["huggingface", "vllm", "openai"] = Field(
        "huggingface", description="in this process, a vLLM server, or any OpenAI-compatible one"
    )
    base_url: str = Field("", description="of a running server; empty: vllm is started by the run")
    api_key_env: str = Field("OPENAI_API_KEY", description="environment variable of the API key")
    vllm_python: str = Field(
        "", description="python of vLLM's own environment; empty: .venv-vllm/bin/python"
    )
    vllm_arguments: str = Field("", description="more arguments of the vLLM server")
    concurrency: int = Field(16, ge=1, description="requests under way at once")
    timeout: float = Field(300.0, gt=0, description="seconds for one request")
    retries: int = Field(4, ge=0, description="of a request that failed for a passing reason")
    start_timeout: float = Field(900.0, gt=0, description="seconds for a vLLM server to start")


class ExpandConfig(Section):
    """`[expand]`: prompts -> synthetic text by a causal LM (PrE-Text, section 3 (6))."""

    samples: int = Field(2000, ge=0, description="synthetic texts to make; 0: seeds only")
    seeds_per_prompt: int = Field(3, ge=1, description="seeds shown in one prompt")
    include_seeds: bool = Field(False, description="put the seeds themselves into the output")
    temperature: float = Field(1.0, gt=0, description="of the causal LM")
    top_p: float = Field(1.0, gt=0, le=1, description="of the causal LM")
    max_tokens: int = Field(85, ge=8, description="new tokens per completion")
    min_words: int = Field(4, ge=1, description="shorter completions are dropped")
    batch_size: int = Field(64, ge=1, description="completions generated side by side")


class EvaluationConfig(Section):
    """`[evaluation]`: the benchmark (simulation only, with `benchmark = true`)."""

    sequence_length: int = Field(64, ge=8, description="tokens of a training sequence")
    steps: int = Field(200, ge=1, description="optimiser steps of every fine-tuning")
    batch_size: int = Field(32, ge=1, description="sequences of one optimiser step")
    learning_rates: str = Field("1e-4,3e-4,1e-3", description="tried on public validation text")
    bootstrap: int = Field(2000, ge=100, description="resamples of users for the interval")
    on: Literal["test", "development"] = Field("test", description="which held-out users")
    task: Literal["next-token", "classification"] = Field(
        "next-token", description="what the downstream model is fine-tuned for"
    )
    rival: Literal["", "pretext"] = Field(
        "", description="another method at the same epsilon, simulated for comparison"
    )
