from pathlib import Path

from flwr.serverapp import ServerApp

from privsyn_flower import PrEText, PreTextConfig, Retrieval, load_embedder
from texts import PUBLIC

app = ServerApp()


@app.main()
def main(grid, context):
    embedder = load_embedder("ngram-256")  # as in pyproject.toml, for the nodes
    nearby = Retrieval(PUBLIC, embedder.embed(PUBLIC), embedder)  # varies: a near public text
    config = PreTextConfig(population=64)  # candidates: users are few
    strategy = PrEText(PUBLIC, embedder=embedder, variation=nearby, rounds=4, config=config)
    folder = Path.home() / "privsyn-runs" / str(context.run_id)
    result = strategy.start(grid, folder=folder, users=200, nodes=8, epsilon=4.0, delta=1e-6)
    print(*result.seeds[:5], result.statement.short(), sep="\n")
