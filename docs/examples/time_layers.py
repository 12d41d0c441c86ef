"""Times of drafting and verifying by otmd/tensors/layers.py: processor time of a thread, or time on a GPU."""

import sys
import time
from collections.abc import Callable

import torch

from otmd.tensors import draft_level, top_tokens, verify, verify_tree

VOCAB, K, REQUESTS, DRAFTS = 151_936, 1024, 8, 4
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
CLOCK = time.process_time if DEVICE == "cpu" else time.perf_counter


def milliseconds(call: Callable[[], object]) -> float:
    """The shortest of 20 calls, after one that is not timed."""
    times = []
    for _ in range(21):
        start = CLOCK()
        call()
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        times.append(CLOCK() - start)
    return 1000 * min(times[1:])


torch.set_num_threads(1)
torch.manual_seed(0)
logits = 2.5 * torch.randn((REQUESTS, VOCAB), device=DEVICE)
q, p = logits.softmax(-1)[:, None], (logits + torch.randn_like(logits)).softmax(-1)[:, None]
row = top_tokens(q, K)
level = draft_level(*row, DRAFTS)
rows = p.expand(-1, 1 + DRAFTS, -1).contiguous()
for name, call in {
    "softmax of a row of logits": lambda: logits.softmax(-1),
    "torch.topk": lambda: q.topk(K),
    "top_tokens": lambda: top_tokens(q, K),
    "a draw by torch.multinomial": lambda: torch.multinomial(q[:, 0], 1),
    "draft_level": lambda: draft_level(*row, DRAFTS),
    "verify, one position": lambda: verify(p[:, 0], level),
    "verify_tree, four drafts": lambda: verify_tree(rows, [level]),
    "the same, rounds=4, passes=1": lambda: verify_tree(rows, [level], rounds=4, passes=1),
}.items():
    print(f"{name:32} {milliseconds(call):7.2f} ms")
