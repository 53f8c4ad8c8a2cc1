"""The run's models, each loaded when first used."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from privsyn_flower.common.progress import Progress
from privsyn_flower.config import ConfigError, RunConfig, cache_folder, split_list
from privsyn_flower.config.evolution import LABEL
from privsyn_flower.data import cached_embeddings
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.public_text import PublicText
from privsyn_flower.text import AdaptableGenerator, Embedder, Variation, load_embedder
from privsyn_flower.text.embedders import KnownRows
from privsyn_flower.text.models.gguf import import_model, packaged
from privsyn_flower.text.models.pretrained import (
    ModelUnavailableError,
    count_parameters,
    hub_snapshot,
    local_folder,
)
from privsyn_flower.text.protocols import Sampling
from privsyn_flower.text.tiny.assets import embedded


class Models:
    """The models of one run; embedded tiny ones are trained if they are not there.

    folder: where a vLLM server of the run keeps its log. retrieves: whether texts are compared with
    the whole public pool.
    """

    def __init__(
        self,
        config: RunConfig,
        public: PublicText,
        folder: RunFolder,
        progress: Progress,
        *,
        retrieves: bool = False,
    ) -> None:
        self.config, self.retrieves = config, retrieves
        self.public = public
        self.run_folder = folder
        self.progress = progress
        self.cache = cache_folder(config)
        self._embedder: Embedder | None = None
        self._generator: AdaptableGenerator | None = None

    def folder(self, kind: str) -> str:
        """Name or folder of a kind of model, the embedder aside."""
        name: str = getattr(self.config.models, kind)
        model, made = packaged(kind, name), embedded(kind, name) is not None
        if model is not None and kind != "conditional":
            return str(self._imported(kind, name))
        if model is None and not made and (kind, name) != ("downstream", "lstm"):
            return name
        from privsyn_flower.text.tiny.models import ensure_model, teach_conditions

        if self.public.federation is None:
            raise ConfigError(
                f"models.{kind} = {name!r} is made of the simulated federation's public text; "
                "in deployment name a folder or a Hugging Face model"
            )
        given = (self.public.federation, self.config, self.progress)
        if model is None:
            return str(ensure_model(kind, *given))
        return str(teach_conditions(model, self._imported(kind, name), *given))

    def _imported(self, kind: str, name: str) -> Path:
        return import_model(name, self.cache, f"models.{kind} = {name!r}", self.progress)

    def embedder(self) -> Embedder:
        """For public text: the pool's rows come from the cache on disk, others are remembered."""
        if self._embedder is None:
            models = self.config.models
            embedder = load_embedder(models.embedder, models.device, self.progress)
            # Only retrieval compares with the whole pool; anything else would embed it in vain.
            pool = self.public.pool if self.retrieves else []
            rows = cached_embeddings(
                self.cache / "public", embedder.fingerprint, pool, embedder.embed
            )
            self._embedder = KnownRows(embedder, pool, rows)
        return self._embedder

    def infiller(self) -> Variation | dict[str, Variation]:
        """Variation: mask-fill (PrE-Text), public neighbours, some of each, or by the generator; by
        class where its instruction names the class."""
        options = self.config.evolution
        kind = options.variation
        if kind == "mask-fill":
            return self._mask_fill()
        if kind == "retrieval":
            return self._retrieval()
        if options.written_by_generator:
            return self._rewriting()
        from privsyn_flower.text.variation import Mixed

        return Mixed(self._retrieval(), self._mask_fill(), options.retrieval_share)

    def _rewriting(self) -> Variation | dict[str, Variation]:
        from privsyn_flower.text.variation import Continue, Rewrite

        options, words = self.config.evolution, self.config.data.sample_words
        lengths = {"min_words": self.config.expand.min_words, "max_words": words}
        if options.variation == "continue":
            return Continue(self.generator(), **lengths)
        told, styles = options.rewrite, split_list(options.styles)
        if LABEL not in told:
            return Rewrite(self.generator(), told, styles, **lengths)
        return {
            name: Rewrite(self.generator(), told.replace(LABEL, name), styles, **lengths)
            for name in split_list(options.labels)
        }

    def _mask_fill(self) -> Variation:
        from privsyn_flower.text.variation import MaskFill

        options = self.config.evolution
        return MaskFill(
            self.folder("infiller"),
            mask_fraction=options.mask_fraction,
            steps=options.mask_steps,
            passes=options.mask_passes,
            temperature=options.temperature,
            top_p=options.top_p,
            max_tokens=options.max_tokens,
            device=self.config.models.device,
            progress=self.progress,
            table=options.table,
        )

    def _retrieval(self) -> Variation:
        from privsyn_flower.text.variation import Retrieval

        embedder, pool = self.embedder(), self.public.pool
        options = self.config.evolution
        rows, neighbors = embedder.embed(pool), options.retrieval_neighbors
        return Retrieval(pool, rows, embedder, neighbors, options.table)

    def generator(self) -> AdaptableGenerator:
        """The causal LM where `generation.backend` says: one engine for the whole run."""
        if self._generator is None:
            self._generator = self._make_generator()
        return self._generator

    def _make_generator(self) -> AdaptableGenerator:
        from privsyn_flower.text.opening import open_generator

        expand, name = self.config.expand, self.config.models.generator
        theirs = self.config.generation.base_url and packaged("generator", name)
        return open_generator(
            name if theirs else self.folder("generator"),
            self.config.generation,
            Sampling(expand.max_tokens, expand.temperature, expand.top_p, expand.top_k),
            log=self.run_folder.path / "vllm.log",
            batch_size=expand.batch_size,
            device=self.config.models.device,
            lora_rank=self.config.lora_rank,
            seed=self.config.seed,
            progress=self.progress,
        )

    def described(self, kind: str) -> dict[str, Any]:
        """{"model": its name, "parameters": how many, None where no file here tells it}."""
        name: str = getattr(self.config.models, kind)
        found = {"model": name, "parameters": None}
        if kind == "generator" and self.config.generation.base_url:
            return found
        try:
            folder = self.folder(kind)
            place = local_folder(folder, f"models.{kind}") or hub_snapshot(folder)
            return found | {"parameters": (count_parameters(place) or None) if place else None}
        except (OSError, ValueError, KeyError, struct.error, ModelUnavailableError):
            return found

    def rest_until_expansion(self) -> None:
        """Let a vLLM server of the run's own, which takes most of a GPU, sleep while the rounds do
        not use it. A model in this process stays: it would be read twice."""
        where = self.config.generation
        own = where.backend == "vllm" and not where.base_url
        if self._generator is not None and own and not self.config.evolution.written_by_generator:
            self._generator.rest()

    def close(self) -> None:
        """End what was started; safe to call twice."""
        if self._generator is not None:
            self._generator.close()
