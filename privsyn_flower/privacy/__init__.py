"""Privacy: clipping, noise, accounting, the ledger, and the one door out.

Light to import: accounting loads dp_accounting only when a number is asked for, and names are
imported when first asked for.
"""

from typing import TYPE_CHECKING

from privsyn_flower.on_demand import on_demand

if TYPE_CHECKING:
    from privsyn_flower.privacy.accounting.composition import (
        AccountingError,
        calibrate,
        compose_gaussians,
        epsilon,
        gaussian_epsilon,
    )
    from privsyn_flower.privacy.accounting.sampling import Sampler
    from privsyn_flower.privacy.clipping import clip_l2
    from privsyn_flower.privacy.ledger.charges import Charge
    from privsyn_flower.privacy.ledger.journal import LedgerError
    from privsyn_flower.privacy.ledger.ledger import (
        BudgetExceeded,
        DuplicateCharge,
        Ledger,
        LedgerInUse,
    )
    from privsyn_flower.privacy.noise.gaussian import gaussian, node_noise, system_gaussian
    from privsyn_flower.privacy.release import NoisySum, ReleaseRefused, TooFewSurvivors
    from privsyn_flower.privacy.sentence import PrivacyStatement
else:
    __getattr__ = on_demand(
        __name__,
        AccountingError="accounting.composition",
        BudgetExceeded="ledger",
        Charge="ledger",
        DuplicateCharge="ledger",
        Ledger="ledger",
        LedgerError="ledger",
        LedgerInUse="ledger",
        NoisySum="release",
        PrivacyStatement="sentence",
        ReleaseRefused="release",
        Sampler="accounting.sampling",
        TooFewSurvivors="release",
        calibrate="accounting.composition",
        clip_l2="clipping",
        compose_gaussians="accounting.composition",
        epsilon="accounting.composition",
        gaussian="noise.gaussian",
        gaussian_epsilon="accounting.composition",
        node_noise="noise.gaussian",
        system_gaussian="noise.gaussian",
    )

__all__ = [
    "AccountingError",
    "BudgetExceeded",
    "Charge",
    "DuplicateCharge",
    "Ledger",
    "LedgerError",
    "LedgerInUse",
    "NoisySum",
    "PrivacyStatement",
    "ReleaseRefused",
    "Sampler",
    "TooFewSurvivors",
    "calibrate",
    "clip_l2",
    "compose_gaussians",
    "epsilon",
    "gaussian",
    "gaussian_epsilon",
    "node_noise",
    "system_gaussian",
]
