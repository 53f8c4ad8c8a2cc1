"""What a device answers: the shipped handlers. Leave out those that your methods do not ask."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from privsyn_flower.client_apps import main as privsyn

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    return privsyn.hello(message, context)


@app.query("votes")
def votes(message: Message, context: Context) -> Message:
    return privsyn.votes(message, context)
