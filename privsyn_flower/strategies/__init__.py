"""Strategies to plug into a Flower ServerApp.

from privsyn_flower.strategies import PrEText
"""

from privsyn_flower.strategies.cohort import RoundPlan
from privsyn_flower.strategies.pretext import PrEText
from privsyn_flower.strategies.rounds import NoRelease, NothingSurvived, Rounds, Strategy
from privsyn_flower.strategies.synthesis import SynthesisResult, SynthesisStrategy

__all__ = [
    "NoRelease",
    "NothingSurvived",
    "PrEText",
    "RoundPlan",
    "Rounds",
    "Strategy",
    "SynthesisResult",
    "SynthesisStrategy",
]
