"""What several tests share about display."""

from __future__ import annotations

from typing import Any

SUMMARY: dict[str, Any] = {
    "method": "pretext",
    "dataset": "docstrings:scipy",
    "users": 1000,
    "rounds": 8,
    "threat_model": "honest-but-curious server",
    "epsilon": 7.58,
    "delta": 3e-6,
    "noise_multiplier": 1.97234,
    "synthetic_samples": 1508,
    "bytes_down_per_user_round": 149570,
    "bytes_up_per_user_round": 1760,
    "wall_seconds": 400.2,
    "privacy": "Epsilon = 7.58 for each user.",
}


BENCHMARK = {
    "held_out_users": 150,
    "accuracy": {"random_public": 0.21328, "synthetic": 0.22091},
    "loss": {"random_public": 4.53229, "synthetic": 4.48991},
    "methods": {"random_public": "(a) public text", "synthetic": "(b) synthetic text"},
    "accuracy_difference": {"synthetic-random_public": [0.00763, 0.0045, 0.01072]},
    "true_votes": {"mean_ratio": 1.697, "seeds_against_random": 0.7657},
    "frechet": {"seeds": {"seeds": 0.19481, "random_public": 0.27361}},
}
