"""Strategies to plug into a Flower ServerApp, and what methods of your own are made of.

Names are imported when first used: a strategy loads what it needs and no other method.
"""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import names_of, on_demand

if TYPE_CHECKING:
    from privsyn_flower.strategies.averaging.app_evaluation import (
        PrivateEvaluation as PrivateEvaluation,
    )
    from privsyn_flower.strategies.averaging.start import TrainingResult as TrainingResult
    from privsyn_flower.strategies.averaging.start import TrainingStrategy as TrainingStrategy
    from privsyn_flower.strategies.ctcl.strategy import CTCL as CTCL
    from privsyn_flower.strategies.dp_fedavg.strategy import DPFedAvg as DPFedAvg
    from privsyn_flower.strategies.dp_ftrl.strategy import DPFTRL as DPFTRL
    from privsyn_flower.strategies.dp_rft.strategy import DPRFT as DPRFT
    from privsyn_flower.strategies.engine.callbacks import Callback as Callback
    from privsyn_flower.strategies.engine.callbacks import CheckFailed as CheckFailed
    from privsyn_flower.strategies.engine.callbacks import Question as Question
    from privsyn_flower.strategies.engine.callbacks import RunStart as RunStart
    from privsyn_flower.strategies.engine.cohort import RoundPlan as RoundPlan
    from privsyn_flower.strategies.engine.cohort import TooFewNodes as TooFewNodes
    from privsyn_flower.strategies.engine.node_failures import AllNodesFailed as AllNodesFailed
    from privsyn_flower.strategies.engine.rounds import Method as Method
    from privsyn_flower.strategies.engine.rounds import NoRelease as NoRelease
    from privsyn_flower.strategies.engine.rounds import NothingLearned as NothingLearned
    from privsyn_flower.strategies.engine.rounds import Rounds as Rounds
    from privsyn_flower.strategies.engine.session import Session as Session
    from privsyn_flower.strategies.evaluation.strategy import Caps as Caps
    from privsyn_flower.strategies.evaluation.strategy import (
        FederatedEvaluation as FederatedEvaluation,
    )
    from privsyn_flower.strategies.evaluation.strategy import better as better
    from privsyn_flower.strategies.evaluation.strategy import evaluate as evaluate
    from privsyn_flower.strategies.flower_accountant import PldAccountant as PldAccountant
    from privsyn_flower.strategies.pe.strategy import PrivateEvolution as PrivateEvolution
    from privsyn_flower.strategies.popri.strategy import NoPairs as NoPairs
    from privsyn_flower.strategies.popri.strategy import POPri as POPri
    from privsyn_flower.strategies.pretext.strategy import PrEText as PrEText
    from privsyn_flower.strategies.synthesis.evolution import NothingSurvived as NothingSurvived
    from privsyn_flower.strategies.synthesis.preferences import preference_pairs as preference_pairs
    from privsyn_flower.strategies.synthesis.start import SynthesisResult as SynthesisResult
    from privsyn_flower.strategies.synthesis.start import SynthesisStrategy as SynthesisStrategy
else:
    _HOMES = {
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
    }
    __getattr__ = on_demand(__name__, _HOMES)
    __all__ = names_of(_HOMES)
