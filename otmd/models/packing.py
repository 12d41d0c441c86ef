"""Weights packed for a CPU.

A draft tree is checked by products of weight matrices with a few rows. On a CPU these can cost much more than
with a single row, though both read the same weights. oneDNN's own layout of the weights, made once, avoids
most of that.
"""

import torch

from otmd.models.language_models import LanguageModel, structural_copy
from otmd.probabilities import wrong


class PackedLinear(torch.nn.Module):
    """A linear layer (CPU, float32 or bfloat16) with its weights in oneDNN's layout as well."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias
        # oneDNN chooses the layout for a number of rows; that for 16 serves 1 to 64 well.
        packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), 16)
        self.register_buffer("packed", packed, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Product of rows (…, I) with the weights (O, I), and the bias: (…, O)."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")


def can_pack(model: LanguageModel) -> bool:
    """Whether the model runs on a CPU that oneDNN serves, in a dtype that it serves."""
    served = model.model.dtype in (torch.float32, torch.bfloat16)
    return served and model.model.device.type == "cpu" and torch.backends.mkldnn.is_available()


def pack_weights(model: LanguageModel) -> LanguageModel:
    """The same model with every linear layer packed; its logits differ by rounding.

    The packed copies of the weights need as much memory again. ValueError unless the model is in float32 or
    bfloat16 on a CPU, and torch has oneDNN.
    """
    if not can_pack(model):
        raise wrong("model", model.backend, "float32 or bfloat16 on a CPU that oneDNN serves")
    packed = structural_copy(model.model)
    for parent in list(packed.modules()):
        for name, layer in list(parent.named_children()):
            # Subclasses (quantised layers, adapters) have a product of their own.
            if type(layer) is torch.nn.Linear:
                setattr(parent, name, PackedLinear(layer))
    return LanguageModel(packed, model.tokenizer, model.name, model.revision)
