"""The model and the data: 569 patients, 30 measurements each, of which 456 lie in clinics."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

PUBLIC = 113  # patients whose rows are public: they scale the measurements and test the model


class Model(nn.Module):
    """Logistic regression from the zero model."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(30, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, 30) -> logits (n,)."""
        return self.linear(rows).squeeze(1)


def _rows() -> tuple[Tensor, Tensor]:
    measurements, benign = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(benign))
    measurements, benign = measurements[order], benign[order]
    public = measurements[:PUBLIC]
    scaled = (measurements - public.mean(axis=0)) / public.std(axis=0)
    return torch.tensor(scaled, dtype=torch.float32), torch.tensor(benign, dtype=torch.float32)


def clinic_rows(clinic: int, clinics: int, *, held_out: bool = False) -> tuple[Tensor, Tensor]:
    """The patients of one clinic that it trains on, or every fifth one, which it tests on."""
    rows, benign = (part[PUBLIC + clinic :: clinics] for part in _rows())
    chosen = (torch.arange(len(rows)) % 5 == 4) == held_out
    return rows[chosen], benign[chosen]


def public_rows() -> tuple[Tensor, Tensor]:
    """The public patients."""
    rows, benign = _rows()
    return rows[:PUBLIC], benign[:PUBLIC]


def fit(model: Model, rows: Tensor, benign: Tensor, learning_rate: float) -> float:
    """One pass of SGD over the rows; returns the loss of its last batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    loss = torch.tensor(0.0)
    for batch, target in DataLoader(TensorDataset(rows, benign), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch), target)
        loss.backward()
        optimizer.step()
    return loss.item()


def accuracy(model: Model, rows: Tensor, benign: Tensor) -> float:
    """Share of the rows that the model tells right."""
    with torch.no_grad():
        return float(((model(rows) > 0) == (benign > 0.5)).float().mean())
