"""How large α* can be at a total variation; derived in ``docs/claims.md``."""

import numpy as np


def largest_optimum(distance: np.ndarray, num_drafts: int) -> np.ndarray:
    """The largest α* with n ≥ 2 drafts with replacement: 1 + max over x of x − (x + d)^n, at most 1."""
    x = np.clip(num_drafts ** (-1 / (num_drafts - 1)) - distance, 0.0, None)
    return np.minimum(1.0, 1.0 + x - (x + distance) ** num_drafts)
