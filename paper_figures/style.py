"""The one style of the figures here: the package's, so that `otmd report --figure` looks alike."""

from otmd.measurement.style import MARKS, ONE_COLUMN, RC, TWO_COLUMNS, figure_style, marks

__all__ = ["MARKS", "ONE_COLUMN", "RC", "TWO_COLUMNS", "figure_style", "marks"]
