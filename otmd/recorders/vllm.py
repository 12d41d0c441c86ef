"""The recorder of vLLM: what its V1 model runner samples, written as a run for the audit.

Nothing that loads Numba is imported before the first token is sampled: on a CPU vLLM 0.32.0 does not start in
a process that has loaded Numba.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from otmd.audit import Recorder

_RUNNER = "vllm.v1.worker.gpu_model_runner"
# The methods that the recorder relies on, by module, and the names of their parameters in vLLM 0.32.0.
_SIGNATURES = {
    (_RUNNER, "GPUModelRunner._sample"): ("self", "logits", "spec_decode_metadata"),
    (_RUNNER, "GPUModelRunner._get_spec_decode_draft_probs"): ("self", "spec_decode_metadata"),
    ("vllm.v1.sample.rejection_sampler", "RejectionSampler.forward"): (
        *("self", "metadata", "draft_probs", "logits", "sampling_metadata"),
    ),
}
# vLLM's own logits processors, and the attribute of each that is false while no request uses it.
_IDLE = {
    "MinPLogitsProcessor": "min_p_count",
    "LogitBiasLogitsProcessor": "biases",
    "MinTokensLogitsProcessor": "min_toks",
}


def register() -> None:
    """Record the engine of this process if the environment variable ``OTMD_RECORD`` names a folder.

    vLLM calls this function in each of its processes: it is an entry point of ``vllm.general_plugins``.
    ``OTMD_RECORD_KEEP`` may be ``numbers``, see :class:`otmd.audit.Recorder`.

    Raises
    ------
    RuntimeError
        If the installed vLLM cannot be recorded, see :func:`recorded`.

    Examples
    --------
    >>> from otmd.recorders.vllm import register
    >>> register()  # Does nothing: the variable is not set.
    """
    if path := os.environ.get("OTMD_RECORD"):
        stack = ExitStack()
        stack.enter_context(recorded(path, os.environ.get("OTMD_RECORD_KEEP", "rows")))
        atexit.register(stack.close)


@contextmanager
def recorded(path: str | Path, keep: str = "rows") -> Iterator[None]:
    """Record all that vLLM samples in this process.

    A row holds the target's raw logits, the temperature and the cuts that the request asked for, the draft
    token with its draft distribution, and the output token; a step ends with the row of the extra token. A
    draft that was not sampled has a distribution with all its mass on it.

    Parameters
    ----------
    path, keep
        As for :class:`otmd.audit.Recorder`. The recorder is made when the first token is sampled. Of
        processes that share a model, only the first has one. Engine r > 0 of a data-parallel server
        writes to ``path`` with ``-r`` appended.

    Yields
    ------
    None

    Raises
    ------
    RuntimeError
        If methods of vLLM have other parameters than in vLLM 0.32.0, or if vLLM may choose its V2 model
        runner, which samples elsewhere.
    ValueError
        When a token is sampled for a request that asks for more than temperature, top-k and top-p.

    Examples
    --------
    >>> from otmd.recorders.vllm import recorded
    >>> with recorded("run"):  # doctest: +SKIP
    ...     llm.generate(prompts, vllm.SamplingParams(temperature=0.8))
    """
    _require_signatures()
    _require_first_runner()
    runner_class = importlib.import_module(_RUNNER).GPUModelRunner
    sample = runner_class._sample
    with ExitStack() as stack:
        runner_class._sample = _recording(sample, Path(path), keep, stack)
        stack.callback(setattr, runner_class, "_sample", sample)
        yield


def _recording(
    sample: Callable[..., Any], path: Path, keep: str, stack: ExitStack
) -> Callable[..., Any]:
    """``GPUModelRunner._sample`` that records each step; the stack closes the recorder."""
    steps = count()
    recorder: Recorder | None = None

    @functools.wraps(sample)
    def sample_and_record(runner: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        nonlocal recorder
        if not _is_first_process():
            return sample(runner, logits, spec_decode_metadata)
        if recorder is None:
            recorder = stack.enter_context(_new_recorder(_folder(path, runner), keep))
        requests = list(_read_batch(runner, logits, spec_decode_metadata))
        output = sample(runner, logits, spec_decode_metadata)
        step = next(steps)
        for request, tokens in zip(requests, output.sampled_token_ids.tolist(), strict=True):
            if request is not None:
                # The unused end of a row holds −1, which the recorder leaves out.
                recorder.add_step(output_tokens=tokens, step=step, **request)
        return output

    return sample_and_record


class _Drafts(NamedTuple):
    """The drafts of a request: tokens (n,), their distributions (n, V) if any, and n + 1 rows of logits."""

    tokens: np.ndarray
    probs: np.ndarray | None
    rows: np.ndarray


def _read_batch(
    runner: Any, logits: Any, spec_decode_metadata: Any
) -> Iterator[dict[str, Any] | None]:
    """Copy the numbers that the recorder needs of each request; None where the prompt is only partly read.

    vLLM drops the token that it samples for such a request.
    """
    batch = runner.input_batch
    _require_known_settings(batch.sampling_metadata)
    dropped = runner.discard_request_mask.np[: batch.num_reqs]
    target_logits = _numbers(logits.float())
    for index, drafts in enumerate(_read_drafts(runner, spec_decode_metadata, batch.num_reqs)):
        settings = _read_settings(batch.sampling_metadata, index)
        fields = {
            "request": batch.req_ids[index],
            "target_logits": target_logits[drafts.rows],
            "draft_tokens": drafts.tokens,
        }
        if drafts.probs is not None and settings["target_temperature"] > 0:
            fields["draft_probs"] = drafts.probs
        elif drafts.tokens.size:
            fields["draft_ids"] = drafts.tokens[:, None]
            fields["draft_probs"] = np.ones((drafts.tokens.size, 1))
        yield None if dropped[index] else fields | settings


def _read_drafts(runner: Any, metadata: Any, num_requests: int) -> Iterator[_Drafts]:
    """The drafts of each request; ``metadata`` is None in a step without any."""
    if metadata is None:
        for index in range(num_requests):
            yield _Drafts(np.empty(0, np.int64), None, np.array([index]))
        return
    probs = runner._get_spec_decode_draft_probs(metadata)
    probs = None if probs is None else _numbers(probs.float())
    tokens = _numbers(metadata.draft_token_ids)
    drafted_rows = _numbers(metadata.target_logits_indices)
    extra_rows = _numbers(metadata.bonus_logits_indices)
    ends = np.cumsum(metadata.num_draft_tokens)
    for start, end, extra in zip(ends - metadata.num_draft_tokens, ends, extra_rows, strict=True):
        rows = np.append(drafted_rows[start:end], extra)
        # A request without drafts has no distribution of theirs either.
        of_request = None if probs is None or start == end else probs[start:end]
        yield _Drafts(tokens[start:end], of_request, rows)


def _read_settings(sampling: Any, index: int) -> dict[str, Any]:
    """The fields that say what a request asked for. Greedy requests have temperature 0."""
    temperature = 0.0 if sampling.all_greedy else float(sampling.temperature[index])
    fields: dict[str, Any] = {"target_order": "vllm", "target_temperature": temperature}
    if sampling.top_k is not None:
        fields["target_top_k"] = int(sampling.top_k[index])
    if sampling.top_p is not None:
        fields["target_top_p"] = float(sampling.top_p[index])
    return fields


def _numbers(tensor: Any) -> np.ndarray:
    """A copy in the memory of the CPU."""
    return tensor.detach().cpu().numpy().copy()


def _folder(path: Path, runner: Any) -> Path:
    """The folder of this engine: that of engine r > 0 of a data-parallel server ends in ``-r``."""
    engine = runner.parallel_config.data_parallel_index
    return Path(f"{path}-{engine}") if engine else path


def _new_recorder(path: Path, keep: str) -> Recorder:
    from otmd.audit import Recorder

    return Recorder(path, keep=keep)


def _is_first_process() -> bool:
    """Whether this is the first of the processes that share a model: all of them sample the same tokens."""
    return importlib.import_module("vllm.distributed").get_tensor_model_parallel_rank() == 0


def _require_signatures() -> None:
    """RuntimeError if a method that is relied on has other parameters."""
    for (module, name), expected in _SIGNATURES.items():
        owner, method = name.split(".")
        function = getattr(getattr(importlib.import_module(module), owner, None), method, None)
        given = tuple(inspect.signature(function).parameters) if function else "no such method"
        if given != expected:
            raise RuntimeError(
                f"{module}.{name}: got {given}, expected {expected}, its parameters in vLLM 0.32.0"
            )


def _require_first_runner() -> None:
    """RuntimeError if vLLM may choose its V2 model runner."""
    has_triton = importlib.import_module("vllm.triton_utils").HAS_TRITON
    asked = importlib.import_module("vllm.envs").VLLM_USE_V2_MODEL_RUNNER
    if asked or (asked is None and has_triton):
        raise RuntimeError(
            f"VLLM_USE_V2_MODEL_RUNNER: got {asked}, expected 0: only the V1 model runner is recorded"
        )


def _require_known_settings(sampling: Any) -> None:
    """ValueError if a request of the batch asks for a setting that the recorder does not record."""
    holder = sampling.thinking_budget_state_holder
    asked = {
        "penalties": not sampling.no_penalties,
        "allowed token ids": sampling.allowed_token_ids_mask is not None,
        "bad words": bool(sampling.bad_words_token_ids),
        "a thinking budget": holder is not None and holder.has_tracked_requests(),
    }
    for processor in sampling.logitsprocs.all:
        name = type(processor).__name__
        asked[name] = name not in _IDLE or bool(getattr(processor, _IDLE[name]))
    if used := ", ".join(name for name, is_used in asked.items() if is_used):
        raise ValueError(f"sampling: got {used}, expected temperature, top-k and top-p alone")
