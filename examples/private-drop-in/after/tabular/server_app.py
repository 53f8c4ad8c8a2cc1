"""The server: averages the clinics' models and tests the result on public patients."""

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from privsyn_flower import DPFedAvg, PrivateEvaluation
from tabular.task import Model, accuracy, public_rows

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = Model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model, *public_rows())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    clinics, rounds = int(context.run_config["clinics"]), int(context.run_config["rounds"])
    strategy = DPFedAvg(clip_norm=0.5)
    result = strategy.start(
        grid,
        initial_arrays=ArrayRecord(Model().state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": float(context.run_config["learning-rate"])}),
        evaluate_fn=evaluate,
        evaluation=PrivateEvaluation(metrics={"accuracy": (0, 1)}),
        epsilon=4.0,
        delta=1e-5,
        users=clinics,
        folder=Path.home() / "privsyn-runs" / str(context.run_id),
    )
    print("on the clinics' patients:", result.evaluate_metrics_clientapp.get(rounds))
    print(f"accuracy on public patients: {evaluate(rounds, result.arrays)['accuracy']:.3f}")
    print(result.statement.sentence())
