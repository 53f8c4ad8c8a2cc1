"""Strategies to plug into a Flower ServerApp, and what methods of your own are made of.

Names are imported when first used: a strategy loads what it needs and no other method.
"""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import on_demand

if TYPE_CHECKING:
    from privsyn_flower.strategies.averaging.app_evaluation import PrivateEvaluation
    from privsyn_flower.strategies.averaging.start import TrainingResult, TrainingStrategy
    from privsyn_flower.strategies.ctcl.strategy import CTCL
    from privsyn_flower.strategies.dp_fedavg.strategy import DPFedAvg
    from privsyn_flower.strategies.dp_ftrl.strategy import DPFTRL
    from privsyn_flower.strategies.dp_rft.strategy import DPRFT
    from privsyn_flower.strategies.engine.callbacks import (
        Callback,
        CheckFailed,
        Question,
        RunStart,
    )
    from privsyn_flower.strategies.engine.cohort import RoundPlan, TooFewNodes
    from privsyn_flower.strategies.engine.node_failures import AllNodesFailed
    from privsyn_flower.strategies.engine.rounds import (
        Method,
        NoRelease,
        NothingLearned,
        Rounds,
    )
    from privsyn_flower.strategies.engine.session import Session
    from privsyn_flower.strategies.evaluation.strategy import (
        Caps,
        FederatedEvaluation,
        better,
        evaluate,
    )
    from privsyn_flower.strategies.flower_accountant import PldAccountant
    from privsyn_flower.strategies.pe.strategy import PrivateEvolution
    from privsyn_flower.strategies.popri.strategy import NoPairs, POPri
    from privsyn_flower.strategies.pretext.strategy import PrEText
    from privsyn_flower.strategies.synthesis.evolution import NothingSurvived
    from privsyn_flower.strategies.synthesis.preferences import preference_pairs
    from privsyn_flower.strategies.synthesis.start import SynthesisResult, SynthesisStrategy
else:
    __getattr__ = on_demand(
        __name__,
        {
            "averaging.app_evaluation": "PrivateEvaluation",
            "averaging.start": "TrainingResult TrainingStrategy",
            "ctcl.strategy": "CTCL",
            "dp_fedavg.strategy": "DPFedAvg",
            "dp_ftrl.strategy": "DPFTRL",
            "dp_rft.strategy": "DPRFT",
            "engine.callbacks": "Callback CheckFailed Question RunStart",
            "engine.cohort": "RoundPlan TooFewNodes",
            "engine.node_failures": "AllNodesFailed",
            "engine.rounds": "Method NoRelease NothingLearned Rounds",
            "engine.session": "Session",
            "evaluation.strategy": "Caps FederatedEvaluation better evaluate",
            "flower_accountant": "PldAccountant",
            "pe.strategy": "PrivateEvolution",
            "popri.strategy": "NoPairs POPri",
            "pretext.strategy": "PrEText",
            "synthesis.evolution": "NothingSurvived",
            "synthesis.preferences": "preference_pairs",
            "synthesis.start": "SynthesisResult SynthesisStrategy",
        },
    )

__all__ = [
    "CTCL",
    "DPFTRL",
    "DPRFT",
    "AllNodesFailed",
    "Callback",
    "Caps",
    "CheckFailed",
    "DPFedAvg",
    "FederatedEvaluation",
    "Method",
    "NoPairs",
    "NoRelease",
    "NothingLearned",
    "NothingSurvived",
    "POPri",
    "PldAccountant",
    "PrEText",
    "PrivateEvaluation",
    "PrivateEvolution",
    "Question",
    "RoundPlan",
    "Rounds",
    "RunStart",
    "Session",
    "SynthesisResult",
    "SynthesisStrategy",
    "TooFewNodes",
    "TrainingResult",
    "TrainingStrategy",
    "better",
    "evaluate",
    "preference_pairs",
]
