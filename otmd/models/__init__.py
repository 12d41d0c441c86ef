"""Real models: collect next-token distributions, store them, read them again.

Names are loaded when they are used: importing this package imports neither torch nor transformers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
