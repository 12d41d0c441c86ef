"""The summary of the study of draft laws, read for its figure and its table."""

from pathlib import Path

import polars as pl
from figure_files import read

RESULTS = Path("paper_figures/results/draft_laws.parquet")
COLUMNS = ("draft", "temperature", "num_drafts", "choice", "value", "low", "value_over_greedy")
PAIRS = {
    "skip:15": ("1 layer left out", "#009E73", "o"),
    "skip:13,15,17": ("3 layers left out", "#0072B2", "s"),
    "skip:27,28,29": ("last 3 layers left out", "#E69F00", "D"),
    "ngram:3+context": ("n-gram", "#CC79A7", "^"),
    "Qwen2.5-Coder 0.5B": ("1.5B drafted by 0.5B", "#56B4E9", "v"),
}
"""Label, colour and marker of each draft."""


def read_choices(path: Path = RESULTS) -> pl.DataFrame:
    """Read the summary of all choices."""
    return read(path, "experiments/claims/law_choice.py", COLUMNS)
