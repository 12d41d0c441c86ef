"""Draw figures, and fill in the tables of ``docs/claims.md``, from stored results.

python -m paper_figures
python -m paper_figures laws theory_cut
python -m paper_figures laws --results runs/mine.parquet --output figures/mine.pdf
python -m paper_figures --stale

Without names, all are made; with --stale, the figures that were drawn by other code or from other results. A
figure goes to ``docs/images`` as an SVG, with a second one for dark pages; its metadata name the command, and
a digest of the code and the results. ``claims`` is the name of the tables.
"""

import argparse
import hashlib
import shlex
import sys
from pathlib import Path

from otmd.study import draw_gaps, load_results, summarise
from otmd.study.style import save_figure
from paper_figures import acceptance, claims, cost, theory, trees
from paper_figures.common import RESULTS

FIGURES = {
    "tokens_per_step": (trees.tokens_per_step, "demo_trees"),
    "choice": (acceptance.choice, "draft_laws"),
    "laws": (acceptance.laws, "real_positions"),
    "domain_rates": (acceptance.domain_rates, "real_positions"),
    "draft_quality": (acceptance.draft_quality, "draft_quality"),
    "spectr_acceptance": (acceptance.spectr_acceptance, "spectr_acceptance"),
    "spechub": (acceptance.spechub, "spechub_toy"),
    "spectr_paths": (trees.spectr_paths, "spectr_paths"),
    "spechub_depths": (trees.spechub_depths, "spechub_depths"),
    "sequence_optimum": (trees.sequence_optimum, "sequence_optimum"),
    "peers": (cost.peers, "peers"),
}
"""Function of the results' path, and the name of the stored results, by the name of the figure."""

THEORY = {f"theory_{draw.__name__}": draw for draw in theory.FIGURES}
NAMES = ("gaps", *FIGURES, *THEORY, "claims")
DRAWN = NAMES[:-1]
IMAGES = Path("docs/images")


def make(name: str, results: Path | None, output: list[Path]) -> list[Path]:
    """Draw a figure, or fill in the tables; return the files that were written."""
    if name == "claims":
        return [claims.fill()]
    figures = output or [IMAGES / f"{name}.svg"]
    command = f"python -m paper_figures {name}"
    if name in THEORY:
        return save_figure(THEORY[name], figures, f"{command} ({digest(name)})", "--output")
    path = results or stored(name)
    source = f"{command} --results {shlex.quote(str(path))} ({digest(name, path)})"
    if name == "gaps":
        return draw_gaps(summarise(load_results(path)), figures, source=source)
    draw, _ = FIGURES[name]
    return save_figure(lambda: draw(path), figures, source, "--output")


def stored(name: str) -> Path:
    """The stored results that a figure is drawn from."""
    return RESULTS / f"{FIGURES[name][1] if name in FIGURES else name}.parquet"


def digest(name: str, results: Path | None = None) -> str:
    """A hash of twelve digits of what a figure is drawn from: its results, and the file of its code."""
    draw = draw_gaps if name == "gaps" else THEORY[name] if name in THEORY else FIGURES[name][0]
    code = Path(draw.__code__.co_filename).read_bytes()
    return hashlib.sha256(code + (results.read_bytes() if results else b"")).hexdigest()[:12]


def stale() -> list[str]:
    """The figures that are missing, or were drawn by other code or from other results."""
    outdated = []
    for name in DRAWN:
        mark = f"({digest(name, None if name in THEORY else stored(name))})"
        path = IMAGES / f"{name}.svg"
        if not path.is_file() or mark not in path.read_text("utf-8"):
            outdated.append(name)
    return outdated


def main(arguments: list[str]) -> None:
    """Make what is asked for, and print the paths."""
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--results", type=Path, help="of one figure, instead of the stored ones")
    parser.add_argument("--stale", action="store_true", help="figures that are not up to date alone")
    parser.add_argument("--output", type=Path, nargs="+", default=[], help=".svg, .pdf or .png")
    chosen = parser.parse_args(arguments)
    unknown = sorted({*chosen.names} - {*NAMES})
    if unknown:
        parser.error(f"NAME: got {unknown}, expected some of {', '.join(NAMES)}")
    if (chosen.results or chosen.output) and len(chosen.names) != 1:
        parser.error(f"--results and --output: got {len(chosen.names)} names, expected one")
    if chosen.stale and chosen.names:
        parser.error(f"--stale: got {chosen.names} too, expected no names")
    for name in stale() if chosen.stale else chosen.names or NAMES:
        for path in make(name, chosen.results, chosen.output):
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
