"""Packed weights: the same model but for rounding, and the plain one untouched."""

from __future__ import annotations

import numpy as np
import pytest

from otmd.models.variants import can_pack, pack_weights, skip_layers

pytestmark = pytest.mark.skipif(
    not __import__("torch").backends.mkldnn.is_available(), reason="torch has no oneDNN here"
)
TEXT = [3, 4, 5, 6, 20, 9]


def test_logits_are_the_same_but_for_rounding(tiny):
    before = tiny.logits(TEXT)
    packed = pack_weights(tiny)
    for length in range(1, len(TEXT) + 1):
        plain, own = tiny.logits(TEXT[:length]), packed.logits(TEXT[:length])
        np.testing.assert_allclose(own, plain, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(tiny.logits(TEXT), before)
    kinds = {type(module).__name__ for module in packed.model.modules()}
    assert "PackedLinear" in kinds
    assert "Linear" not in kinds
    assert (packed.vocab_size, packed.revision) == (tiny.vocab_size, tiny.revision)


def test_layers_of_a_packed_model_can_be_left_out(tiny):
    one, other = skip_layers(pack_weights(tiny), [2]), skip_layers(tiny, [2])
    np.testing.assert_allclose(one.logits(TEXT), other.logits(TEXT), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_packed_is_refused(tiny):
    import torch

    assert can_pack(tiny)
    tiny.model.to(torch.float64)
    assert not can_pack(tiny)
    with pytest.raises(ValueError, match="expected float32 or bfloat16"):
        pack_weights(tiny)
