"""One call of a transformers model, for those positions that are wanted."""

import inspect
from typing import Any


def forward_logits(model: Any, keep: Any, position_ids: Any = None, **inputs: Any) -> Any:
    """Logits (B, K, V) at the positions ``keep`` alone.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A decoder-only language model.
    keep : (K,) integer tensor
        Positions along the inputs.
    position_ids : (B, T) integer tensor, optional
        Passed to models that take them; others count by the attention mask.
    **inputs
        Passed on to the model.
    """
    takes = inspect.signature(model.forward).parameters
    if position_ids is not None and "position_ids" in takes:
        inputs["position_ids"] = position_ids
    if "logits_to_keep" in takes:
        # Spares the output layer's product, the largest of all, at positions nobody looks at.
        return model(**inputs, logits_to_keep=keep).logits
    return model(**inputs).logits[:, keep]
