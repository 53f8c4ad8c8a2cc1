"""Distances between two sets of embeddings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from privsyn_flower.arrays import F64


def frechet_distance(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Squared Frechet distance of the normal distributions fitted to x (n, d) and y (k, d).

    |m_x - m_y|^2 + tr(S_x + S_y - 2 (S_x S_y)^(1/2)), with the sample covariances (n - 1)
    (Dowson and Landau 1982; the FID of Heusel et al. 2017, arXiv 1706.08500). Singular covariances
    are fine. The estimate falls as n and k grow: compare sets of equal size only
    (`frechet_by_size`). Raises ValueError on shapes, fewer than two rows, or entries that are not
    finite.
    """
    first, second = _matrix("x", x), _matrix("y", y)
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"x has dimension {first.shape[1]}, y has {second.shape[1]}")
    gap = first.mean(axis=0) - second.mean(axis=0)
    cov_x, cov_y = (np.atleast_2d(np.cov(rows, rowvar=False)) for rows in (first, second))
    # tr((S_x S_y)^(1/2)) = tr((R S_y R)^(1/2)) with R = S_x^(1/2): symmetric, so the roots are
    # real and a rounding error below zero is just cut.
    values, vectors = np.linalg.eigh(cov_x)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    product = root @ cov_y @ root
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh((product + product.T) / 2), 0.0)).sum()
    return float(gap @ gap + np.trace(cov_x) + np.trace(cov_y) - 2 * cross)


def frechet_by_size(
    sets: dict[str, npt.NDArray[np.floating]],
    reference: npt.NDArray[np.floating],
    rng: np.random.Generator,
    repeats: int = 3,
) -> dict[str, float]:
    """Frechet distance of each set (n_i, d) to `reference` (k, d) at the same number of rows.

    Every set is reduced to the size of the smallest, at random, `repeats` times; the mean is
    returned. Raises ValueError for a set of fewer than two rows.
    """
    size = min(len(rows) for rows in sets.values())
    return {
        name: float(
            np.mean(
                [
                    frechet_distance(rows[rng.choice(len(rows), size, replace=False)], reference)
                    for _ in range(repeats if len(rows) > size else 1)
                ]
            )
        )
        for name, rows in sets.items()
    }


def _matrix(name: str, values: npt.ArrayLike) -> F64:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2 or rows.shape[1] < 1:
        raise ValueError(f"{name} has shape {rows.shape}, expected (at least 2, at least 1)")
    if not np.isfinite(rows).all():
        raise ValueError(f"{name} has entries that are not finite")
    return rows
