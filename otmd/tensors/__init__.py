"""Rates, drafts, verification and losses on torch tensors, computed in float64 on the tensors' device.

The optimum for drafts with replacement and the rates of five verifiers, on tensors with any leading axes;
draft trees of strata, in ``layers.py``, a file to copy into an engine, which imports torch alone; losses for
drafters. The device must support float64 (CPU, CUDA). Importing this package imports torch; ``import otmd``
does not.
"""

from otmd.tensors.layers import (
    Level,
    LinkedTree,
    draft_adaptive_level,
    draft_level,
    from_links,
    make_strata,
    philox_uniforms,
    residual_masses,
    score_tree,
    sweep,
    to_links,
    top_tokens,
    tree_speculative_sampling_strata,
    verify,
    verify_tree,
)
from otmd.tensors.losses import acceptance_loss, tokens_per_step_loss
from otmd.tensors.probabilities import probs_from_logits
from otmd.tensors.rates import TensorRatioCurve, greedy_rates, target_only_rates

__all__ = [
    "Level",
    "LinkedTree",
    "TensorRatioCurve",
    "acceptance_loss",
    "draft_adaptive_level",
    "draft_level",
    "from_links",
    "greedy_rates",
    "make_strata",
    "philox_uniforms",
    "probs_from_logits",
    "residual_masses",
    "score_tree",
    "sweep",
    "target_only_rates",
    "to_links",
    "tokens_per_step_loss",
    "top_tokens",
    "tree_speculative_sampling_strata",
    "verify",
    "verify_tree",
]
