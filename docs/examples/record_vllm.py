"""Record what vLLM's rejection sampler does, for `otmd audit`.

UNTESTED: written against vllm/v1/sample/rejection_sampler.py at 7f6fc1c5ce8d, and never run. Import it in the
process that samples, before the first request (a plugin, or the top of the serving script).
"""

import itertools
import json

import vllm.v1.sample.rejection_sampler as sampler

_decide, _steps, _file = sampler.rejection_sample, itertools.count(), open("run.jsonl", "a")  # noqa: SIM115


def rejection_sample(drafts, counts, longest, ends, draft_probs, target_probs, bonus, settings):
    """Decide, and write a row for each draft that was looked at."""
    p = target_probs.float().cpu()
    q = None if draft_probs is None else draft_probs.float().cpu()
    output = _decide(drafts, counts, longest, ends, draft_probs, target_probs, bonus, settings)
    start = 0
    for request, count in enumerate(counts):
        step = next(_steps)
        for depth in range(count):
            token = int(output[request, depth])
            # Rejected before this depth.
            if token < 0:
                break
            at = start + depth
            row = {"step": step, "depth": depth, "target_probs": p[at].tolist()}
            if q is not None:
                row["draft_probs"] = q[at].tolist()
            row |= {"draft_tokens": [int(drafts[at])], "output_token": token}
            _file.write(json.dumps(row) + "\n")
        start += count
    _file.flush()
    return output


sampler.rejection_sample = rejection_sample
