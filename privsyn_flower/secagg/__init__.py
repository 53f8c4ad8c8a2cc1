"""Secure summation: the server learns the exact sum of integer vectors, and nothing else.

`node` is what a device answers, `server` what a relay makes of the answers; how they travel is
somebody else's concern (`privsyn_flower.protocol.secure`, over Flower).
"""

from privsyn_flower.secagg.cohort import LEAST_NODES, Code, Cohort, Member, SecaggError, Session
from privsyn_flower.secagg.node import Party

__all__ = ["LEAST_NODES", "Code", "Cohort", "Member", "Party", "SecaggError", "Session"]
