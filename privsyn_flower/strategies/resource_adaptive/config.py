"""`[resource-adaptive]`: which nodes train the generator, and which vote for its text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from privsyn_flower.config.common import SYNTHETIC, CommonConfig, MethodEntry, MethodTable
from privsyn_flower.strategies.ctcl.config import CtclConfig

STRONG, WEAK = "strong", "weak"
LEAST_NODES = 3  # of a secure sum
# Of CTCL's keys: what a generator that is told topics, and a vote within them, have no use for.
UNUSED = ("labels", "condition", "resample_pool", "generator_training")


class ResourceAdaptiveConfig(MethodTable):
    """`[resource-adaptive]`: after Resource-Adaptive Federated Text Generation (arXiv 2603.07027).

    Topics and the generator are `[ctcl]`'s, the training of strong nodes is `[training]`'s.
    """

    table: ClassVar[str] = "resource_adaptive"
    trained: ClassVar[str] = "conditional"

    weak_share: float = Field(
        0.5, gt=0, lt=1, description="share of nodes that vote once and do not train: their node "
        "config says so, and in a simulation they are the last"
    )  # fmt: skip
    weak_users: int = Field(
        0, ge=0, description="declared users of all weak nodes; 0: each node has equally many"
    )
    pool: int = Field(
        4, ge=2, le=64, description="texts written, and voted on, for each of expand.samples"
    )

    @property
    def updates(self) -> bool:
        return True

    def groups(self, config: CommonConfig) -> Mapping[str, tuple[int, int]]:
        """(users, nodes) of the strong group, which the rounds ask, and of the weak one."""
        weak = min(max(1, round(self.weak_share * config.nodes)), max(1, config.nodes - 1))
        strong = config.nodes - weak
        users = self.weak_users or dealt_users(config, strong)
        return {STRONG: (config.data.users - users, strong), WEAK: (users, weak)}

    def check(self, config: CommonConfig) -> None:
        """CTCL's keys as far as they are used, and that each group can make a sum."""
        shared, default = config[CtclConfig], CtclConfig()
        for name in UNUSED:
            if (value := getattr(shared, name)) != getattr(default, name):
                raise ValueError(
                    f"ctcl.{name.replace('_', '-')} = {value!r}: method = 'resource-adaptive' "
                    "trains a generator that is told topics, without classes: leave it out"
                )
        shared.check(config)
        if config.sampler != "full" or config.training.noise != "nodes":
            raise ValueError(
                f"sampler = {config.sampler!r}, training.noise = {config.training.noise!r}: method "
                "= 'resource-adaptive' asks all nodes of a group, which add the noise: set 'full' "
                "and 'nodes'"
            )
        for group, (users, nodes) in self.groups(config).items():
            self._check_group(config, group, users, nodes)

    def _check_group(self, config: CommonConfig, group: str, users: int, nodes: int) -> None:
        """The group suffices for a sum, even if all assumed colluders are in it."""
        keys = (
            f"(nodes = {config.nodes}, data.users = {config.data.users}, resource-adaptive."
            f"weak-share = {self.weak_share}, weak-users = {self.weak_users})"
        )
        least = LEAST_NODES if config.aggregation == "secure" else 1
        if nodes < least or users < nodes:
            raise ValueError(
                f"{nodes} {group} node{'s' * (nodes != 1)} with {users} users {keys}: a sum needs "
                f"at least {least} nodes, of a user or more each; raise nodes, or change the share"
            )
        needed = math.ceil(config.min_surviving_weight * users - 1e-9)
        needed += math.ceil(config.colluding_weight * config.data.users - 1e-9)
        if needed > users:
            raise ValueError(
                f"min-surviving-weight = {config.min_surviving_weight} and colluding-weight = "
                f"{config.colluding_weight} of all users need {needed} of {users} users of {group} "
                f"nodes {keys}: lower one of them, or change the share"
            )


def dealt_users(config: CommonConfig, strong: int) -> int:
    """Users of the nodes after the first `strong`, where all users are dealt to nodes evenly."""
    whole, rest = divmod(config.data.users, config.nodes)
    return (config.nodes - strong) * whole + max(0, rest - strong)


METHODS = (
    MethodEntry(
        "resource-adaptive",
        SYNTHETIC,
        ResourceAdaptiveConfig,
        ("ctcl", "training"),
        order=6,
        title="Resource-adaptive synthesis (arXiv 2603.07027)",
    ),
)
