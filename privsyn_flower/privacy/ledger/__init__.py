"""The ledger: what a population has spent, on disk before it is spent."""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import on_demand
from privsyn_flower.privacy.ledger.journal import LedgerError

if TYPE_CHECKING:
    from privsyn_flower.privacy.ledger.journal import Charge
    from privsyn_flower.privacy.ledger.ledger import BudgetExceeded, DuplicateCharge, Ledger
    from privsyn_flower.privacy.ledger.usage import LedgerInUse, exclusive, export
else:
    __getattr__ = on_demand(
        __name__,
        {
            "journal": "Charge",
            "ledger": "BudgetExceeded DuplicateCharge Ledger",
            "usage": "LedgerInUse exclusive export",
        },
    )

__all__ = [
    "BudgetExceeded",
    "Charge",
    "DuplicateCharge",
    "Ledger",
    "LedgerError",
    "LedgerInUse",
    "exclusive",
    "export",
]
