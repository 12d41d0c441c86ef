"""Where the names of lines are written beside them, and how each name is tied to its line."""

from typing import Any

# In points.
LABEL_HEIGHT = 7.6
THREAD: dict[str, Any] = {
    "arrowstyle": "-",
    "lw": 0.6,
    "alpha": 0.7,
    "relpos": (0, 0.5),
    "shrinkA": 1,
}


def spread(wanted: list[float], apart: float, top: float) -> list[float]:
    """Heights in the same order, at least ``apart`` from each other, near those wanted."""
    placed: list[float] = []
    for height in wanted:
        placed.append(max(height, placed[-1] + apart if placed else 0.0))
    ceiling = top
    for i in range(len(placed) - 1, -1, -1):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - apart
    return placed
