"""Copies of a model that share its weights: with layers left out, or with weights packed for a CPU.

Leaving layers out makes a self-speculative draft (Zhang et al. 2023, "Draft & Verify"; Elhoushi et al. 2024,
"LayerSkip"). Packing: a draft tree is checked by products of weight matrices with a few rows. On a CPU these
can cost much more than with a single row, though both read the same weights. oneDNN's own layout of the
weights, made once, avoids most of that.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from itertools import chain
from typing import Any

import torch

from otmd.models.language_models import LanguageModel
from otmd.probabilities import wrong

# oneDNN chooses the layout for a number of rows; this one serves 1 to 64 well.
ROWS = 16
DTYPES = (torch.float32, torch.bfloat16)


def skip_layers(target: LanguageModel, layers: Collection[int]) -> LanguageModel:
    """Leave out these decoder layers (counted from 0), sharing every weight that stays.

    ValueError for indices that are out of range or repeated, or leave nothing.
    """
    count = target.model.config.get_text_config().num_hidden_layers
    skipped = sorted(layers)
    kept = [index for index in range(count) if index not in skipped]
    if not 0 < len(skipped) < count or len(kept) + len(skipped) != count:
        raise wrong("layers", list(layers), f"1 to {count - 1} different ones of [0, {count})")
    model = _structural_copy(target.model)
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    stacks = [module for module in lists if len(module) == count]
    if len(stacks) != 1:
        lists_in = f"{len(stacks)} in {type(model).__name__}"
        raise wrong("target", lists_in, f"one list of {count} decoder layers")
    stack: Any = stacks[0]
    for new_index, index in enumerate(kept):
        stack[new_index] = stack[index]
        # These numbers are indices in key-value caches, which must have no gaps.
        for module in stack[index].modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = new_index
    del stack[len(kept) :]
    config = model.config.get_text_config()
    for key, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(config, key, [value[index] for index in kept])
    config.num_hidden_layers = len(kept)
    spec = "skip:" + ",".join(map(str, skipped))
    return LanguageModel(model, target.tokenizer, spec, target.revision)


def _structural_copy(model: Any) -> Any:
    # A deep copy whose memo already holds the tensors copies the modules and shares the weights.
    return copy.deepcopy(model, {id(t): t for t in chain(model.parameters(), model.buffers())})


class PackedLinear(torch.nn.Module):
    """A linear layer (CPU, float32 or bfloat16) with its weights in oneDNN's layout as well."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias
        packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)
        self.register_buffer("packed", packed, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Product of rows (…, I) with the weights (O, I), and the bias: (…, O)."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")


def can_pack(model: LanguageModel) -> bool:
    """Whether the model runs on a CPU that oneDNN serves, in a dtype that it serves."""
    served = model.model.device.type == "cpu" and model.model.dtype in DTYPES
    return served and torch.backends.mkldnn.is_available()


def pack_weights(model: LanguageModel) -> LanguageModel:
    """The same model with every linear layer packed; its logits differ by rounding.

    The packed copies of the weights need as much memory again. ValueError unless the model is in float32 or
    bfloat16 on a CPU, and torch has oneDNN.
    """
    if not can_pack(model):
        raise wrong("model", model.backend, "float32 or bfloat16 on a CPU that oneDNN serves")
    packed = _structural_copy(model.model)
    for parent in list(packed.modules()):
        for name, layer in list(parent.named_children()):
            # Subclasses (quantised layers, adapters) have a product of their own.
            if type(layer) is torch.nn.Linear:
                setattr(parent, name, PackedLinear(layer))
    return LanguageModel(packed, model.tokenizer, model.name, model.revision)
