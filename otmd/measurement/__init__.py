"""Positions × laws × verifiers: rates and gaps measured on a dataset, summarised and drawn.

:func:`measure` makes a table with one row a position, processing, law, number of drafts and
verifier; :func:`summarise` turns it into means with confidence intervals over prompts;
:func:`print_report` and :func:`draw_gaps` show them.
"""

from otmd.measurement.figure import draw_gaps
from otmd.measurement.measure import measure
from otmd.measurement.report import print_report, report_json
from otmd.measurement.settings import DEFAULT_LAWS, DEFAULT_VERIFIERS
from otmd.measurement.store import load_results, positions_stored
from otmd.measurement.summary import summarise

__all__ = [
    "DEFAULT_LAWS",
    "DEFAULT_VERIFIERS",
    "draw_gaps",
    "load_results",
    "measure",
    "positions_stored",
    "print_report",
    "report_json",
    "summarise",
]
