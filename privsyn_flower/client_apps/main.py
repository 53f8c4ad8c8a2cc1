"""The ClientApp: routes from message types to answers. Runs on devices and in simulation.

A kind's module is imported by the route that needs it: a device that votes loads no training.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from privsyn_flower.client_apps.answers import guarded
from privsyn_flower.client_apps.node.device import open_node
from privsyn_flower.protocol.greeting import answer_hello

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """The node's public facts: its weight, its partition, and whether it is deployed."""

    def greet() -> Message:
        node = open_node(context)
        node.tell()
        return answer_hello(message, node.facts)

    return guarded(message, greet, context)


@app.query("votes")
def votes(message: Message, context: Context) -> Message:
    """Nearest-neighbour votes (PrE-Text, Algorithm 2)."""
    from privsyn_flower.client_apps import votes as kind

    return kind.votes(message, context)


@app.query("scores")
def scores(message: Message, context: Context) -> Message:
    """Similarity scores (POPri, Algorithms 3 and 4)."""
    from privsyn_flower.client_apps import scores as kind

    return kind.scores(message, context)


@app.query("evaluation")
def evaluation(message: Message, context: Context) -> Message:
    """How well public models predict the users' texts."""
    from privsyn_flower.client_apps import evaluation as kind

    return kind.evaluation(message, context)


@app.train()
def update(message: Message, context: Context) -> Message:
    """What training on the users' texts changes (DP-FedAvg, DP-FTRL)."""
    from privsyn_flower.client_apps import updates as kind

    return kind.update(message, context)
