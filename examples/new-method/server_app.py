import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privsyn_flower import load_embedder
from topics import Topics

TOPICS = [
    "clustering: distances between observations, linkage, centroids and dendrograms",
    "Fourier transforms: frequencies, spectra, periods and harmonics",
    "images: pixels, filters, edges, morphology and labels",
    "integration: quadrature, differential equations and initial values",
    "interpolation: splines, knots, grids and polynomials",
    "linear algebra: matrices, eigenvalues, factorizations and determinants",
    "optimization: minimize a function, gradients, constraints and bounds",
    "signals: filter coefficients, windows, impulse responses and sampling",
    "sparse matrices: rows, columns, nonzero entries, graphs and paths",
    "statistics: probability distributions, samples, moments and hypothesis tests",
]
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, folder = context.run_config, Path.home() / "privsyn-runs" / str(context.run_id)
    users = int(config["data.users"])
    strategy = Topics(TOPICS, embedder=load_embedder(str(config["models.embedder"])))
    result = strategy.start(
        grid,
        folder=folder,
        users=users,
        nodes=int(config["nodes"]),
        epsilon=float(config["epsilon"]),
        delta=float(config["delta"]),
    )
    shares = {name: n / users for name, n in zip(strategy.topics, strategy.votes, strict=True)}
    found = {"shares": shares, "noise_std": strategy.noise_std / users}
    (folder / "topics.json").write_text(json.dumps(found, indent=1), "utf-8")
    print("\n".join([*result.seeds, result.statement.sentence()]))
