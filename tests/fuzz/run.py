"""Fuzz the targets with atheris, guided by coverage: ``make fuzz SECONDS=60``.

Each fault is kept as a file ``fault-HASH`` beside the target's corpus, once for each place in the code, and
the exit code is 1 where there is one. ``python tests/fuzz/run.py TARGET FILE`` runs one input again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

TARGETS = ("probabilities", "laws", "records", "datasets", "command_line")
RUNS = Path("runs/fuzz")
SLOWEST_SECONDS, LARGEST_MEGABYTES, LONGEST_INPUT = 20, 2048, 4096
# The fuzzer itself keeps about a kilobyte for each input that it ran.
MOST_MEGABYTES = 8192


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", choices=TARGETS, help="all of them unless given")
    parser.add_argument("again", nargs="?", type=Path, help="a file with one input")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.again:
        warnings.simplefilter("error")
        import_module(f"fuzz.{given.target}").one_input(given.again.read_bytes())
        return 0
    if given.inside:
        fuzz(given.target, given.seconds)
    # Or compiling would count as the time of an input.
    subprocess.run(
        [sys.executable, "-c", "from otmd.cli.warmup import warmup; warmup()"], check=True
    )
    chosen = [given.target] if given.target else TARGETS
    return max([fuzz_apart(target, given.seconds) for target in chosen])


def fuzz_apart(target: str, seconds: int) -> int:
    """Fuzz in a process of its own, which a fault in compiled code would end; 1 for faults."""
    folder = RUNS / target
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    before, end = faults(folder), time.monotonic() + seconds
    while True:
        left = max(1, round(end - time.monotonic()))
        command = [sys.executable, __file__, target, "--inside", "--seconds", str(left)]
        ended = subprocess.run(command, check=False).returncode
        found = faults(folder) - before
        new = {path for path in found if not of_pyarrow(target, path)}
        if new or not found or time.monotonic() > end:
            break
    for path in sorted(new):
        print(f"{target}: python {__file__} {target} {path}")
    return int(bool(new) or (ended != 0 and not found))


def of_pyarrow(target: str, path: Path) -> bool:
    """Whether pyarrow ended the process, as it does where a file's size statistics contradict its schema.

    No Python code can catch that: see apache/arrow#45283. The input is removed.
    """
    command = [sys.executable, __file__, target, str(path)]
    said = subprocess.run(command, check=False, capture_output=True).stderr
    found = b"level histogram size mismatch" in said
    if found:
        path.unlink()
    return found


def faults(folder: Path) -> set[Path]:
    """What ended the fuzzer, or was noted by it."""
    kinds = ("fault", "crash", "timeout", "oom")
    return {path for kind in kinds for path in folder.glob(f"{kind}-*")}


def fuzz(target: str, seconds: int) -> None:
    """Run the fuzzer, which ends the process."""
    import atheris

    # Kernels are compiled from their bytecode, so they must have their own.
    kernels = [
        ".".join(path.relative_to(Path.cwd()).with_suffix("").parts)
        for path in (Path.cwd() / "otmd").rglob("*.py")
        if "@kernel(" in path.read_text()
    ]
    with atheris.instrument_imports(include=["otmd"], exclude=[*kernels, "otmd.kernel"]):
        one_input = import_module(f"fuzz.{target}").one_input
    warnings.simplefilter("error")
    folder = RUNS / target
    sow(folder / "corpus")
    atheris.Setup(
        [
            sys.argv[0],
            str(folder / "corpus"),
            f"-max_total_time={seconds}",
            f"-timeout={SLOWEST_SECONDS}",
            f"-malloc_limit_mb={LARGEST_MEGABYTES}",
            f"-rss_limit_mb={MOST_MEGABYTES}",
            f"-max_len={LONGEST_INPUT}",
            # Choices are read from the front: short inputs leave most of them at zero.
            "-len_control=0",
            f"-artifact_prefix={folder}/",
            "-print_final_stats=1",
            "-verbosity=0",
        ],
        noting_faults(one_input, folder),
    )
    atheris.Fuzz()


def sow(corpus: Path) -> None:
    """Begin an empty corpus with random inputs of all lengths."""
    if not any(corpus.iterdir()):
        rng = random.Random(0)
        for number in range(200):
            (corpus / f"seed-{number:03}").write_bytes(rng.randbytes(rng.randrange(600)))


def noting_faults(one_input: Callable[[bytes], None], folder: Path) -> Callable[[bytes], None]:
    """The target, its faults written down and survived, each place once."""
    seen: set[str] = set()

    def noting(data: bytes) -> None:
        try:
            one_input(data)
        except Exception as error:
            place = str([type(error), *traceback.extract_tb(error.__traceback__)[-1][:2]])
            if place not in seen:
                seen.add(place)
                name = hashlib.sha256(place.encode()).hexdigest()[:12]
                (folder / f"fault-{name}").write_bytes(data)
                traceback.print_exc()
                sys.stderr.flush()

    return noting


if __name__ == "__main__":
    # Compiled with bounds checks, so in a folder of their own.
    own = {"NUM_THREADS": "1", "BOUNDSCHECK": "1", "CACHE_DIR": str(RUNS / "kernels")}
    for name, value in own.items():
        os.environ.setdefault(f"NUMBA_{name}", value)
    sys.exit(main())
