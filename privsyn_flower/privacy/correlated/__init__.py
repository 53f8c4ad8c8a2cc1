"""Correlated noise for DP-FTRL, added by a trusted aggregator."""

from privsyn_flower.privacy.correlated.factorization import (
    NAMES,
    Factorization,
    calibrate_correlated,
    epsilon_correlated,
    factorization,
)
from privsyn_flower.privacy.correlated.keys import (
    NoiseKey,
    NoiseKeyExposed,
    NoiseKeyHeld,
    NoiseKeyMissing,
)
from privsyn_flower.privacy.correlated.participation import Participation
from privsyn_flower.privacy.correlated.stream import Keep, Stream

__all__ = [
    "NAMES",
    "Factorization",
    "Keep",
    "NoiseKey",
    "NoiseKeyExposed",
    "NoiseKeyHeld",
    "NoiseKeyMissing",
    "Participation",
    "Stream",
    "calibrate_correlated",
    "epsilon_correlated",
    "factorization",
]
