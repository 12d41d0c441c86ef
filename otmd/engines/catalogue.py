"""The rules that inference engines run, each with the file that it was read in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts import DraftLaw, Greedy, Stratified, TopThen, WithoutReplacement, WithReplacement
from otmd.engines.lossy import (
    Ensemble,
    LossyRule,
    RatioTest,
    RelaxedTopK,
    Thresholds,
    Typical,
)
from otmd.optimum.acceptance import optimal_acceptance
from otmd.probabilities import FloatArray, validate_count, validate_probs, validate_same_vocabulary
from otmd.verifiers import MaximalCoupling, RecursiveRejection, TargetOnly, Verifier

READ = "2026-11-22"


class Source(NamedTuple):
    """Where a rule was read: project, file, commit or version, and the day."""

    project: str
    file: str
    commit: str
    read: str = READ

    def __str__(self) -> str:
        return f"{self.project}, {self.file} at {self.commit[:12]}, read {self.read}"


def certain_top(draft_probs: ArrayLike, num_drafts: int) -> TopThen:
    """The n likeliest tokens, all certain."""
    return TopThen(draft_probs, num_drafts, top=num_drafts)


@dataclass(frozen=True)
class EngineRule:
    """One way in which engines draft and verify at a position.

    Attributes
    ----------
    name : str
        Its key in :data:`CATALOGUE`.
    title : str
        What is drafted and how it is verified.
    sources : tuple of Source
        The engines' files that say so.
    rule : Verifier or LossyRule
        What decides; a Verifier is lossless.
    drafts : callable, optional
        ``law(draft_probs, num_drafts)`` of a lossless rule; a lossy one brings its own.
    most_drafts : int, optional
        How many drafts a position may have; none for any number.
    block : bool
        Whether a whole path is judged at once. At one position it is the rule that is named.
    """

    name: str
    title: str
    sources: tuple[Source, ...]
    rule: Verifier | LossyRule
    drafts: Callable[[ArrayLike, int], DraftLaw] | None = None
    most_drafts: int | None = None
    block: bool = False

    @property
    def lossless(self) -> bool:
        """Whether the output is distributed as the target says."""
        return isinstance(self.rule, Verifier)

    def law(self, draft_probs: FloatArray, num_drafts: int) -> DraftLaw:
        """The law of the drafts at one position."""
        self._check(num_drafts)
        if isinstance(self.rule, LossyRule):
            return self.rule.law(draft_probs, num_drafts)
        assert self.drafts is not None
        return self.drafts(draft_probs, num_drafts)

    def judge(
        self, target_probs: ArrayLike, draft_probs: ArrayLike, num_drafts: int = 1
    ) -> "Verdict":
        """What the rule does at one position, exactly.

        Parameters
        ----------
        target_probs, draft_probs : array_like, shape (V,)
            p and q.
        num_drafts : int
            How many tokens are drafted.

        Returns
        -------
        Verdict

        Raises
        ------
        ValueError
            For invalid distributions, or more drafts than the rule takes.
        """
        self._check(num_drafts)
        p, q = (
            validate_probs("target_probs", target_probs),
            validate_probs("draft_probs", draft_probs),
        )
        validate_same_vocabulary(p, q.size)
        best = best_known(p, q, num_drafts)
        if isinstance(self.rule, Verifier):
            law = self.law(q, num_drafts)
            low, high = self.rule.acceptance_bounds(p, law, tol=1e-4)
            return Verdict(self.name, 0.5 * (float(low) + float(high)), best, p, 0.0, 0.0)
        output, rate = self.rule.output_law(p, q, num_drafts)
        return Verdict(self.name, rate, best, output, *distances(output, p))

    def _check(self, num_drafts: int) -> None:
        validate_count("num_drafts", num_drafts)
        if self.most_drafts is not None and num_drafts > self.most_drafts:
            raise ValueError(
                f"num_drafts: got {num_drafts}, wanted at most {self.most_drafts}: {self.title}"
            )


class Verdict(NamedTuple):
    """A rule at one position.

    ``rate`` is P(the output is a draft) and ``best`` the largest that a lossless rule attains with as many
    drafts of a law in otmd. ``output`` (V,) is the law of the output, at ``total_variation`` and ``divergence``
    KL(output ‖ p), in nats, from the target.
    """

    name: str
    rate: float
    best: float
    output: FloatArray
    total_variation: float
    divergence: float

    def __str__(self) -> str:
        if self.total_variation == 0.0:
            points = f"{100 * self.rate:.0f} of {100 * self.best:.0f} points"
            return f"{self.name}: lossless, accepts {points}"
        return f"{self.name}: biased, TV {self.total_variation:.3f}, KL {self.divergence:.3f}"


def distances(output: FloatArray, target: FloatArray) -> tuple[float, float]:
    """Total variation and KL(output ‖ target) of two laws (V,); 0 where they differ by rounding alone."""
    apart = 0.5 * float(np.abs(output - target).sum())
    if apart < 1e-12:
        return 0.0, 0.0
    drawn = output > 0.0
    with np.errstate(divide="ignore"):
        terms = output[drawn] * (np.log(output[drawn]) - np.log(target[drawn]))
    return apart, max(float(terms.sum()), 0.0)


def best_known(target: FloatArray, draft: FloatArray, num_drafts: int) -> float:
    """The largest α* of the laws with replacement, greedy and stratified, at one position."""
    count = min(num_drafts, int(np.count_nonzero(draft)))
    laws = [WithReplacement(draft, num_drafts), Greedy(draft, count), Stratified(draft, count)]
    return max(float(optimal_acceptance(target, law).rate) for law in laws)


VLLM = Source(
    "vLLM", "vllm/v1/sample/rejection_sampler.py", "7f6fc1c5ce8d02f473b1b923debbfef3fa0b7a6a"
)
VLLM_BLOCK = Source(
    "vLLM",
    "vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py",
    "02e318bde2ccdff60271df55b2898c839410616f",
)
LLAMA_MATCH = Source(
    "llama.cpp",
    "common/sampling.cpp (common_sampler_sample_and_accept_n)",
    "00efb3e184262872916bf136b3df63c1822a19bd",
)
LLAMA_DRAFT = Source(
    "llama.cpp",
    "common/speculative.cpp (draft-simple)",
    "001d906a6d86e2490e394361e7cc6f478b100088",
)
LLAMA_EXAMPLE = Source(
    "llama.cpp",
    "examples/speculative/speculative.cpp",
    "007d71358afee62ef906904edc79fec9b2d728fa",
)
MLX = Source("mlx-lm", "mlx_lm/generate.py", "d78bf58e217c904ec282ed8da9b947491f78c022")
TRANSFORMERS = Source(
    "transformers", "generation/utils.py (_speculative_sampling)", "version 5.23.0"
)
TRANSFORMERS_ISSUE = Source("transformers", "issue 47932 and pull request 47961", "before its fix")
EAGLE = Source(
    "EAGLE",
    "eagle/model/utils.py (evaluate_posterior)",
    "cb7e0841fe0c206c6ed74a197ad5e2a1f13f5a2b",
)
SGLANG = Source(
    "SGLang",
    "sgl-kernel/csrc/speculative/speculative_sampling.cuh",
    "120affb9613cc3f5bcd055ec09c7621d3ced0ebc",
)
SEQUOIA = Source(
    "Sequoia", "Tree/SpecTree.py (accept_step)", "0ff3ff71475ca148f2dfb7545e0de5caf5c67b39"
)
MEDUSA = Source(
    "Medusa",
    "medusa/model/utils.py (evaluate_posterior)",
    "10a2697cd0c2169764f1edbe9797eacc51de41c1",
)
TENSORRT = Source(
    "TensorRT-LLM",
    "cpp/tensorrt_llm/kernels/speculativeDecoding/mtpKernels.cu (mtpRelaxedAcceptanceKernel)",
    "b35ac1b64368513d215c57d2ed01d62d910df8da",
)

_RULES = (
    EngineRule(
        "match-argmax",
        "the draft's argmax, accepted if the target samples it",
        (LLAMA_MATCH, LLAMA_DRAFT),
        TargetOnly(),
        certain_top,
        1,
    ),
    EngineRule(
        "one-hot",
        "the draft's argmax, accepted with probability p; the default of vLLM",
        (VLLM,),
        TargetOnly(),
        certain_top,
        1,
    ),
    EngineRule(
        "match-sampled",
        "a sampled draft, accepted if the target samples it too",
        (MLX,),
        TargetOnly(),
        WithReplacement,
        1,
    ),
    EngineRule(
        "rejection",
        "a sampled draft, accepted with probability min(1, p/q)",
        (VLLM, TRANSFORMERS),
        MaximalCoupling(),
        WithReplacement,
        1,
    ),
    EngineRule(
        "block",
        "a sampled path, judged as a whole by block verification",
        (VLLM_BLOCK,),
        MaximalCoupling(),
        WithReplacement,
        1,
        block=True,
    ),
    EngineRule(
        "certain-tree",
        "the draft's top n, all certain, and target-only sampling",
        (EAGLE, SGLANG),
        TargetOnly(),
        certain_top,
    ),
    EngineRule(
        "sequoia",
        "drafts without replacement, verified by recursive rejection",
        (SEQUOIA,),
        RecursiveRejection(),
        WithoutReplacement,
    ),
    EngineRule(
        "argmax-as-sampled",
        "the draft's argmax, verified as if it had been sampled from q",
        (LLAMA_EXAMPLE,),
        RatioTest(None),
        most_drafts=1,
    ),
    EngineRule(
        "raw-q",
        "a draft sampled from the top 50 of q, verified against q itself",
        (TRANSFORMERS_ISSUE,),
        RatioTest(50),
        most_drafts=1,
    ),
    EngineRule(
        "ensemble",
        "a sampled draft, verified against 0.8 p + 0.2 q",
        (TRANSFORMERS,),
        Ensemble(0.8),
        most_drafts=1,
    ),
    EngineRule(
        "thresholds",
        "the draft's top n; accepted too where p ≥ 0.5, or by a coin of 0.9",
        (SGLANG,),
        Thresholds(0.5, 0.9),
    ),
    EngineRule(
        "typical",
        "the draft's top n and typical acceptance (0.09, 0.3), else argmax p",
        (MEDUSA,),
        Typical(0.09, 0.3),
    ),
    EngineRule(
        "relaxed",
        "the draft's argmax, accepted within the target's top 10 and 0.6 of its largest, else argmax p",
        (TENSORRT,),
        RelaxedTopK(10, 0.6),
        most_drafts=1,
    ),
)
CATALOGUE: dict[str, EngineRule] = {rule.name: rule for rule in _RULES}
"""What engines run, by name."""
