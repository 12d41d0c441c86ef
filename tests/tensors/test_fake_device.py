"""Every public function of ``otmd.tensors`` on torch's meta device, which has shapes and no values.

A function that mixes devices, copies between them or looks at a value, for which the host would wait for the
device, fails here without a GPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from otmd import tensors

DEVICE, COUNT = "meta", 3
Arguments = dict[str, Any]


class StaysOnDevice(TorchDispatchMode):
    """Refuses every operation on tensors of another device, and so every copy."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors_of_call = [
            x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)
        ]
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


def prepared(x: Arguments) -> tensors.TensorPreference:
    return tensors.TensorPreference.for_strata(x["p"], strata(x), validate=False)


def strata(x: Arguments) -> tensors.TensorStrata:
    return tensors.stratify(x["q"], COUNT, validate=False)


def curve(x: Arguments) -> tensors.TensorRatioCurve:
    return tensors.TensorRatioCurve(x["p"], x["q"], validate=False)


def levels(x: Arguments) -> list[tensors.TensorLevel]:
    q = x["q"].expand(2, 4, 50)
    return [
        tensors.draft_level(q[:, :1], 4, 20, validate=False),
        tensors.draft_level(q, 1, 20, validate=False),
    ]


def adaptive_level(x: Arguments, **options: Any) -> object:
    reaches = torch.empty((1, 4), dtype=torch.float64, device=DEVICE)
    return tensors.draft_adaptive_level(x["q"][None], reaches, 6, 20, **options)


def layers(x: Arguments) -> tensors.TensorLayerVerification:
    return tensors.TensorLayerVerification(x["p"].expand(2, 9, 50), levels(x), validate=False)


def trained(loss: Callable[..., torch.Tensor], x: Arguments, *options: Any) -> None:
    """Compute a loss and its gradient."""
    logits = x["q"].clone().requires_grad_()
    loss(x["p"], logits, *options, validate=False).sum().backward()


CALLS: dict[str, Callable[[Arguments], object]] = {
    "TensorLayerVerification": lambda x: repr(layers(x)),
    "TensorLayerVerification.residual_probs": lambda x: layers(x).residual_probs(
        x["drafts"][:, 0, 0]
    ),
    "TensorLayerVerification.verify": lambda x: layers(x).verify(),
    "TensorLevel.draft_tokens": lambda x: levels(x)[1].draft_tokens,
    "TensorLevel.parents": lambda x: levels(x)[1].parents,
    "TensorPreference.for_strata": lambda x: prepared(x).accepted,
    "TensorPreference.verify": lambda x: prepared(x).verify(x["drafts"]),
    "TensorPreference.with_replacement": lambda x: tensors.TensorPreference.with_replacement(
        x["p"], x["q"], COUNT, validate=False
    ).verify(x["drafts"]),
    "TensorRatioCurve": lambda x: repr(curve(x)),
    "TensorRatioCurve.k_sequential_rates": lambda x: curve(x).k_sequential_rates(COUNT),
    "TensorRatioCurve.optimal_rates": lambda x: curve(x).optimal_rates(COUNT),
    "TensorRatioCurve.recursive_rejection_rates": lambda x: curve(x).recursive_rejection_rates(
        COUNT
    ),
    "TensorStrata.num_drafts": lambda x: strata(x).num_drafts,
    "TensorStrata.sample": lambda x: strata(x).sample(),
    "acceptance_loss": lambda x: [
        trained(tensors.acceptance_loss, x, COUNT, rate)
        for rate in ("optimal", "preference", "stratified")
    ],
    "draft_adaptive_level": lambda x: adaptive_level(x, validate=False),
    "draft_level": lambda x: levels(x),
    "greedy_rates": lambda x: tensors.greedy_rates(x["p"], x["q"], COUNT, validate=False),
    "probs_from_logits": lambda x: (
        tensors.probs_from_logits(x["p"], 0.0),
        tensors.probs_from_logits(x["p"], 0.7),
    ),
    "stratify": lambda x: tensors.stratify(x["q"], COUNT, 1.5, [1.0, 2.0, 4.0], validate=False),
    "target_only_rates": lambda x: tensors.target_only_rates(x["p"], x["q"], COUNT, validate=False),
    "tokens_per_step_loss": lambda x: trained(
        tensors.tokens_per_step_loss, x, x["drafts"][..., 0], COUNT
    ),
    "total_variation_loss": lambda x: trained(tensors.total_variation_loss, x),
    "hybrid_loss": lambda x: trained(tensors.hybrid_loss, x),
}


def public_functions() -> Iterator[str]:
    """The public functions, constructors, methods and properties, by name."""
    for name in tensors.__all__:
        thing = getattr(tensors, name)
        fields = getattr(thing, "_fields", ())
        if not inspect.isclass(thing):
            yield name
            continue
        if "validate" in inspect.signature(thing).parameters and name != "TensorPreference":
            yield name
        for member in vars(thing):
            if not member.startswith("_") and member not in fields:
                yield f"{name}.{member}"


def arguments() -> Arguments:
    p = torch.empty((2, 1, 50), dtype=torch.float32, device=DEVICE)
    q = torch.empty((4, 50), dtype=torch.bfloat16, device=DEVICE)
    drafts = torch.empty((2, 4, COUNT), dtype=torch.int64, device=DEVICE)
    return {"p": p, "q": q, "drafts": drafts}


def test_every_public_function_is_called() -> None:
    assert set(CALLS) == set(public_functions())


@pytest.mark.parametrize("name", CALLS)
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
    "checked strata": lambda x: tensors.stratify(x["q"], COUNT),
    "checked adaptive levels": adaptive_level,
    "checked levels": lambda x: tensors.draft_level(x["p"], COUNT, 5),
    "checked trees": lambda x: tensors.TensorLayerVerification(x["p"].expand(2, 9, 50), levels(x)),
    "checked drafts": lambda x: tensors.TensorPreference.with_replacement(x["p"], x["q"], COUNT),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_value_that_leaves_is_found(name: str) -> None:
    """Controls, among them the functions that wait for the device to check values."""
    with pytest.raises((RuntimeError, NotImplementedError)), NoHostData(), StaysOnDevice():
        BROKEN[name](arguments())
