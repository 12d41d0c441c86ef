"""Run an experiment: ``python -m experiments NAME [options]``; without a name, list them all."""

import ast
import importlib
import sys
from pathlib import Path

from experiments.performance.timing import use_one_thread

FOLDER = Path(__file__).parent


def scripts() -> dict[str, Path]:
    """The experiments by name: the modules of the folders that have a function ``main``."""
    return {
        path.stem: path for path in sorted(FOLDER.glob("*/*.py")) if "\ndef main(" in path.read_text("utf-8")
    }


def main(arguments: list[str]) -> None:
    """Run the experiment that is named first, with the options that follow."""
    paths = scripts()
    name = arguments[0] if arguments else ""
    if name in paths:
        module = importlib.import_module(f"experiments.{paths[name].parent.name}.{name}")
        if getattr(module, "ONE_THREAD", False):
            use_one_thread()
        module.main(arguments[1:])
        return
    for script, path in paths.items():
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        print(f"{path.parent.name:12} {script:22} {docstring.partition(chr(10))[0]}")
    if name not in {"", "-h", "--help"}:
        sys.exit(f"\nNAME: got {name!r}, expected one of these")


if __name__ == "__main__":
    main(sys.argv[1:])
