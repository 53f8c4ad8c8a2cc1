"""`privsyn audit`: is a run as private, and as noisy, as is claimed? Measured, not assumed.

Tests of many trials through the real path (`trials`), with one canary user present or absent
(zero-out) and everything else known to the adversary:

threshold   the canary's shift is looked for with a matched filter. Its hits and false alarms
            bound mu of Gaussian differential privacy from below, and so epsilon (Nasr et al.
            2023, "Tight auditing of differentially private machine learning").
variance    what is left of the sums without users' vectors, at survivors of honest weight W_min,
            against the variance that is charged.
correlation of an aggregator's noise, which is correlated between rounds: whitened, the rounds
            must be independent.

Of the nodes' noise one release is measured, because every release has noise of its own; of an
aggregator's noise all rounds of a run together.

What this does not know: the bound reads epsilon off mu, which is exact for Gaussian noise and as
good as exact for integer noise as close to it as the nodes'; one canary and one configuration are
tried, so passing is evidence and no proof; randomness that an adversary could predict passes.
"""

from privsyn_flower.audit.measure import Audit, audit, described
from privsyn_flower.audit.statistics import mu_lower_bound, variance_test
from privsyn_flower.audit_path import AuditError

__all__ = ["Audit", "AuditError", "audit", "described", "mu_lower_bound", "variance_test"]
