"""Strategies to plug into a Flower ServerApp.

`from privsyn_flower.strategies import CTCL, DPFedAvg, DPFTRL, POPri, PrEText, PrivateEvolution`
"""

from privsyn_flower.strategies.averaging.app_evaluation import PrivateEvaluation
from privsyn_flower.strategies.averaging.start import TrainingResult, TrainingStrategy
from privsyn_flower.strategies.ctcl import CTCL
from privsyn_flower.strategies.dp_fedavg import DPFedAvg
from privsyn_flower.strategies.dp_ftrl import DPFTRL
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.rounds import (
    Method,
    NoRelease,
    NothingLearned,
    NothingSurvived,
    Rounds,
)
from privsyn_flower.strategies.evaluation import Caps, FederatedEvaluation, better, evaluate
from privsyn_flower.strategies.popri import NoPairs, POPri
from privsyn_flower.strategies.pretext import PrEText
from privsyn_flower.strategies.private_evolution import PrivateEvolution
from privsyn_flower.strategies.synthesis.preferences import preference_pairs
from privsyn_flower.strategies.synthesis.start import SynthesisResult, SynthesisStrategy

__all__ = [
    "CTCL",
    "DPFTRL",
    "Caps",
    "DPFedAvg",
    "FederatedEvaluation",
    "Method",
    "NoPairs",
    "NoRelease",
    "NothingLearned",
    "NothingSurvived",
    "POPri",
    "PrEText",
    "PrivateEvaluation",
    "PrivateEvolution",
    "RoundPlan",
    "Rounds",
    "SynthesisResult",
    "SynthesisStrategy",
    "TrainingResult",
    "TrainingStrategy",
    "better",
    "evaluate",
    "preference_pairs",
]
