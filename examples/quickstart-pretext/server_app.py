from pathlib import Path

from flwr.serverapp import ServerApp

from privsyn_flower import PrEText, PreTextConfig, Retrieval, load_embedder
from texts import PUBLIC

app = ServerApp()


@app.main()
def main(grid, context):
    embedder = load_embedder("ngram-256")  # the nodes have the same one
    nearby = Retrieval(PUBLIC, embedder.embed(PUBLIC), embedder)  # what varies a text
    few = PreTextConfig(population=64)  # candidates, for so few users
    strategy = PrEText(PUBLIC, embedder=embedder, variation=nearby, rounds=4, config=few)
    folder = Path.home() / "privsyn-runs" / str(context.run_id)
    result = strategy.start(grid, folder=folder, users=200, nodes=8, epsilon=4.0, delta=1e-6)
    print(*result.seeds[:5], result.statement.short(), sep="\n")
