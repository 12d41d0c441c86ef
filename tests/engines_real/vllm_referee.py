"""vLLM's rejection sampler before the referee: ``python vllm_referee.py [DRAWS]``, where vLLM is installed.

On a CPU vLLM 0.32.0 leaves the temperature unwritten, so it is judged as shipped and as repaired.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# The referee alone: vLLM 0.32.0 does not start on a CPU in a process that has loaded Numba.
sys.path.insert(0, str(Path(__file__).parents[2] / "otmd" / "testing"))

import numpy as np
import referee
import torch
from vllm.platforms import current_platform
from vllm_engine import repair

current_platform.import_kernels()
current_platform.register_triton_kernel_overrides()

from vllm.v1.sample.logits_processor import LogitsProcessors  # noqa: E402
from vllm.v1.sample.metadata import SamplingMetadata  # noqa: E402
from vllm.v1.sample.rejection_sampler import RejectionSampler  # noqa: E402
from vllm.v1.sample.sampler import Sampler  # noqa: E402
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata  # noqa: E402

SAMPLER = RejectionSampler(Sampler())


def verify(
    target_probs: np.ndarray,
    draft_probs: np.ndarray,
    draft_tokens: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    torch.manual_seed(int(rng.integers(2**31)))
    batch, depth, size = draft_probs.shape
    rows = torch.arange(batch * (depth + 1)).reshape(batch, depth + 1)
    count = torch.arange(1, batch + 1, dtype=torch.int32)
    drafts = SpecDecodeMetadata(
        draft_token_ids=torch.from_numpy(draft_tokens).int().flatten(),
        num_draft_tokens=[depth] * batch,
        cu_num_draft_tokens=count * depth,
        cu_num_sampled_tokens=count * (depth + 1),
        target_logits_indices=rows[:, :-1].flatten(),
        bonus_logits_indices=rows[:, -1],
        logits_indices=rows.flatten(),
    )
    none = torch.empty(0)
    settings = SamplingMetadata(
        temperature=torch.ones(batch), all_greedy=False, all_random=True, top_p=None, top_k=None,
        generators={}, max_num_logprobs=None, no_penalties=True, prompt_token_ids=None,
        frequency_penalties=none, presence_penalties=none, repetition_penalties=none,
        output_token_ids=[], allowed_token_ids_mask=None, bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )  # fmt: skip
    q = torch.from_numpy(draft_probs).float().reshape(-1, size)
    logits = torch.from_numpy(target_probs).log().float().reshape(-1, size)
    return SAMPLER(drafts, q, logits, settings).sampled_token_ids.numpy()


if __name__ == "__main__":
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print("as shipped\n", referee.judge(verify, num_draws=draws), sep="")
    repair()
    print("repaired\n", referee.judge(verify, num_draws=draws), sep="")
