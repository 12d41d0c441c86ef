"""Time and bytes of a recorded row at a language model's vocabulary, in softmaxes; one thread.

    python -m experiments recording
    python -m experiments recording --vocab-size 1000 --rounds 1

A row has float32 logits of the target and of the draft, one draft token and an output token. Its recording and
the softmax of its target in float64 are timed in turn, round by round, and the best round of each counts. Times
are the processor's for this thread. Whole rows are written to disk every 64 MB, which other calls do not wait for.
"""

from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

import numpy as np

import otmd
from experiments.performance.timing import best_times
from experiments.runner import markdown, options

ONE_THREAD = True
SETTINGS = {
    "none": {},
    "top-k": {"target_top_k": 50, "draft_top_k": 50},
    "top-p": {"target_top_p": 0.95, "draft_top_p": 0.95},
}


def main(arguments: list[str]) -> None:
    """Print a row for each kind of recording and cut of the distributions."""
    defaults: dict[str, Any] = {"vocab_size": 151_936, "rounds": 30}
    chosen = options(__name__, arguments, **defaults)
    rng = np.random.default_rng(0)
    target_logits = rng.normal(scale=3.0, size=chosen.vocab_size).astype(np.float32)
    draft_logits = target_logits + rng.normal(size=chosen.vocab_size).astype(np.float32)
    best = int(draft_logits.argmax())
    row = {"target_logits": target_logits, "draft_logits": draft_logits}
    row |= {"draft_tokens": [best], "output_token": int(target_logits.argmax())}
    lines = []
    with TemporaryDirectory() as folder:
        for keep in ("numbers", "rows"):
            for cut, settings in SETTINGS.items():
                path = Path(folder) / f"{keep}-{cut}"
                lines.append([keep, cut, *_cost(path, keep, row | settings, chosen.rounds)])
    print(markdown(("keep", "cut", "ms a row", "softmaxes", "bytes a row"), lines))


def _cost(path: Path, keep: str, row: dict[str, Any], rounds: int) -> list[str]:
    numbers = count()
    softmax = partial(otmd.probs_from_logits, row["target_logits"])
    with otmd.audit.Recorder(path, keep) as recorder:
        runs = {
            "softmax": softmax,
            "row": lambda: recorder.add(**row, request=next(numbers)),
        }
        seconds = best_times(runs, rounds, thread_time)
    num_bytes = sum(file.stat().st_size for file in path.glob("*s*.*s*"))
    relative = seconds["row"] / seconds["softmax"]
    return [f"{1e3 * seconds['row']:.2f}", f"{relative:.1f}", f"{num_bytes / next(numbers):,.0f}"]
