"""A simulated node's place in its run: its shard of the federation named in the run config."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context

from privsyn_flower.config import ConfigError, RunConfig, cache_folder, check_paths, flat_defaults
from privsyn_flower.data import Federation, prepare, shard_sizes
from privsyn_flower.protocol.wire import Refusal, WireError

logger = logging.getLogger("flwr")  # the log that Flower shows in every app


@dataclass(frozen=True)
class Shard:
    """The users of one partition: what a simulated node has in place of its own node config."""

    config: RunConfig
    partition: int
    partitions: int

    @classmethod
    def of(cls, context: Context) -> Shard:
        """What Flower's simulation and the run config say. Raises WireError(SETUP)."""
        try:
            partition = int(context.node_config["partition-id"])
            partitions = int(context.node_config["num-partitions"])
        except KeyError as error:
            raise WireError(Refusal.SETUP, f"node-config has no {error}") from None
        known = flat_defaults()  # an app of somebody else's has keys of its own
        own = {key: value for key, value in context.run_config.items() if key in known}
        config = RunConfig.from_flat(own)
        try:
            check_paths(config)
        except ConfigError as error:
            raise WireError(Refusal.SETUP, str(error)) from None
        return cls(config, partition, partitions)

    def tell(self) -> None:
        """Say in Flower's log, once for all nodes, whose text is asked."""
        if self.partition:
            return
        data = self.config.data
        if "source" in data.model_fields_set:
            words = data.path if data.source == "files" else data.source
        else:
            words = (
                f"docstrings of {data.private_packages} as installed here, because no data.source "
                "is set. For other texts set data.source = 'files', data.path and data.users"
            )
        logger.info("the simulated users' texts: %s", words)

    @property
    def weight(self) -> int:
        """How many users the shard has: public, from the configuration alone."""
        return shard_sizes(self.config.data.users, self.partitions)[self.partition]

    @property
    def resources(self) -> str:
        """The first nodes are of the method's first group, if it has any: public, as `weight`."""
        last = 0
        for name, (_, nodes) in self.config.own.groups(self.config).items():
            last += nodes
            if self.partition < last:
                return name
        return ""

    @property
    def central(self) -> bool:
        """Whether it has everybody's text, and the server is trusted with its vector."""
        return self.partitions == 1 and self.config.aggregation == "plain"

    @property
    def cache(self) -> Path:
        """The node's own folder."""
        return cache_folder(self.config) / "nodes" / f"{self.partition}-of-{self.partitions}"

    @property
    def noise_seed(self) -> int | None:
        """Where the noise is reproducible, which the ledger then says; None: the system's."""
        return self.config.seed if self.config.simulation_seeded_noise else None

    def load(self) -> Mapping[str, Sequence[str]]:
        """The users' texts, PRIVATE."""
        return self._federation().shard(self.partition, self.partitions)

    def downstream(self) -> Path:
        """The folder of the language model that the server starts from."""
        from privsyn_flower.evaluation.public import public_start
        from privsyn_flower.text.models.gguf import imported, packaged
        from privsyn_flower.text.models.lm_metrics import base_folder
        from privsyn_flower.text.tiny.assets import embedded
        from privsyn_flower.text.tiny.models import ensure_model, taught_folder

        config, kind = self.config, self.config.trained
        name: str = getattr(config.models, kind)
        if (model := packaged(kind, name)) is not None:  # the server made it before it asked
            folder = imported(model, cache_folder(config)) or Path(name)
            if kind == "conditional":
                folder = taught_folder(model, folder, self._federation(), config)
            name = str(folder)
        made = embedded(kind, name) is not None or (kind, name) == ("downstream", "lstm")
        if not made and not config.trains:
            return base_folder(name)
        federation = self._federation()
        base = ensure_model(kind, federation, config) if made else base_folder(name)
        return public_start(config, federation, base) if config.trains else base

    def _federation(self) -> Federation:
        return Federation(prepare(self.config.data, cache_folder(self.config)))
