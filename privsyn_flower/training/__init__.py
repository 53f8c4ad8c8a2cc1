"""Local training on a node: what is trained, how, and by which model.

Importing this package or `layout` loads numpy only.
"""

from privsyn_flower.training.layout import Layout, LocalTraining, trained_layout

__all__ = ["Layout", "LocalTraining", "trained_layout"]
