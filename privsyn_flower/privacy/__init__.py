"""Privacy: clipping, noise, accounting, the ledger, and the release gate.

Light to import: accounting loads dp_accounting only when a number is asked for, and what only
the server does is imported when first asked for.
"""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import on_demand
from privsyn_flower.privacy.accounting.composition import (
    AccountingError,
    account,
    compose_gaussians,
    epsilon,
    gaussian_epsilon,
)
from privsyn_flower.privacy.accounting.sampling import Sampler

if TYPE_CHECKING:
    from privsyn_flower.privacy.accounting.calibration import calibrate
    from privsyn_flower.privacy.clipping import clip_l2
    from privsyn_flower.privacy.correlated import (
        NoiseKey,
        Participation,
        calibrate_correlated,
        factorization,
    )
    from privsyn_flower.privacy.encoding.quantize import IntegerPlan
    from privsyn_flower.privacy.ledger.journal import Charge, LedgerError
    from privsyn_flower.privacy.ledger.ledger import BudgetExceeded, DuplicateCharge, Ledger
    from privsyn_flower.privacy.ledger.usage import LedgerInUse
    from privsyn_flower.privacy.noise.gaussian import system_gaussian
    from privsyn_flower.privacy.release import NoisySum, ReleaseRefused, TooFewSurvivors
    from privsyn_flower.privacy.sentence import PrivacyStatement
else:
    __getattr__ = on_demand(
        __name__,
        {
            "accounting.calibration": "calibrate",
            "clipping": "clip_l2",
            "correlated": "NoiseKey Participation calibrate_correlated factorization",
            "encoding.quantize": "IntegerPlan",
            "ledger": "BudgetExceeded Charge DuplicateCharge Ledger LedgerError LedgerInUse",
            "noise.gaussian": "system_gaussian",
            "release": "NoisySum ReleaseRefused TooFewSurvivors",
            "sentence": "PrivacyStatement",
        },
    )

__all__ = [
    "AccountingError",
    "BudgetExceeded",
    "Charge",
    "DuplicateCharge",
    "IntegerPlan",
    "Ledger",
    "LedgerError",
    "LedgerInUse",
    "NoiseKey",
    "NoisySum",
    "Participation",
    "PrivacyStatement",
    "ReleaseRefused",
    "Sampler",
    "TooFewSurvivors",
    "account",
    "calibrate",
    "calibrate_correlated",
    "clip_l2",
    "compose_gaussians",
    "epsilon",
    "factorization",
    "gaussian_epsilon",
    "system_gaussian",
]
