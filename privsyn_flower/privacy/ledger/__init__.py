"""The ledger: what a population has spent, on disk before it is spent."""

from typing import TYPE_CHECKING

from privsyn_flower.on_demand import on_demand
from privsyn_flower.privacy.ledger.journal import LedgerError

if TYPE_CHECKING:
    from privsyn_flower.privacy.ledger.charges import Charge
    from privsyn_flower.privacy.ledger.ledger import (
        BudgetExceeded,
        DuplicateCharge,
        Ledger,
        LedgerInUse,
    )
else:
    __getattr__ = on_demand(
        __name__,
        BudgetExceeded="ledger",
        Charge="charges",
        DuplicateCharge="ledger",
        Ledger="ledger",
        LedgerInUse="ledger",
    )

__all__ = ["BudgetExceeded", "Charge", "DuplicateCharge", "Ledger", "LedgerError", "LedgerInUse"]
