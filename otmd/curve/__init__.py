"""The ratio curve of (p, q): the one object from which rates and optima are read."""

from otmd.curve.ratio_curve import RatioCurve

__all__ = ["RatioCurve"]
