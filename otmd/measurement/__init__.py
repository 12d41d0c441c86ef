"""Positions × laws × verifiers: rates and gaps measured on a dataset, summarised and drawn.

:func:`measure` makes a table with one row a position, processing, law, number of drafts and
verifier; :func:`summarise` turns it into means with confidence intervals over prompts;
:func:`print_report` and :func:`draw_gaps` show them. :func:`decoding_costs` sums what ways of decoding
took, and :func:`run_sweep` computes anything over many parameters. Names are imported when they are
first used, as the stub beside this file says, since :func:`otmd.compare` needs no Polars.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
