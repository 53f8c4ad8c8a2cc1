"""The device side: a ClientApp that answers with bounded, noised vectors and nothing else."""

from privsyn_flower.client_apps.dropin import private_evaluation, private_training

__all__ = ["private_evaluation", "private_training"]
