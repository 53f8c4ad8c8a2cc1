"""The device side: a ClientApp that answers with bounded, noised vectors and nothing else.

The decorators are for an app that exists; the other names for handlers of your own.
"""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import on_demand

if TYPE_CHECKING:
    from privsyn_flower.client_apps.answers import Kind, Participants, guarded, reply
    from privsyn_flower.client_apps.dropin import private_evaluation, private_training
    from privsyn_flower.client_apps.node.device import Node, UserTexts, open_node
    from privsyn_flower.client_apps.votes import VOTES, check_votes
else:
    __getattr__ = on_demand(
        __name__,
        {
            "answers": "Kind Participants guarded reply",
            "dropin": "private_evaluation private_training",
            "node.device": "Node UserTexts open_node",
            "votes": "VOTES check_votes",
        },
    )

__all__ = [
    "VOTES",
    "Kind",
    "Node",
    "Participants",
    "UserTexts",
    "check_votes",
    "guarded",
    "open_node",
    "private_evaluation",
    "private_training",
    "reply",
]
