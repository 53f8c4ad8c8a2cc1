"""`privsyn audit`: is a run as private, and as noisy, as is claimed? Measured, not assumed.

Tests of many trials through the real path (`trials`), with one canary user present or absent
(zero-out) and everything else known to the adversary:

threshold   the canary's shift is looked for with a matched filter. Its hits and false alarms
            bound mu of Gaussian differential privacy from below, and so epsilon (Nasr et al.
            2023, arXiv 2302.07956, "Tight auditing of differentially private machine learning").
variance    what is left of the sums without users' vectors, at survivors of honest weight W_min,
            against the variance that is charged.
correlation of noise that is correlated between rounds: whitened, the rounds must be
            independent. Rows of a matrix, which nodes answer, are as if they were whitened.
sampling    where users are sampled: how often, how often the canary's vector is in a sum that it
            was there for, and whether users are sampled independently (`statistics`).

What is asked besides the rounds (CTCL's topics, weak nodes' votes) is a measurement of its own.

Of the nodes' independent noise one release is measured, because every release has noise of its
own; of noise that is correlated, and of an aggregator's, all rounds of a run together.

With Poisson sampling the claim is that of a sampled release, and the adversary, who knows which
others are sampled, has N(0, 1) against (1 - q) N(0, 1) + q N(mu, 1). Hits and false alarms alone
certify log((hits - delta) / alarms) at most, which takes far more trials than there are
(Zanella-Beguelin et al. 2023, arXiv 2206.05199, "Bayesian estimation of differential privacy"). So
the form of the pair is taken as given, as in Nasr et al., but neither of its numbers: the auditor
sees who is sampled, bounds mu by the trials in which the canary's vector was in the sum and q by
how often it was, and epsilon of that pair is exact.

What this does not know: the bound reads epsilon off mu and q, which is exact for Gaussian noise
and sampling that is independent of it, and as good as exact for integer noise as close to it as the
nodes'; one canary and one configuration are tried, so passing is evidence and no proof;
randomness, of noise or sampling, that an adversary could predict passes; of an answer's time, which
may reveal participation, nothing is measured; and the sampling of one round only, not that of
one user in many rounds.
"""

from privsyn_flower.app.audit.measure import Audit, audit, described, kinds
from privsyn_flower.app.audit.path import AuditError
from privsyn_flower.app.audit.statistics import mu_lower_bound, variance_test

__all__ = ["Audit", "AuditError", "audit", "described", "kinds", "mu_lower_bound", "variance_test"]
