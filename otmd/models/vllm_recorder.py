"""The recorder of vLLM: what its model runners sample, written as a run for the audit.

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
from itertools import count, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

_V1_RUNNER = "vllm.v1.worker.gpu_model_runner"
_V2_RUNNER = "vllm.v1.worker.gpu.model_runner"
_V2_VERIFIER = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
_TESTED = "0.32.0 and 0.33.0"
# The methods that the recorder relies on: module, name, names of the parameters.
_SYMBOLS = (
    (_V1_RUNNER, "GPUModelRunner._sample", "self, logits, spec_decode_metadata"),
    (_V1_RUNNER, "GPUModelRunner._get_spec_decode_draft_probs", "self, spec_decode_metadata"),
    ("vllm.v1.sample.rejection_sampler", "RejectionSampler.forward",
     "self, metadata, draft_probs, logits, sampling_metadata"),
    (_V2_RUNNER, "GPUModelRunner.sample", "self, hidden_states, input_batch, grammar_output"),
    ("vllm.v1.worker.gpu.sample.sampler", "Sampler.__call__", "self, logits, input_batch"),
    (_V2_VERIFIER, "RejectionSampler.__call__",
     "self, logits, input_batch, draft_logits, invalid_drafts"),
)  # fmt: skip
# The requests with which the V2 runner warms up; their drafts are made up.
_WARM_UP = ("_warmup_", "_v2_mixed_warmup_")
# The V1 runner's own logits processors, and the attribute of each that is false while no request uses it.
_IDLE = {
    "MinPLogitsProcessor": "min_p_count",
    "LogitBiasLogitsProcessor": "biases",
    "MinTokensLogitsProcessor": "min_toks",
}


def register() -> None:
    """Record the engine of this process if the environment variable ``OTMD_RECORD`` names a folder.

    vLLM calls this function in each of its processes: it is an entry point of ``vllm.general_plugins``.
    """
    if path := os.environ.get("OTMD_RECORD"):
        stack = ExitStack()
        stack.enter_context(recorded(path))
        atexit.register(stack.close)


@contextmanager
def recorded(path: str | Path) -> Iterator[None]:
    """Record all that vLLM samples in this process.

    A row holds the target's raw logits, the temperature and the cuts that the request asked for, the draft
    token with its draft distribution, and the output token; a step ends with the row of the bonus token. A
    draft that was not sampled has a distribution with all its mass on it.

    ``path`` is that of an :class:`otmd.audit.Recorder`, which is made when the first token is sampled. Of
    processes that share a model, only the first has one. Engine r > 0 of a data-parallel server writes to
    ``path`` with ``-r`` appended. Other methods of vLLM than those that were tested are a RuntimeError; a
    request for more than temperature, top-k and top-p is a ValueError when a token is sampled for it, and so
    are processes that share out the requests of a model.

    Examples
    --------
    >>> from otmd.models.vllm_recorder import recorded
    >>> with recorded("run"):  # doctest: +SKIP
    ...     llm.generate(prompts, vllm.SamplingParams(temperature=0.8))
    """
    _require_symbols()
    with ExitStack() as stack:
        run = _Run(Path(path), stack)
        run.watch(_V1_RUNNER, "_sample", _record_v1)
        run.watch(_V2_RUNNER, "sample", _record_v2)
        yield


class _Run:
    """The run of an engine; the stack closes the recorder, which is made at the first step."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        self._recorder: Any = None
        self._steps = count()

    def watch(self, module: str, name: str, record: Callable[..., Any]) -> None:
        """Let ``record`` call this method of a runner, in the first of the processes that share a model."""
        runner_class = importlib.import_module(module).GPUModelRunner
        sample = getattr(runner_class, name)
        rank = importlib.import_module("vllm.distributed").get_tensor_model_parallel_rank

        @functools.wraps(sample)
        def call(runner: Any, *inputs: Any) -> Any:
            return record(self, sample, runner, *inputs) if rank() == 0 else sample(runner, *inputs)

        setattr(runner_class, name, call)
        self._stack.callback(setattr, runner_class, name, sample)

    def add(self, runner: Any, requests: list[dict[str, Any]], rule: str = "token") -> None:
        """Record one call of the sampler."""
        if self._recorder is None:
            from otmd.audit import Recorder

            engine = runner.parallel_config.data_parallel_index
            folder = Path(f"{self._path}-{engine}") if engine else self._path
            self._recorder = self._stack.enter_context(Recorder(folder, rule=rule))
        step = next(self._steps)
        for fields in requests:
            # Nothing is emitted where the prompt is only partly read.
            if fields["output_tokens"]:
                self._recorder.add_step(step=step, **fields)


def _record_v1(run: _Run, sample: Callable[..., Any], runner: Any, logits: Any, metadata: Any) -> Any:
    """``GPUModelRunner._sample`` of the V1 runner, recorded."""
    requests = list(_read_v1(runner, logits, metadata))
    output = sample(runner, logits, metadata)
    dropped = runner.discard_request_mask.np
    for index, tokens in enumerate(output.sampled_token_ids.tolist()):
        # The unused end of a row holds −1, which the recorder leaves out.
        requests[index]["output_tokens"] = [] if dropped[index] else tokens
    run.add(runner, requests)
    return output


def _read_v1(runner: Any, logits: Any, metadata: Any) -> Iterator[dict[str, Any]]:
    """Copy the numbers of each request; ``metadata`` is None in a step without drafts."""
    batch = runner.input_batch
    sampling = batch.sampling_metadata
    budget = sampling.thinking_budget_state_holder
    asked = {
        "penalties": not sampling.no_penalties,
        "allowed token ids": sampling.allowed_token_ids_mask is not None,
        "bad words": bool(sampling.bad_words_token_ids),
        "a thinking budget": budget is not None and budget.has_tracked_requests(),
    }
    for processor in sampling.logitsprocs.all:
        name = type(processor).__name__
        asked[name] = name not in _IDLE or bool(getattr(processor, _IDLE[name]))
    _refuse(asked)
    rows = _numbers(logits)
    drafts = drafted_rows = np.empty(0, np.int64)
    extra_rows, lengths, probs = np.arange(batch.num_reqs), [0] * batch.num_reqs, None
    if metadata is not None:
        probs = runner._get_spec_decode_draft_probs(metadata)
        lengths = metadata.num_draft_tokens
        drafts = _numbers(metadata.draft_token_ids)
        drafted_rows = _numbers(metadata.target_logits_indices)
        extra_rows = _numbers(metadata.bonus_logits_indices)
    for index, (start, end) in enumerate(pairwise(np.cumsum([0, *lengths]))):
        values = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
        settings = {name: value[index].item() for name, value in values.items() if value is not None}
        if sampling.all_greedy:
            settings["temperature"] = 0.0
        q = None if probs is None else {"draft_probs": _numbers(probs[start:end])}
        of_request = rows[np.append(drafted_rows[start:end], extra_rows[index])]
        yield _fields(batch.req_ids[index], of_request, drafts[start:end], q, settings)


def _record_v2(
    run: _Run, sample: Callable[..., Any], runner: Any, hidden: Any, batch: Any, grammar: Any
) -> Any:
    """``GPUModelRunner.sample`` of the V2 runner, recorded where it calls one of its two samplers."""
    if any(name.startswith(_WARM_UP) for name in batch.req_ids):
        return sample(runner, hidden, batch, grammar)
    _refuse({"requests shared out among processes": runner.batch_sharder is not None})
    samplers = {name: getattr(runner, name) for name in ("sampler", "rejection_sampler")}
    is_block = getattr(runner.rejection_sampler, "use_block_verification", False)

    def record(sampler: Any, logits: Any, *inputs: Any) -> Any:
        requests = list(_read_v2(samplers["sampler"], logits, *inputs))
        output = sampler(logits, *inputs)
        lengths = output.num_sampled.tolist()
        for index, tokens in enumerate(output.sampled_token_ids.tolist()):
            requests[index]["output_tokens"] = tokens[: lengths[index]]
        run.add(runner, requests, "block" if is_block else "token")
        return output

    for name, sampler in samplers.items():
        setattr(runner, name, sampler and functools.partial(record, sampler))
    try:
        return sample(runner, hidden, batch, grammar)
    finally:
        vars(runner).update(samplers)


def _read_v2(
    sampler: Any, logits: Any, batch: Any, draft_logits: Any = None, invalid: Any = None
) -> Iterator[dict[str, Any]]:
    """Copy the numbers of each request; ``invalid`` marks the drafts that a grammar forbids."""
    states = batch.idx_mapping_np
    sampling = sampler.sampling_states
    bias, penalties, bad_words, *added = sampler.logits_processors
    budget = sampler.thinking_budget_state
    _refuse({
        "min-p": sampling.min_p.np[states].any(),
        "a logit bias, allowed token ids or a minimal length": bias.use_logit_bias[states].any(),
        "penalties": penalties.use_penalty[states].any(),
        "bad words": bad_words.num_bad_words.np[states].any(),
        "a logits processor": added,
        "a thinking budget": budget.enabled and budget.use_thinking_budget[states].any(),
        "a trace to replay": sampler.trace_replay_state is not None,
    })  # fmt: skip
    rows = _numbers(logits)
    tokens = _numbers(batch.input_ids[batch.logits_indices])
    if invalid is not None:
        tokens[_numbers(invalid)] = -1
    for index, (start, end) in enumerate(pairwise(_numbers(batch.cu_num_logits))):
        drafts = tokens[start + 1 : end]
        # vLLM rejects a draft of −1, and what stands for drafts before the prompt is read.
        is_draft = np.logical_and.accumulate(drafts >= 0) & ~batch.is_prefilling_np[index]
        drafts = drafts[is_draft]
        state = states[index]
        values = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
        settings = {name: value.np[state].item() for name, value in values.items()}
        q = None
        if draft_logits is not None:
            q = {"draft_logits": _numbers(draft_logits[state, : drafts.size])}
            q["draft_temperature"] = settings["temperature"]
        of_request = rows[start : start + drafts.size + 1]
        yield _fields(batch.req_ids[index], of_request, drafts, q, settings)


def _fields(request: str, rows: Any, drafts: Any, q: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The fields of n drafts with n + 1 rows of logits; q is None for drafts that are not sampled."""
    if q is None or settings["temperature"] == 0:
        q = {"draft_ids": drafts[:, None], "draft_probs": np.ones((drafts.size, 1))}
    fields = {"request": request, "target_order": "vllm", "target_logits": rows}
    fields |= {f"target_{name}": value for name, value in settings.items()}
    return fields | {"draft_tokens": drafts} | (q if drafts.size else {})


def _numbers(tensor: Any) -> np.ndarray:
    """A copy in the memory of the CPU."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy().copy()


def _require_symbols() -> None:
    """RuntimeError if a method that is relied on is missing or has other parameters."""
    for module, name, parameters in _SYMBOLS:
        try:
            method = attrgetter(name)(importlib.import_module(module))
            given = ", ".join(inspect.signature(method).parameters)
        except (ImportError, AttributeError) as error:
            given = str(error)
        if given != parameters:
            expected = f"expected {parameters}, tested with vLLM {_TESTED}"
            raise RuntimeError(f"{name} of {module}: got {given}, {expected}")


def _refuse(asked: dict[str, Any]) -> None:
    """ValueError if a batch asks for something that is not recorded."""
    if used := ", ".join(name for name, is_used in asked.items() if is_used):
        raise ValueError(f"sampling: got {used}, expected temperature, top-k and top-p alone")
