"""Self-speculative drafts: the target itself with some of its layers left out.

Source: Zhang et al. 2023, "Draft & Verify: Lossless Large Language Model Acceleration via
Self-Speculative Decoding"; Elhoushi et al. 2024, "LayerSkip".
"""

import copy
from collections.abc import Collection
from itertools import chain
from typing import Any

from otmd.harness.models import LanguageModel


def skip_layers(target: LanguageModel, layers: Collection[int]) -> LanguageModel:
    """Leave out decoder layers, sharing every weight that stays.

    Parameters
    ----------
    target : LanguageModel
        A decoder-only model; it is not changed.
    layers : collection of int
        Which layers to leave out, counted from 0.

    Returns
    -------
    LanguageModel
        A model of its own structure over the same weight tensors, named ``skip:…``.

    Raises
    ------
    ValueError
        If the decoder layers cannot be told from the rest of the model, an index is out of
        range or occurs twice, or nothing would be left out or left over.
    """
    name, count = find_decoder_layers(target.model)
    wanted = sorted(layers)
    if not wanted or len(set(wanted)) != len(wanted) or len(wanted) >= count:
        raise ValueError(f"layers must be 1 to {count - 1} different layers, got {list(layers)}")
    if wanted[0] < 0 or wanted[-1] >= count:
        raise ValueError(f"layers must lie in [0, {count}), got {list(layers)}")
    model = structural_copy(target.model)
    kept = [index for index in range(count) if index not in set(wanted)]
    stack = model.get_submodule(name)
    _keep(stack, kept)
    _keep_in_config(model.config.get_text_config(), kept, count)
    spec = "skip:" + ",".join(map(str, wanted))
    return LanguageModel(model, target.tokenizer, spec, target.revision)


def find_decoder_layers(model: Any) -> tuple[str, int]:
    """Name and length of the module list that holds the decoder layers.

    Raises
    ------
    ValueError
        If not exactly one module list is as long as the configuration says there are layers.
    """
    import torch

    count = model.config.get_text_config().num_hidden_layers
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    if len(found) != 1:
        raise ValueError(
            f"target: cannot tell the decoder layers of {type(model).__name__}: wanted one list "
            f"of {count} modules, found {found or 'none'}"
        )
    return found[0], count


def structural_copy(model: Any) -> Any:
    """A copy of a model's modules that shares every parameter and buffer."""
    # A deep copy whose memo already holds the tensors copies the modules and shares the weights.
    shared = {id(t): t for t in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared)


def _keep(stack: Any, kept: list[int]) -> None:
    layers = [stack[index] for index in kept]
    del stack[len(layers) :]
    for new_index, layer in enumerate(layers):
        stack[new_index] = layer
        # Key-value caches are addressed by these numbers, and must have no holes.
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = new_index


def _keep_in_config(config: Any, kept: list[int], count: int) -> None:
    for key, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(config, key, [value[index] for index in kept])
    config.num_hidden_layers = len(kept)
