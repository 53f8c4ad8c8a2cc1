"""The ClientApp: routes from message types to answers. Runs on devices and in simulation."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from privsyn_flower.client_apps import evaluation as evaluation_app
from privsyn_flower.client_apps import scores as scores_app
from privsyn_flower.client_apps import updates as updates_app
from privsyn_flower.client_apps import votes as votes_app
from privsyn_flower.client_apps.answers import guarded
from privsyn_flower.client_apps.node.device import open_node
from privsyn_flower.protocol.greeting import answer_hello

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """The node's public facts: its weight, its partition, and whether it is deployed."""
    return guarded(message, lambda: answer_hello(message, open_node(context).facts))


@app.query("votes")
def votes(message: Message, context: Context) -> Message:
    """Nearest-neighbour votes (PrE-Text, Algorithm 2)."""
    return votes_app.votes(message, context)


@app.query("scores")
def scores(message: Message, context: Context) -> Message:
    """Similarity scores (POPri, Algorithms 3 and 4)."""
    return scores_app.scores(message, context)


@app.query("evaluation")
def evaluation(message: Message, context: Context) -> Message:
    """How well public models predict the users' texts."""
    return evaluation_app.evaluation(message, context)


@app.train()
def update(message: Message, context: Context) -> Message:
    """What training on the users' texts changes (DP-FedAvg, DP-FTRL)."""
    return updates_app.update(message, context)
