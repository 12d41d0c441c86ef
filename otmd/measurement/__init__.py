"""Positions × laws × verifiers: rates and gaps measured on a dataset, summarised and drawn.

Names are imported when they are first used, as the stub beside this file says, since :func:`otmd.compare`
needs no Polars.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
