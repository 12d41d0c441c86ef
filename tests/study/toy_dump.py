"""A data set of random logits, three positions a prompt, in two domains."""

from pathlib import Path

import numpy as np
from collected import write_folder

VOCAB, PROMPTS, PER_PROMPT = 5, 6, 3


def write_dump(path: Path, prompts: int = PROMPTS, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    rows = prompts * PER_PROMPT
    target = rng.normal(0, 2, (rows, VOCAB))
    return write_folder(
        path,
        target_logits=target,
        draft_logits=target + rng.normal(0, 1, (rows, VOCAB)),
        prompt_id=[f"p{row // PER_PROMPT}" for row in range(rows)],
        domain=["code" if row < rows // 2 else "chat" for row in range(rows)],
        positions=[[row % PER_PROMPT] for row in range(rows)],
    )
