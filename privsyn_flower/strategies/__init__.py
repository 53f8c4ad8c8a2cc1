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
    from privsyn_flower.strategies.engine.callbacks import (
        Callback,
        CheckFailed,
        Question,
        RunStart,
    )
    from privsyn_flower.strategies.engine.cohort import RoundPlan
    from privsyn_flower.strategies.engine.rounds import (
        Method,
        NoRelease,
        NothingLearned,
        NothingSurvived,
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
    from privsyn_flower.strategies.synthesis.preferences import preference_pairs
    from privsyn_flower.strategies.synthesis.start import SynthesisResult, SynthesisStrategy
else:
    __getattr__ = on_demand(
        __name__,
        CTCL="ctcl.strategy",
        Callback="engine.callbacks",
        Caps="evaluation.strategy",
        CheckFailed="engine.callbacks",
        DPFTRL="dp_ftrl.strategy",
        DPFedAvg="dp_fedavg.strategy",
        FederatedEvaluation="evaluation.strategy",
        NoPairs="popri.strategy",
        NoRelease="engine.rounds",
        NothingLearned="engine.rounds",
        NothingSurvived="engine.rounds",
        POPri="popri.strategy",
        PldAccountant="flower_accountant",
        PrEText="pretext.strategy",
        PrivateEvaluation="averaging.app_evaluation",
        PrivateEvolution="pe.strategy",
        Question="engine.callbacks",
        RoundPlan="engine.cohort",
        Rounds="engine.rounds",
        RunStart="engine.callbacks",
        Session="engine.session",
        Method="engine.rounds",
        SynthesisResult="synthesis.start",
        SynthesisStrategy="synthesis.start",
        TrainingResult="averaging.start",
        TrainingStrategy="averaging.start",
        better="evaluation.strategy",
        evaluate="evaluation.strategy",
        preference_pairs="synthesis.preferences",
    )

__all__ = [
    "CTCL",
    "DPFTRL",
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
    "TrainingResult",
    "TrainingStrategy",
    "better",
    "evaluate",
    "preference_pairs",
]
