"""Rates and gaps to the optimum, measured at every position of a dataset, summarised and drawn.

Names are imported when they are first used, since :func:`otmd.compare` needs no Polars. The stub next to this
file lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
