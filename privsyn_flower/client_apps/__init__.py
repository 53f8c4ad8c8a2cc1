"""The device side: a ClientApp that answers with bounded, noised vectors and nothing else."""

from typing import TYPE_CHECKING

from privsyn_flower.on_demand import on_demand

if TYPE_CHECKING:
    from privsyn_flower.client_apps.dropin import private_evaluation, private_training
else:
    __getattr__ = on_demand(__name__, private_evaluation="dropin", private_training="dropin")

__all__ = ["private_evaluation", "private_training"]
