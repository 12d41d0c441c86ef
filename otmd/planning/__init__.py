"""From two models' distributions along texts to a decision: which drafts, which rule, which tree.

:func:`read_texts` groups a dataset's positions, :func:`drafted_chance` and :func:`steps_along` estimate
tokens per step of any law, rule and tree along them, and :func:`make_plan` ranks what could be done.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
