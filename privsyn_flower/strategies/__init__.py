"""Strategies to plug into a Flower ServerApp.

from privsyn_flower.strategies import DPFedAvg, DPFTRL, POPri, PrEText
"""

from privsyn_flower.strategies.app_evaluation import PrivateEvaluation
from privsyn_flower.strategies.cohort import RoundPlan
from privsyn_flower.strategies.dp_fedavg import DPFedAvg
from privsyn_flower.strategies.dp_ftrl import DPFTRL
from privsyn_flower.strategies.evaluation import Caps, FederatedEvaluation, better, evaluate
from privsyn_flower.strategies.popri import NoPairs, POPri
from privsyn_flower.strategies.preferences import preference_pairs
from privsyn_flower.strategies.pretext import PrEText
from privsyn_flower.strategies.rounds import (
    NoRelease,
    NothingLearned,
    NothingSurvived,
    Rounds,
    Strategy,
)
from privsyn_flower.strategies.synthesis import SynthesisResult, SynthesisStrategy
from privsyn_flower.strategies.training import TrainingResult, TrainingStrategy

__all__ = [
    "DPFTRL",
    "Caps",
    "DPFedAvg",
    "FederatedEvaluation",
    "NoPairs",
    "NoRelease",
    "NothingLearned",
    "NothingSurvived",
    "POPri",
    "PrEText",
    "PrivateEvaluation",
    "RoundPlan",
    "Rounds",
    "Strategy",
    "SynthesisResult",
    "SynthesisStrategy",
    "TrainingResult",
    "TrainingStrategy",
    "better",
    "evaluate",
    "preference_pairs",
]
