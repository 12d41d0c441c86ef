"""Record what transformers' assisted generation does, for `otmd audit` and `otmd plan`.

Tested with transformers 5.23.0, which the tests of this project run it against.
"""

import json
from contextlib import contextmanager

import numpy as np
import torch
import transformers.generation.utils as generation


@contextmanager
def recorded(path):
    """Write a row for each position that `generate(assistant_model=…, do_sample=True)` decides."""
    decide, step = generation._speculative_sampling, 0

    def decide_and_write(ids, draft_logits, length, target_logits, *args, **kwargs):
        nonlocal step
        # Copied, since logits may be processed in place afterwards.
        p, q = (x[0].float().tolist() for x in (target_logits, draft_logits))
        tokens, matches = decide(ids, draft_logits, length, target_logits, *args, **kwargs)
        for depth in range(int(matches) + 1):
            row = {"step": step, "depth": depth, "target_logits": p[depth]}
            if depth < length:
                row |= {"draft_logits": q[depth], "draft_tokens": [int(ids[0, depth - length])]}
            # JSON has no infinity: a token that was cut gets a logit that no token survives.
            cut = {k: [max(x, -1e30) for x in v] for k, v in row.items() if k.endswith("logits")}
            file.write(json.dumps(row | cut | {"output_token": int(tokens[0, depth])}) + "\n")
        step += 1
        return tokens, matches

    with open(path, "w") as file:
        generation._speculative_sampling = decide_and_write
        try:
            yield
        finally:
            generation._speculative_sampling = decide


def write_texts(path, target, draft, texts, temperature):
    """Write both models' raw logits along texts that the target sampled: `otmd plan`.

    `texts` are (prompt id, domain, prompt tokens, sampled tokens).
    """
    columns = {
        name: []
        for name in ("target_logits", "draft_logits", "prompt_id", "domain", "position", "token")
    }
    for name, domain, prompt, answer in texts:
        ids, count = torch.tensor([[*prompt, *answer]]), len(answer)
        with torch.inference_mode():
            for key, model in (("target_logits", target), ("draft_logits", draft)):
                columns[key].append(model(ids).logits[0, -count - 1 : -1].float().numpy())
        columns["prompt_id"] += [name] * count
        columns["domain"] += [domain] * count
        columns["position"] += range(len(prompt), len(prompt) + count)
        columns["token"] += answer
    for key in ("target_logits", "draft_logits"):
        columns[key] = np.concatenate(columns[key])
    np.savez(path, **columns, metadata=json.dumps({"temperature": temperature}))
