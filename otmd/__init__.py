"""Optimal transport for multi-draft speculative decoding.

How well could any verifier do, how well does a given one do, and which one attains the optimum:
exactly, and at a language model's vocabulary. Names are imported when they are first used, so that
``import otmd`` is quick and needs neither torch nor a compiler. They are listed in ``__init__.pyi``.
"""

import lazy_loader

__version__ = "0.3.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
