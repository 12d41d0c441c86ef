"""Positions × laws × verifiers: rates and gaps measured on a dataset, summarised and drawn.

:func:`measure` makes a table with one row a position, processing, law, number of drafts and
verifier; :func:`summarise` turns it into means with confidence intervals over prompts;
:func:`print_report` and :func:`draw_gaps` show them. What ways of decoding took is summed by
:func:`decoding_costs`, and :func:`run_sweep` computes anything over many parameters.
"""

from otmd.measurement.decoding import (
    DecodingCost,
    decoding_costs,
    decoding_json,
    print_decoding,
)
from otmd.measurement.decoding_figure import draw_decoding
from otmd.measurement.figure import draw_gaps
from otmd.measurement.measure import measure
from otmd.measurement.report import print_report, report_json
from otmd.measurement.settings import DEFAULT_LAWS, DEFAULT_VERIFIERS
from otmd.measurement.store import load_results, positions_stored
from otmd.measurement.summary import summarise
from otmd.measurement.sweep import Sweep, merge_sweeps, read_tasks, run_sweep

__all__ = [
    "DEFAULT_LAWS",
    "DEFAULT_VERIFIERS",
    "DecodingCost",
    "Sweep",
    "decoding_costs",
    "decoding_json",
    "draw_decoding",
    "draw_gaps",
    "load_results",
    "measure",
    "merge_sweeps",
    "positions_stored",
    "print_decoding",
    "print_report",
    "read_tasks",
    "report_json",
    "run_sweep",
    "summarise",
]
