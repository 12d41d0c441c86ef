"""Time of the code of ``docs/for_engine_authors.md``, compared with a softmax of the same logits.

    python -m experiments engine_page
    python -m experiments engine_page --device cuda --positions 64

Both models' logits are random, with the shape of a language model's. ``--top`` is k, the tokens that are
drafted from. ``--nodes`` is the size of a draft tree, of 3 m + 1 nodes. Each part is repeated, and its least
time is printed, in milliseconds for the batch and in units of the softmax of the same logits.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from experiments.runner import options

PAGE = Path(__file__).parents[2] / "docs" / "for_engine_authors.md"


def page_code() -> dict[str, Any]:
    """The functions of the page."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert blocks
    names: dict[str, Any] = {}
    exec("\n".join(blocks), names)
    return names


def best_seconds(task: Callable[[], object], device: str, rounds: int) -> float:
    """The best of several rounds, after one that does not count; the device has finished each.

    On a CPU it is the processor's time, which waits for no other process.
    """
    best = float("inf")
    clock = process_time if device == "cpu" else perf_counter
    for number in range(rounds + 1):
        start = clock()
        task()
        if device != "cpu":
            torch.cuda.synchronize(device)
        if number:
            best = min(best, clock() - start)
    return best


def main(arguments: list[str]) -> dict[str, float]:
    """Time the parts, print and return them in seconds."""
    sizes = {"positions": 8, "vocabulary": 151_936, "top": 1024, "drafts": 4, "nodes": 16}
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
    at = f"{chosen.positions} positions, V = {chosen.vocabulary}"
    print(f"{at}, k = {chosen.top}, n = {n}, {chosen.device}")
    seconds = timed(parts, "softmax", chosen)
    logits = 3 * torch.randn(
        (chosen.positions, chosen.nodes, chosen.vocabulary), device=chosen.device
    )
    parts = tree_parts(code, logits, chosen.top)
    print(f"trees of {chosen.nodes} nodes at each position, 3 in a layer")
    return seconds | timed(parts, "softmax of the nodes", chosen)


def tree_parts(
    code: dict[str, Any], logits: torch.Tensor, top: int
) -> dict[str, Callable[[], object]]:
    """The timed functions of whole trees, for logits (B, N, V): 3 drafts, then one after each."""
    count, num_nodes, _ = logits.shape
    target = logits.softmax(-1)
    drafted = (logits + torch.randn_like(logits)).softmax(-1)
    root = torch.zeros((count, 1), dtype=torch.int64, device=logits.device)
    layer = torch.arange(3, device=logits.device).expand(count, 3)
    levels = [code["draft_level"](drafted[:, :1], root, 3, top)]
    for first in range(1, num_nodes - 3, 3):
        after = drafted[:, first : first + 3]
        levels.append(code["draft_level"](after, layer, 1, top))
    return {
        "softmax of the nodes": partial(logits.softmax, -1),
        "draft_level": partial(code["draft_level"], drafted[:, 1:4], layer, 1, top),
        "score_tree": partial(code["score_tree"], target, levels),
        "verify_tree": partial(code["verify_tree"], target, levels),
    }


def timed(parts: dict[str, Callable[[], object]], unit: str, chosen: Any) -> dict[str, float]:
    """The least time of each part, in seconds; printed in ms and in units of one of them."""
    seconds = {
        name: best_seconds(work, chosen.device, chosen.repeats) for name, work in parts.items()
    }
    for name, time in seconds.items():
        print(f"{name:20} {1e3 * time:9.2f} ms {time / seconds[unit]:7.1f} x {unit}")
    return seconds
