"""The style of figures: sizes in inches as printed, and colours for the colour-blind.

The palette is Okabe & Ito's (2008), with a dark red in place of its yellow, which is too faint on white.
"""

import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from otmd.probabilities import wrong
from otmd.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ONE_COLUMN = 3.4
TWO_COLUMNS = 7.0
INK = "#222222"
QUIET = "#6b6b6b"
FAINT = "#d9d9d9"
# The colour on a dark page for each colour; white becomes the background of that page.
DARK_PAGE = {
    "#ffffff": "#14181e",
    "#000000": "#f5f5f5",
    INK: "#e8e8e8",
    QUIET: "#a8a8a8",
    FAINT: "#454545",
    # Dark line colours, which could not be seen on a dark page.
    "#0072b2": "#2f8fd0",
    "#882255": "#b8487f",
    "#8a6d00": "#b08d1a",
    "#5a5a5a": "#9a9a9a",
}
# The metadata field in which each format keeps the source of its numbers.
SOURCE_KEYS = {".png": "Source", ".pdf": "Subject", ".svg": "Source"}


class Mark(NamedTuple):
    """The colour and marker of a verifier in every figure; each of the two identifies it."""

    colour: str
    marker: str


MARKS = {
    "TargetOnly": Mark("#E69F00", "v"),
    "RecursiveRejection": Mark("#D55E00", "o"),
    "KSequential": Mark("#0072B2", "s"),
    "SpecHub": Mark("#009E73", "D"),
    "GreedyCoupling": Mark("#CC79A7", "^"),
    "MaximalCoupling": Mark("#000000", "X"),
    "Preference": Mark("#882255", "<"),
    "Optimal": Mark("#56B4E9", "P"),
}
SPARE_MARKS = (Mark("#8a6d00", "h"), Mark("#5a5a5a", "d"), Mark("#7a2e00", "p"))

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 8,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    # Type 42 embeds fonts as TrueType, which journals ask for.
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    # With a fixed salt the same drawing gives the same file.
    "svg.hashsalt": "otmd",
    "savefig.dpi": 300,
    "figure.dpi": 150,
}


def figure_paths(paths: Sequence[str | Path], argument: str = "paths") -> list[Path]:
    """Return the paths; for an ending of no known format, raise ValueError that names the argument."""
    chosen = [Path(path) for path in paths]
    for path in chosen:
        if path.suffix not in SOURCE_KEYS:
            raise wrong(argument, path, f"an ending of {', '.join(SOURCE_KEYS)}")
    return chosen


def save_figure(
    make: "Callable[[], Figure]", paths: Sequence[str | Path], source: str, argument: str = "paths"
) -> list[Path]:
    """Make a figure in this style, save it in the formats of the paths' endings, and return the paths.

    For an SVG, a second file ``name-dark.svg`` is for dark pages. ``source`` goes to the files' metadata.
    """
    written = figure_paths(paths, argument)
    import matplotlib as mpl

    # This backend needs no display.
    mpl.use("Agg", force=False)
    with mpl.rc_context(RC):
        figure = make()
        for path in written:
            is_svg = path.suffix == ".svg"
            metadata: dict[str, Any] = {"Date": None} if is_svg else {}
            if source:
                metadata[SOURCE_KEYS[path.suffix]] = source
            drawn = io.BytesIO()
            figure.savefig(drawn, format=path.suffix[1:], metadata=metadata, transparent=is_svg)
            write_atomically(path, drawn.getvalue())
            if is_svg:
                dark = drawn.getvalue()
                for light, colour in DARK_PAGE.items():
                    dark = dark.replace(light.encode(), colour.encode())
                write_atomically(path.with_stem(f"{path.stem}-dark"), dark)
    return written


def marks(verifiers: list[str]) -> dict[str, Mark]:
    """The mark of each verifier; those without one in MARKS take the spare ones in turn."""
    spare = itertools.cycle(SPARE_MARKS)
    return {name: MARKS.get(name) or next(spare) for name in verifiers}
