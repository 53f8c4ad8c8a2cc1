"""Eight clients, each with fifty made-up points on a line: one step of least squares."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from privsyn_flower import private_training

app = ClientApp()


@app.train()
@private_training
def train(message: Message, context: Context) -> Message:
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    draw = np.random.default_rng(int(context.node_config["partition-id"]))
    x = np.column_stack([draw.normal(size=50), np.ones(50)])
    y = x @ [0.5, -0.25] + draw.normal(scale=0.1, size=50)
    updated = weights - 0.3 * x.T @ (x @ weights - y) / len(y)
    return Message(RecordDict({"arrays": ArrayRecord([updated])}), reply_to=message)
