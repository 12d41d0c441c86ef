"""What the code of ``docs/for_engine_authors.md`` costs, beside a softmax of the same logits.

    python experiments/performance/engine_page.py
    python experiments/performance/engine_page.py --device cuda --positions 64

Both models' logits are random, with the shape of a language model's. Each part is repeated, and its least
time is printed, in milliseconds for the batch and in units of the softmax of one model's logits.
"""

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).parents[2] / "docs" / "for_engine_authors.md"


def page_code() -> dict[str, Any]:
    """The functions of the page."""
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    return names


def least(work: Callable[[], Any], repeats: int, device: str) -> float:
    """Seconds of the quickest of several calls."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
    return min(times)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Time the parts, print and return them in seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--top", type=int, default=1024, help="k, the tokens that are drafted from")
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    shape = (chosen.positions, chosen.vocabulary)
    logits = 3 * torch.randn(shape, device=chosen.device)
    other = logits + torch.randn(shape, device=chosen.device)
    target, drafted = logits.softmax(-1), other.softmax(-1)
    code, n = page_code(), chosen.drafts
    made = code["make_strata"](drafted, n, chosen.top)
    drafts = code["draft"](*made[1:], n)
    parts: dict[str, Callable[[], Any]] = {
        "softmax": lambda: logits.softmax(-1),
        "one draw from q": lambda: torch.multinomial(drafted, 1),
        "make_strata": lambda: code["make_strata"](drafted, n, chosen.top),
        "draft": lambda: code["draft"](*made[1:], n),
        "verify": lambda: code["verify"](target, *made, drafts),
    }
    taken = {name: least(work, chosen.repeats, chosen.device) for name, work in parts.items()}
    print(
        f"{chosen.positions} positions, V = {chosen.vocabulary}, k = {chosen.top}, n = {n}, {chosen.device}"
    )
    for name, seconds in taken.items():
        print(f"{name:16} {1e3 * seconds:9.2f} ms {seconds / taken['softmax']:7.1f} x softmax")
    return taken


if __name__ == "__main__":
    main()
