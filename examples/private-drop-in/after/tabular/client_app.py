"""The clinic: one pass over its own patients, and a test on those it left out."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from privsyn_flower import private_evaluation, private_training
from tabular.task import Model, accuracy, clinic_rows, fit

app = ClientApp()


@app.train()
@private_training
def train(msg: Message, context: Context) -> Message:
    model = Model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    clinic, clinics = context.node_config["partition-id"], context.node_config["num-partitions"]
    rows, benign = clinic_rows(int(clinic), int(clinics))
    loss = fit(model, rows, benign, float(msg.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(rows)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=msg)


@app.evaluate()
@private_evaluation
def evaluate(msg: Message, context: Context) -> Message:
    model = Model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    clinic, clinics = context.node_config["partition-id"], context.node_config["num-partitions"]
    rows, benign = clinic_rows(int(clinic), int(clinics), held_out=True)
    metrics = MetricRecord({"accuracy": accuracy(model, rows, benign), "num-examples": len(rows)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
