"""The server: public texts only. What the users wrote stays where the SuperNodes run."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privsyn_flower import PrEText, PreTextConfig, Retrieval, load_embedder
from texts import PUBLIC

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    embedder = load_embedder("ngram-256")
    nearby = Retrieval(PUBLIC, embedder.embed(PUBLIC), embedder)
    few = PreTextConfig(population=16)  # candidates, for forty users
    strategy = PrEText(PUBLIC, embedder=embedder, variation=nearby, rounds=1, config=few)
    folder = Path.home() / "privsyn-runs" / str(context.run_id)
    result = strategy.start(grid, folder=folder, users=40, nodes=4, epsilon=4.0, delta=1e-6)
    print(*result.seeds[:5], result.statement.short(), sep="\n")
