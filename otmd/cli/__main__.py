"""``python -m otmd.cli``: the same as ``otmd``."""

import sys

from otmd.cli import main

if __name__ == "__main__":
    sys.exit(main())
