"""Record what transformers' assisted generation does, for `otmd audit`.

Tested with transformers 5.24.0, which the tests of this project run it against.
"""

import json
from contextlib import contextmanager
from math import inf
from unittest.mock import patch

import transformers.generation.utils as generation
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator as Lookup


@contextmanager
def recorded(path):
    """Write a row for each position that assisted `generate(do_sample=True)` decides.

    With `assistant_model` the drafts are sampled: `otmd audit run.jsonl`. With `prompt_lookup_num_tokens`
    the text decides them: `otmd audit run.jsonl --law fixed`.
    """
    decide, look_up, step = generation._speculative_sampling, Lookup.get_candidates, 0

    def write_step(target_logits, draft_logits, draft_tokens, output_tokens):
        nonlocal step
        for depth, output_token in enumerate(output_tokens):
            row = {"step": step, "depth": depth, "target_logits": target_logits[depth]}
            if depth < len(draft_tokens):
                row["draft_tokens"] = [draft_tokens[depth]]
                if draft_logits is not None:
                    row["draft_logits"] = draft_logits[depth]
            # JSON has no infinity: null is −∞, a token that was cut.
            for side in {"target_logits", "draft_logits"} & row.keys():
                row[side] = [x if x > -inf else None for x in row[side]]
            file.write(json.dumps(row | {"output_token": output_token}) + "\n")
        step += 1

    def decide_and_write(ids, draft_logits, length, target_logits, *args, **kwargs):
        # Copied, since logits may be processed in place afterwards.
        p, q = (x[0].float().tolist() for x in (target_logits, draft_logits))
        tokens, matches = decide(ids, draft_logits, length, target_logits, *args, **kwargs)
        write_step(p, q, ids[0, -length:].tolist(), tokens[0, : int(matches) + 1].tolist())
        return tokens, matches

    def look_up_and_remember(self, ids, **kwargs):
        drafted, logits = look_up(self, ids, **kwargs)
        self.read, self.looked_up = ids.shape[1], drafted[0, ids.shape[1] :].tolist()
        return drafted, logits

    def write_lookup(self, ids, target_logits, matches):
        p = target_logits[0].float().tolist()
        write_step(p, None, self.looked_up, ids[0, self.read :].tolist())

    with (
        open(path, "w") as file,
        patch.object(generation, "_speculative_sampling", decide_and_write),
        patch.object(Lookup, "get_candidates", look_up_and_remember),
        patch.object(Lookup, "update_candidate_strategy", write_lookup),
    ):
        yield
