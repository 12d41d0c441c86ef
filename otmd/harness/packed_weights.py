"""Weights laid out for products with few rows: what checking a draft tree on a CPU is made of.

On a CPU a plain product of a weight matrix with a few rows can cost much more than the product with one row,
though both read the same weights. oneDNN's own layout of the weights, made once, avoids most of that.
"""

import torch

from otmd.harness.layer_skip import structural_copy
from otmd.harness.models import LanguageModel

# The layout is chosen for a number of rows; this one serves 1 to 64 well.
ROWS = 16
DTYPES = (torch.float32, torch.bfloat16)


class PackedLinear(torch.nn.Module):
    """A linear layer by oneDNN's layout of its weights; the plain weights are kept beside it.

    Parameters
    ----------
    layer : torch.nn.Linear
        On the CPU, float32 or bfloat16.
    """

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)
        self.register_buffer("packed", packed, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Product of rows (…, I) with the weights (O, I), and the bias: (…, O)."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")


def can_pack(model: LanguageModel) -> bool:
    """Whether the model runs on a CPU that oneDNN serves, in a dtype that it serves."""
    inner = model.model
    served = inner.device.type == "cpu" and inner.dtype in DTYPES
    return served and torch.backends.mkldnn.is_available()


def pack_weights(model: LanguageModel) -> LanguageModel:
    """The same model with every linear layer packed.

    Parameters
    ----------
    model : LanguageModel
        It is not changed, and shares its weights with the result; the packed ones come on top.

    Returns
    -------
    LanguageModel
        Its logits differ by rounding: sums are taken in another order, in the same precision.

    Raises
    ------
    ValueError
        For a model that is not on the CPU, in float32 or bfloat16, or a torch without oneDNN.
    """
    if not can_pack(model):
        raise ValueError(
            f"model: got {model.backend}, wanted float32 or bfloat16 on a CPU that oneDNN serves"
        )
    packed = structural_copy(model.model)
    for parent in list(packed.modules()):
        for name, layer in list(parent.named_children()):
            # Subclasses (quantised layers, adapters) have a product of their own.
            if type(layer) is torch.nn.Linear:
                setattr(parent, name, PackedLinear(layer))
    return LanguageModel(packed, model.tokenizer, model.name, model.revision)
