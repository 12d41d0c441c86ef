"""Rates on torch tensors: any leading axes, computed on the device that the tensors are on.

The optimum for drafts with replacement and the rates of five verifiers, from probabilities or logits
that stay where a model left them. Importing this package imports torch; ``import otmd`` does not.
The device needs float64 arithmetic (CPU, CUDA), in which masses are added.
"""

from otmd.tensors.probabilities import probs_from_logits
from otmd.tensors.rates import greedy_rates, spechub_rate, target_only_rates
from otmd.tensors.ratio_curve import TensorRatioCurve

__all__ = [
    "TensorRatioCurve",
    "greedy_rates",
    "probs_from_logits",
    "spechub_rate",
    "target_only_rates",
]
