"""What several tests share about tables."""

from __future__ import annotations

from typing import Any

SECURE = "honest-but-curious server with at most 0 % of the weight colluding: holds against ..."


CENTRAL = "trusted aggregator: holds against readers of the released sums, not the server"


def summary(method: str, threat_model: str, **values: Any) -> dict[str, Any]:
    result = "synthetic" if method in ("pretext", "popri") else "trained"
    benchmark = {
        "held_out": "test", "held_out_users": 150, "held_out_tokens": 9000, "task": "next-token",
        "accuracy": {"random_public": 0.2, result: 0.25, "private": 0.3},
        "loss": {"random_public": 4.5, result: 4.25},
        "accuracy_difference": {f"{result}-random_public": [0.05, 0.04, 0.06]},
        "costs": {"client_cpu_seconds_per_user_round": 0.0421, "client_cpu_seconds_per_user": 0.337,
                  "server_wall_seconds": 81.0},
    }  # fmt: skip
    return {
        "method": method, "dataset": "docstrings:scipy", "users": 1000, "rounds": 8,
        "unit": "user", "adjacency": "zero-out", "threat_model": threat_model, "epsilon": 7.5799,
        "delta": 3e-6, "accountant": "exact", "bytes_down_per_user_round": 299_000,
        "bytes_up_per_user_round": 12_000, "benchmark": benchmark, **values,
    }  # fmt: skip
