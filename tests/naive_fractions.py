"""The table of ground truth: exact rational values, held by the twins and by the package alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction


def fractions(text: str) -> list[Fraction]:
    return [Fraction(part) for part in text.split(",")]


@dataclass(frozen=True)
class Row:
    """One pair (p, q) with its exact values, keyed by what is measured.

    `cut` is the optimal subset for drafts with replacement, where it is unique or empty.
    """

    target: str
    draft: str
    num_drafts: int
    values: dict[str, Fraction] = field(default_factory=dict)
    cut: tuple[int, ...] | None = None

    @property
    def p(self) -> list[Fraction]:
        return fractions(self.target)

    @property
    def q(self) -> list[Fraction]:
        return fractions(self.draft)


ROWS = [
    Row(
        "309/500,177/500,7/250",
        "373/1000,29/50,47/1000",
        2,
        {"iid": Fraction(988871, 1000000), "rrs": Fraction(169277, 200000)},
        cut=(1, 2),
    ),
    Row(
        "469/1000,31/250,407/1000",
        "201/1000,11/40,131/250",
        3,
        {"iid": Fraction(1), "rrs": Fraction(207227133, 250000000)},
        cut=(),
    ),
    Row("777/1000,223/1000", "937/1000,63/1000", 2, {"wor": Fraction(1), "rrsw": Fraction(1)}),
    Row(
        "1/3,0,2/3",
        "1/3,1/3,1/3",
        2,
        {
            "iid": Fraction(8, 9),
            "rrs": Fraction(7, 9),
            "wor": Fraction(1),
            "rrsw": Fraction(5, 6),
            "greedy": Fraction(5, 6),
            "hub": Fraction(5, 6),
        },
    ),
    Row(
        "1/2,1/4,1/4",
        "1/4,1/4,1/2",
        2,
        {
            "iid": Fraction(15, 16),
            "wor": Fraction(1),
            "rrs": Fraction(13, 16),
            "rrsw": Fraction(7, 8),
            "greedy": Fraction(1),
            "target_only": Fraction(33, 64),
        },
        cut=(1, 2),
    ),
    *(Row("1/2,1/2", "1,0", n, {"iid": Fraction(1, 2)}, cut=(0,)) for n in (1, 2, 3, 4)),
]

# p, q = (1/3, 0, 2/3), (1/3, 1/3, 1/3), n = 2.
K_SEQ_RATE, K_SEQ_RHO = 0.811420, 1.434259

# The two laws that secondary sources take for one another: q, n, the subset and both containments.
SUBSET_Q = "1/2,3/10,1/5"
SUBSET = (0, 1)
CONDITIONAL_POISSON = Fraction(15, 31)
ONE_AFTER_ANOTHER = Fraction(18, 35)

# Drafts with replacement whose duplicates are skipped, the residual not updated, n = 2.
SKIPPED_TARGET = "3/5,3/10,1/10"
SKIPPED_DRAFT = "1/5,1/5,3/5"
SKIPPED_OUTPUT = fractions("27/50,9/25,1/10")
