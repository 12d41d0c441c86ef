"""Time of the code of ``docs/for_engine_authors.md``, compared with a softmax of the same logits.

    python -m experiments engine_page
    python -m experiments engine_page --device cuda --positions 64

Both models' logits are random, with the shape of a language model's. ``--top`` is k, the tokens that are
drafted from. Each part is repeated, and its least time is printed, in milliseconds for the batch and in units
of the softmax of one model's logits.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from experiments.runner import options

PAGE = Path(__file__).parents[2] / "docs" / "for_engine_authors.md"


def page_code() -> dict[str, Any]:
    """The functions of the page."""
    block = re.search(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {}
    exec(block[1], names)
    return names


def best_seconds(task: Callable[[], object], device: str, rounds: int) -> float:
    """The best of several rounds, after one that does not count; the device has finished each."""
    best = float("inf")
    for number in range(rounds + 1):
        start = perf_counter()
        task()
        if device != "cpu":
            torch.cuda.synchronize(device)
        if number:
            best = min(best, perf_counter() - start)
    return best


def main(arguments: list[str]) -> dict[str, float]:
    """Time the parts, print and return them in seconds."""
    sizes = {"positions": 8, "vocabulary": 151_936, "top": 1024, "drafts": 4}
    chosen = options(__name__, arguments, **sizes, repeats=20, device="cpu", threads=1)
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    logits = 3 * torch.randn((chosen.positions, chosen.vocabulary), device=chosen.device)
    draft_logits = logits + torch.randn_like(logits)
    target = logits.softmax(-1)
    drafted = draft_logits.softmax(-1)
    code = page_code()
    n = chosen.drafts
    strata = code["make_strata"](drafted, n, chosen.top)
    drafts = code["draft"](*strata[1:], n)
    parts = {
        "softmax": partial(logits.softmax, -1),
        "one draw from q": partial(torch.multinomial, drafted, 1),
        "make_strata": partial(code["make_strata"], drafted, n, chosen.top),
        "draft": partial(code["draft"], *strata[1:], n),
        "verify": partial(code["verify"], target, *strata, drafts),
    }
    rounds = chosen.repeats
    seconds = {name: best_seconds(work, chosen.device, rounds) for name, work in parts.items()}
    at = f"{chosen.positions} positions, V = {chosen.vocabulary}"
    print(f"{at}, k = {chosen.top}, n = {n}, {chosen.device}")
    for name, time in seconds.items():
        print(f"{name:16} {1e3 * time:9.2f} ms {time / seconds['softmax']:7.1f} x softmax")
    return seconds
