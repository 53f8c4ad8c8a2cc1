"""What is said of a method by its name: who wrote of it, and what kind of thing comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Product = Literal["Synthetic data", "Machine learning model", "Summary statistics", "Dataset"]
PRODUCTS: Mapping[str, Product] = {
    "dp-fedavg": "Machine learning model",
    "dp-ftrl": "Machine learning model",
    "evaluation": "Summary statistics",
    "public-only": "Dataset",
}
METHODS = {
    "pretext": "PrE-Text (Hou et al. 2024)",
    "pe": "private evolution (Lin et al. 2024, Xie et al. 2024)",
    "popri": "POPri (Hou et al. 2025)",
    "ctcl": "CTCL (Tan et al. 2025)",
    "dp-fedavg": "DP-FedAvg (McMahan et al. 2018)",
    "dp-ftrl": "DP-FTRL (Kairouz et al. 2021)",
    "dp-prompt": "DP-Prompt (Utpala et al. 2023)",
}
# Texts that come out as they went in.
PUBLIC_AS_IT_WAS = frozenset({"public-only"})
