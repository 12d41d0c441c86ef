"""Optimal transport for multi-draft speculative decoding.

How well could any verifier do, how well does a given one do, and which one attains the optimum:
exactly, and at a language model's vocabulary. Names are imported when they are first used, so that
``import otmd`` is quick and needs neither torch nor a compiler. They are listed in ``__init__.pyi``.
"""

import lazy_loader

__version__ = "0.3.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name in __all__:
        return _load(name)
    from otmd.registry import nearest

    meant = "" if name.startswith("_") else nearest(name, __all__)
    raise AttributeError(f"otmd has no {name}" + (f": is otmd.{meant} meant?" if meant else ""))
