"""Private answers in somebody else's ClientApp: one decorator over their own function."""

from privsyn_flower.client_apps.dropin.evaluation import private_evaluation
from privsyn_flower.client_apps.dropin.training import private_training

__all__ = ["private_evaluation", "private_training"]
