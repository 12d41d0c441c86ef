"""Rates on torch tensors: any leading axes, computed on the device that the tensors are on.

The optimum for drafts with replacement, the rates of five verifiers, and stratified drafts with the
preference rule, which are drafted and verified where a model left its probabilities. Importing this
package imports torch; ``import otmd`` does not.
The device needs float64 arithmetic (CPU, CUDA), in which masses are added.
"""

from otmd.tensors.preference import TensorPreference, TensorVerdict
from otmd.tensors.probabilities import probs_from_logits
from otmd.tensors.rates import greedy_rates, spechub_rate, target_only_rates
from otmd.tensors.ratio_curve import TensorRatioCurve
from otmd.tensors.strata import TensorStrata, stratify

__all__ = [
    "TensorPreference",
    "TensorRatioCurve",
    "TensorStrata",
    "TensorVerdict",
    "greedy_rates",
    "probs_from_logits",
    "spechub_rate",
    "stratify",
    "target_only_rates",
]
