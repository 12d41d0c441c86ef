"""From two models' distributions along texts to a decision: which drafts, which rule, which tree."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
