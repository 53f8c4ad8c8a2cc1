"""`[models]`, `[generation]`, `[expand]`: which models, where they run, how text is made."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from privsyn_flower.config.section import Section, split_list


class ModelsConfig(Section):
    """`[models]`: an embedded model (tiny, small), one of a package, a local folder, or a Hugging
    Face name."""

    kinds: ClassVar[tuple[str, ...]] = (
        "embedder",
        "infiller",
        "generator",
        "conditional",
        "downstream",
    )

    embedder: str = Field(
        "minilm", description="minilm, minilm-int8, ngram-DIM, a folder, or a hub name"
    )
    infiller: str = Field("tiny", description="masked LM: tiny, small, a folder, or a hub name")
    generator: str = Field(
        "tiny", description="causal LM: tiny, small, smollm2 (extra demo), a folder, or a hub name"
    )
    conditional: str = Field(
        "tiny",
        description="CTCL's generator, which writes from keywords: tiny, small, smollm2 "
        "(extra demo; tuned on public text first), a folder, or a hub name of a causal or an "
        "encoder-decoder model",
    )
    downstream: str = Field(
        "tiny",
        description="model that is fine-tuned or trained: tiny, "
        "lstm (the keyboard's, over words), smollm2 (extra demo), a folder, or a hub name",
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0, mps")
    training_processes: int = Field(
        1, ge=1, description="processes that train the generator on pairs (popri, sft), each on a "
        "GPU of its own; above 1: by accelerate launch"
    )  # fmt: skip
    accelerate_arguments: str = Field(
        "", description="more arguments of accelerate launch, such as --gpu_ids 4,5"
    )
    train_seconds: float = Field(
        240.0, gt=0, description="time budget to tune or train one tiny model"
    )
    train_steps: int = Field(
        0, ge=0, description="most steps to tune or train a tiny model; 0: the recipe's"
    )
    lstm_words: int = Field(
        30_000, ge=5, description="lstm: most words of its vocabulary, four special ones included"
    )
    lstm_hidden: int = Field(670, ge=1, description="lstm: cells of its layer")
    lstm_embedding: int = Field(
        96, ge=1, description="lstm: numbers of a word's embedding, and of the projection"
    )
    lstm_word_list: str = Field(
        "", description="lstm: a file of its words, one a line, kept in their order; empty: public "
        "text's most frequent"
    )  # fmt: skip
    lstm_batch_texts: int = Field(
        0, ge=0, description="lstm: texts in one step of its training on public text; 0: as many "
        "as lstm-batch-words hold"
    )  # fmt: skip
    lstm_batch_words: int = Field(
        2048, ge=1, description="lstm: padded words that go through it at once: a step, or with "
        "lstm-batch-texts a part of one"
    )  # fmt: skip

    lstm_learning_rate: float = Field(
        1e-3, gt=0, description="lstm: Adam's, of its training on public text; Gboard, App. C.1: "
        "of 1e-4, 1e-3 and 1e-2"
    )  # fmt: skip
    lstm_adam_epsilon: float = Field(
        1e-9, gt=0, description="lstm: added to the root in Adam; App. C.1: of 1e-7, 1e-8 and 1e-9"
    )

    def check_shared(self, key: str, batch_size: int) -> None:
        """Raise ValueError where the processes cannot share an optimiser step's pairs evenly."""
        if batch_size % self.training_processes:
            raise ValueError(
                f"{key} = {batch_size}: must be a multiple of models.training-processes = "
                f"{self.training_processes}, which share it"
            )


OPTIONAL = ("n", "seed", "temperature", "top_p", "top_k", "stop")  # of a request to a server


class GenerationConfig(Section):
    """`[generation]`: where the causal LM of `models.generator` runs."""

    backend: Literal["huggingface", "vllm", "openai"] = Field(
        "huggingface", description="in this process, a vLLM server, or any OpenAI-compatible one"
    )
    chat: bool = Field(
        False, description="prompts as a user's turn: the model's chat template, or a server's "
        "/v1/chat/completions; for models that were taught to follow instructions"
    )  # fmt: skip
    thinking_tag: str = Field(
        "think", pattern=r"^[\w-]*$", description="what a reasoning model writes between <think> "
        "and </think> is left out of its texts, and a text that ends within is none; empty: it "
        "stays"
    )  # fmt: skip
    token_parameter: Literal["max-tokens", "max-completion-tokens"] = Field(
        "max-tokens", description="what the server calls the most tokens of a completion, with _"
    )
    leave_out: str = Field(
        "", description="parameters of a request that the server refuses, separated by commas: "
        + ", ".join(OPTIONAL)
    )  # fmt: skip
    base_url: str = Field(
        "", description="of a running server, or of several of one model, separated by commas; "
        "empty: vllm is started by the run"
    )  # fmt: skip
    api_key_env: str = Field("OPENAI_API_KEY", description="environment variable of the API key")
    vllm_python: str = Field(
        "", description="python of vLLM's own environment; empty: .venv-vllm/bin/python"
    )
    vllm_arguments: str = Field("", description="more arguments of the vLLM server")
    vllm_replicas: int = Field(
        1, ge=1, description="vLLM servers that the run starts, which share the requests, each on "
        "GPUs of its own"
    )  # fmt: skip
    vllm_tensor_parallel: int = Field(
        1, ge=1, description="GPUs that the model of one vLLM server is split over"
    )
    concurrency: int = Field(16, ge=1, description="requests under way at once, at each server")
    timeout: float = Field(300.0, gt=0, description="seconds for one request")
    retries: int = Field(4, ge=0, description="of a request that failed for a passing reason")
    start_timeout: float = Field(900.0, gt=0, description="seconds for a vLLM server to start")

    @property
    def addresses(self) -> list[str]:
        """Of running servers; none: there is no server, or the run starts it."""
        return split_list(self.base_url)

    @property
    def gpus(self) -> list[range | None]:
        """For each vLLM server that the run starts, the places of its GPUs among the visible ones.

        None: the only server, which takes the first.
        """
        each, count = self.vllm_tensor_parallel, self.vllm_replicas
        if each == count == 1:
            return [None]
        return [range(at * each, (at + 1) * each) for at in range(count)]

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        if unknown := set(split_list(self.leave_out)) - set(OPTIONAL):
            raise ValueError(
                f"generation.leave-out = {self.leave_out!r}: {', '.join(sorted(unknown))} is none "
                f"of {', '.join(OPTIONAL)}"
            )
        ours = self.backend == "vllm" and not self.base_url
        if not ours and self.vllm_replicas * self.vllm_tensor_parallel > 1:
            raise ValueError(
                f"generation.vllm-replicas = {self.vllm_replicas} and vllm-tensor-parallel = "
                f"{self.vllm_tensor_parallel} are of servers that the run starts: set "
                "generation.backend = 'vllm' and base-url = '', or name several servers in base-url"
            )
        return self


class ExpandConfig(Section):
    """`[expand]`: prompts -> synthetic text by a causal LM (PrE-Text, section 3 (6))."""

    samples: int = Field(
        -1, ge=-1, description="synthetic texts to make; 0: seeds only; -1: 2000, by smollm2 500, "
        "or seeds only where the tiny generator, which knows English docstrings, would write from "
        "your own text"
    )  # fmt: skip
    seeds_per_prompt: int = Field(3, ge=1, description="seeds shown in one prompt")
    include_seeds: bool | Literal["auto"] = Field(
        "auto", description="put the seeds into the output, before what is written; auto: for the "
        "seeds that votes pick (pretext, pe) of your own text (files, hub:NAME)"
    )  # fmt: skip
    temperature: float = Field(1.0, gt=0, description="of the causal LM")
    top_p: float = Field(1.0, gt=0, le=1, description="of the causal LM")
    top_k: int = Field(
        0, ge=0, description="likeliest tokens that the causal LM draws from; 0: all, and hosted "
        "services may know nothing else"
    )  # fmt: skip
    max_tokens: int = Field(85, ge=8, description="new tokens per completion")
    min_words: int = Field(4, ge=1, description="shorter completions are dropped")
    batch_size: int = Field(64, ge=1, description="completions generated side by side")

    @field_validator("include_seeds", mode="before")
    @classmethod
    def _true_or_false(cls, value: Any) -> Any:
        """The words, too: `--set` takes the key for text, as its default is."""
        found = {"true": True, "false": False}.get(str(value).lower(), value)
        if not isinstance(found, bool) and found != "auto":
            raise ValueError("must be true, false or auto")
        return found

    @property
    def releases_seeds(self) -> bool:
        """Whether the seeds are in the result: before what is written, or alone."""
        return self.include_seeds is True or not self.samples
