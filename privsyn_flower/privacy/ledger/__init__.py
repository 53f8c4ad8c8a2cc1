"""The ledger: what a population has spent, on disk before it is spent."""

from privsyn_flower.privacy.ledger.charges import Charge
from privsyn_flower.privacy.ledger.journal import LedgerError
from privsyn_flower.privacy.ledger.ledger import (
    BudgetExceeded,
    DuplicateCharge,
    Ledger,
    LedgerInUse,
)

__all__ = ["BudgetExceeded", "Charge", "DuplicateCharge", "Ledger", "LedgerError", "LedgerInUse"]
