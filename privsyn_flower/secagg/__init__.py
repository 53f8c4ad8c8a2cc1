"""Secure summation: the server learns the exact sum of integer vectors, and nothing else.

`secure_vector` wraps a ClientApp's handler, `secure_sum` is the one call in the ServerApp.
"""

from typing import TYPE_CHECKING

from privsyn_flower.on_demand import on_demand
from privsyn_flower.secagg.cohort import LEAST_NODES, Cohort, Member
from privsyn_flower.secagg.flower import Party, Summed, Transport, respond, run_session
from privsyn_flower.secagg.session import Code, SecaggError, Session

if TYPE_CHECKING:
    from privsyn_flower.secagg.standalone import secure_sum, secure_vector
else:
    __getattr__ = on_demand(__name__, secure_sum="standalone", secure_vector="standalone")

__all__ = [
    "LEAST_NODES",
    "Code",
    "Cohort",
    "Member",
    "Party",
    "SecaggError",
    "Session",
    "Summed",
    "Transport",
    "respond",
    "run_session",
    "secure_sum",
    "secure_vector",
]
