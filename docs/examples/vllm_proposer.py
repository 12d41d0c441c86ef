"""A drafter of your own in vLLM, whose drafts are tested against the distribution that they are sampled from.

vLLM takes such a class as `{"method": "custom_class", "model": "vllm_proposer.SampledDrafts",
"num_speculative_tokens": 3}`, and reads token ids alone from it: it would treat them as deterministic. So
`hand_over_draft_probs` gives the runner the distributions, as vLLM does for draft models of its own. Written
for vLLM 0.32.0; the environment variable `OTMD_DRAFT` names the draft model.
"""

import functools
import os

import numpy as np
import torch
import transformers
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

TEMPERATURE = 0.8


class SampledDrafts:
    """Drafts that a model of transformers samples, one chain for each request."""

    def __init__(self, vllm_config):
        name = os.environ["OTMD_DRAFT"]
        self.model = transformers.AutoModelForCausalLM.from_pretrained(name, trust_remote_code=False).eval()
        self.num_drafts = vllm_config.speculative_config.num_speculative_tokens
        self.draft_probs = None

    def load_model(self, *args, **kwargs):
        """Nothing: the model is loaded already."""

    @torch.inference_mode()
    def propose(self, sampled_token_ids, num_tokens, token_ids, slot_mappings=None):
        """Token ids (n,) for each request, none for one whose prompt is not read yet."""
        num_requests = len(sampled_token_ids)
        vocab_size = self.model.config.vocab_size
        self.draft_probs = torch.zeros(num_requests, self.num_drafts, vocab_size)
        drafts = []
        for request, sampled in enumerate(sampled_token_ids):
            text = np.array(token_ids[request, : num_tokens[request]], np.int64)
            drafts.append(self._sample(text, self.draft_probs[request]) if sampled else [])
        return drafts

    def _sample(self, text, probs):
        """Sample a chain of drafts, and write the distribution of each into ``probs`` (n, V)."""
        text = torch.from_numpy(text)
        start = len(text)
        for row in probs:
            logits = self.model(text[None]).logits[0, -1].float()
            row.copy_(torch.softmax(logits / TEMPERATURE, dim=-1))
            text = torch.cat([text, torch.multinomial(row, 1)])
        return text[start:].tolist()


def hand_over_draft_probs(propose):
    """Wrap the method that asks for drafts: the runner tests them against the distributions that it keeps."""

    @functools.wraps(propose)
    def propose_and_keep(runner, *args, **kwargs):
        drafts = propose(runner, *args, **kwargs)
        if isinstance(runner.drafter, SampledDrafts):
            runner._draft_probs = runner.drafter.draft_probs.to(runner.device)
            runner._draft_prob_req_ids = runner.input_batch.req_ids.copy()
        return drafts

    return propose_and_keep


GPUModelRunner.propose_draft_token_ids = hand_over_draft_probs(GPUModelRunner.propose_draft_token_ids)
