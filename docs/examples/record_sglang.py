"""Record what SGLang's target-only tree sampling does, for `otmd audit --law fixed`.

UNTESTED: written against sgl-kernel/csrc/speculative/speculative_sampling.cuh at 120affb9613c, and never run.
The names of the arguments are the kernel's; older releases spell them `retrive_…`. Replace the name in the
module that calls it (`sglang.srt.speculative`) by `recorded(name)` before the first request.
"""

import itertools
import json

_steps, _file = itertools.count(), open("run.jsonl", "a")  # noqa: SIM115


def recorded(decide):
    """Wrap `tree_speculative_sampling_target_only`, called with keywords."""

    def decide_and_write(**given):
        probs = given["target_probs"].float().cpu()
        decide(**given)
        names = ("candidates", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
        tokens, places, children, siblings = (given[name].tolist() for name in names)
        predicts = given["predicts"].tolist()
        for request in range(len(tokens)):
            step, node, depth = next(_steps), 0, 0
            while node >= 0:
                drafted, child = {}, children[request][node]
                while child >= 0:
                    drafted[tokens[request][child]] = child
                    child = siblings[request][child]
                output = predicts[places[request][node]]
                row = {"step": step, "depth": depth, "target_probs": probs[request, node].tolist()}
                row |= {"draft_tokens": list(drafted), "output_token": output}
                _file.write(json.dumps(row) + "\n")
                node, depth = drafted.get(output, -1), depth + 1
        _file.flush()

    return decide_and_write
