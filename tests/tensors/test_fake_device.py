"""Every public function of ``otmd.tensors`` on torch's meta device, which has shapes and no values.

A function that mixes devices, copies between them or looks at a value, for which the host would wait for the
device, fails here without a GPU.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from otmd import tensors
from otmd.tensors import layers

DEVICE, COUNT = "meta", 3
Arguments = dict[str, Any]


class StaysOnDevice(TorchDispatchMode):
    """Refuses every operation on tensors of another device, and so every copy."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors_of_call = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
        # A number in a tensor without axes is passed to a device's kernel as its argument.
        devices = {str(x.device) for x in tensors_of_call if x.ndim}
        if devices - {DEVICE}:
            raise RuntimeError(f"{func} touches {sorted(devices)}")
        return out


class NoHostData(TorchFunctionMode):
    """Refuses to make a tensor of numbers of the host, which is copied without being dispatched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy):
            raise RuntimeError(f"{func.__name__} copies from the host")
        return func(*args, **(kwargs or {}))


def step(x: Arguments) -> tuple[torch.Tensor, list[tensors.Level], torch.Tensor]:
    """The target's rows, levels of 4 drafts, 1 after each and a quota of 5, and random numbers."""
    mass, tokens = tensors.top_tokens(x["q"].expand(2, 4, 50), 20)
    numbers = tensors.philox_uniforms(x["seeds"], x["seeds"], 4)
    levels = [tensors.draft_level(mass[:, :1], tokens[:, :1], 4, uniforms=numbers)]
    levels.append(tensors.draft_level(mass, tokens, 1))
    reaches = torch.empty((2, 4), dtype=torch.float64, device=x["p"].device)
    levels.append(tensors.draft_adaptive_level(mass, tokens, reaches, 5)[0])
    return x["p"].expand(2, 14, 50), levels, numbers[:, :2]


def kernel(x: Arguments) -> None:
    rows, levels, numbers = step(x)
    tree = tensors.to_links(x["seeds"], levels)
    out = [x["seeds"].new_empty(shape).int() for shape in (28, (2, 4), 2)]
    coins = numbers[:, :1].expand(-1, 14), numbers[:, 1]
    tensors.tree_speculative_sampling_strata(*out, *tree[:4], *coins, rows, *tree[4:], (4, 4, 5))


def trained(loss: Callable[..., torch.Tensor], x: Arguments, *options: Any) -> None:
    """Compute a loss and its gradient."""
    logits = x["q"].clone().requires_grad_()
    loss(x["p"], logits, *options, validate=False).sum().backward()


def rates(x: Arguments) -> list[torch.Tensor]:
    curve = tensors.TensorRatioCurve(x["p"], x["q"], validate=False)
    by_curve = (curve.optimal_rates, curve.recursive_rejection_rates, curve.k_sequential_rates)
    return [rates_of(COUNT) for rates_of in by_curve]


CALLS: dict[str, Callable[[Arguments], object]] = {
    "rates": rates,
    "greedy rates": lambda x: tensors.greedy_rates(x["p"], x["q"], COUNT, validate=False),
    "target-only rates": lambda x: tensors.target_only_rates(x["p"], x["q"], COUNT, validate=False),
    "optimal loss": lambda x: trained(tensors.acceptance_loss, x, COUNT, "optimal"),
    "stratified loss": lambda x: trained(tensors.acceptance_loss, x, COUNT, "stratified"),
    "loss of chains": lambda x: trained(
        tensors.tokens_per_step_loss, x | {"q": x["q"][:2]}, x["drafts"][:, :2, 0]
    ),
    "loss of trees": lambda x: trained(tensors.tokens_per_step_loss, x, x["drafts"][..., 0], COUNT),
    "greedy": lambda x: tensors.probs_from_logits(x["p"], 0.0),
    "warm": lambda x: tensors.probs_from_logits(x["p"], 0.7),
    "top tokens": lambda x: [tensors.top_tokens(x["q"].to(t), 5) for t in (torch.half, torch.double)],
    "one position": lambda x: tensors.verify(x["p"][:, 0], step(x)[1][0]),
    "trees": lambda x: tensors.verify_tree(*step(x)),
    "trees in one pass": lambda x: tensors.score_tree(*step(x)[:2], passes=1),
    "linked trees": kernel,
}


def public_functions() -> Iterator[tuple[str, CodeType]]:
    """The code of public functions, methods and properties, by name."""
    for name in tensors.__all__:
        thing = getattr(tensors, name)
        members = vars(thing) if inspect.isclass(thing) else {"": thing}
        for member, value in members.items():
            function = getattr(value, "fget", value)
            if inspect.isfunction(function) and not member.startswith("_"):
                yield f"{name}.{member}", function.__code__


def arguments(device: str = DEVICE) -> Arguments:
    """Numbers without values, or on the CPU random ones."""
    p = torch.rand((2, 1, 50), device=device)
    q = torch.rand((4, 50), device=device)
    drafts = torch.zeros((2, 4, COUNT), dtype=torch.int64, device=device)
    seeds = torch.arange(2, device=device)
    return {"p": p, "q": (q / q.sum(-1, keepdim=True)).bfloat16(), "drafts": drafts, "seeds": seeds}


def test_every_public_function_is_called() -> None:
    called = set[CodeType]()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code))
    try:
        for call in CALLS.values():
            # The fake device calls so many functions of torch that noting them takes minutes.
            call(arguments("cpu"))
    finally:
        sys.setprofile(None)
    assert [name for name, code in public_functions() if code not in called] == []


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "loss of trees" else ()) for name in CALLS],
)
def test_no_value_leaves_the_device(name: str) -> None:
    with NoHostData(), StaysOnDevice():
        CALLS[name](arguments())


BROKEN: dict[str, Callable[[Arguments], object]] = {
    "item": lambda x: x["p"].sum().item(),
    "to the host": lambda x: x["p"].cpu(),
    "from the host": lambda x: torch.ones(50).to(DEVICE),
    "a list to the device": lambda x: torch.tensor([1.0, 2.0], device=DEVICE),
    "an array to the device": lambda x: torch.from_numpy(np.ones(2)),
    "mixed": lambda x: x["p"] + torch.arange(50),
    "checked values": lambda x: tensors.TensorRatioCurve(x["p"], x["q"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_value_that_leaves_is_found(name: str) -> None:
    """Controls, among them the functions that wait for the device to check values."""
    with pytest.raises((RuntimeError, NotImplementedError)), NoHostData(), StaysOnDevice():
        BROKEN[name](arguments())


# ---------------------------------------------------------------- one graph, one file


@pytest.mark.slow
def test_a_step_is_one_graph() -> None:
    """Without a break, so that it needs no value on the host; and the graph computes the same."""
    x = arguments("cpu")
    rows, levels, numbers = step(x)

    def decide(rows: torch.Tensor, levels: list[tensors.Level], numbers: torch.Tensor) -> Any:
        verdict = tensors.verify_tree(rows, levels, numbers, rounds=2, passes=2)
        return verdict, tensors.to_links(numbers[:, 0].long(), levels)

    compiled = torch.compile(decide, backend="aot_eager", fullgraph=True)(rows, levels, numbers)
    for result, expected in zip(compiled, decide(rows, levels, numbers), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))
    torch.compile(step, backend="eager", fullgraph=True)(x)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        # A control: the host must know the value.
        torch.compile(lambda p: p if p.sum() > 1 else -p, backend="eager", fullgraph=True)(rows)


def test_the_file_imports_torch_alone() -> None:
    source = Path(layers.__file__).read_text()
    assert source.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    imports = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert imports == {"__future__", "collections.abc", "typing", "torch"}
