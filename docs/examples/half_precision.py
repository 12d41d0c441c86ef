"""The distance by which half precision moves a model's next-token distribution, and what an audit sees.

    python half_precision.py bfloat16 20000

The default model is loaded twice, in float32 and in the type named. At the positions of 64 prompts it draws
tokens from the second at temperature 1, and audits them against the logits of the first.
"""

import sys

import numpy as np

import otmd
from otmd.models import load_prompts, load_target


def recorded_rows(dtype, num_rows, rng):
    """Rows for `recorded_run` in random order, and the total variation at each position."""
    exact, rounded = load_target(progress=False), load_target(dtype=dtype, progress=False)
    rows, distances = [], []
    prompts = load_prompts(progress=False)
    texts = [exact.tokenizer(prompt.text).input_ids[:200] for prompt in prompts]
    draws = -(-num_rows // sum(map(len, texts)))
    for text in texts:
        logits = exact.logits(text)
        p, p_rounded = map(otmd.probs_from_logits, (logits, rounded.logits(text)))
        distances.append(np.abs(p - p_rounded).sum(axis=-1) / 2)
        for own_logits, probs in zip(logits, p_rounded, strict=True):
            tokens = rng.choice(probs.size, draws, p=probs)
            rows += [{"target_logits": own_logits, "output_token": int(token)} for token in tokens]
    return [rows[i] for i in rng.permutation(len(rows))[:num_rows]], np.concatenate(distances)


if __name__ == "__main__":
    dtype, num_rows = sys.argv[1], int(sys.argv[2])
    rows, distances = recorded_rows(dtype, num_rows, np.random.default_rng(0))
    print(f"{dtype}: mean total variation {distances.mean():.4f} at {distances.size:,} positions")
    print(otmd.audit.recorded_run(rows, "none").verdict)
