"""Rates and verifiers on torch tensors with any leading axes, computed on the tensors' device.

The optimum for drafts with replacement, the rates of five verifiers, stratified drafts with the preference
rule, whole draft trees, and losses for drafters. Everything is computed in float64, which the device must
support (CPU, CUDA). Importing this package imports torch; ``import otmd`` does not.
"""

from otmd.tensors.adaptive import draft_adaptive_level
from otmd.tensors.levels import TensorLevel, draft_level
from otmd.tensors.losses import (
    acceptance_loss,
    hybrid_loss,
    tokens_per_step_loss,
    total_variation_loss,
)
from otmd.tensors.preference import TensorPreference, TensorVerdict
from otmd.tensors.probabilities import probs_from_logits
from otmd.tensors.rates import TensorRatioCurve, greedy_rates, target_only_rates
from otmd.tensors.strata import TensorStrata, stratify
from otmd.tensors.trees import TensorLayerVerification, TreeVerdict

__all__ = [
    "TensorLayerVerification",
    "TensorLevel",
    "TensorPreference",
    "TensorRatioCurve",
    "TensorStrata",
    "TensorVerdict",
    "TreeVerdict",
    "acceptance_loss",
    "draft_adaptive_level",
    "draft_level",
    "greedy_rates",
    "hybrid_loss",
    "probs_from_logits",
    "stratify",
    "target_only_rates",
    "tokens_per_step_loss",
    "total_variation_loss",
]
