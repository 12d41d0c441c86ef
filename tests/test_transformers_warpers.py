"""Logits become the probabilities that transformers samples from, warper by warper and in its order."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import otmd
from otmd.probabilities import ORDERS

torch = pytest.importorskip("torch")
generation = pytest.importorskip("transformers.generation")

WARPERS = {
    "temperature": generation.TemperatureLogitsWarper,
    "top_k": generation.TopKLogitsWarper,
    "top_p": generation.TopPLogitsWarper,
    "min_p": generation.MinPLogitsWarper,
}
SETTINGS = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.05},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.5, "top_k": 3, "top_p": 0.5},
    {"top_k": 10_000},
    {"top_p": 1e-6},
]


def _by_transformers(logits: np.ndarray, settings: dict) -> np.ndarray:
    """The warpers that `generate` builds for these settings, applied in its order, in float64."""
    from transformers import GenerationConfig, GenerationMixin

    config = GenerationConfig(do_sample=True, **{"top_k": 0, **settings})
    owner = type("Owner", (GenerationMixin,), {"config": None})()
    processors = owner._get_logits_processor(generation_config=config, input_ids_seq_length=1)
    scores = processors(torch.zeros((len(logits), 1), dtype=torch.long), torch.tensor(logits))
    return scores.softmax(-1).numpy()


def test_as_generate_does() -> None:
    logits = 3 * np.random.default_rng(0).standard_normal((8, 1000))
    found = []
    for settings in SETTINGS:
        expected = _by_transformers(logits, settings)
        found.append(otmd.probs_from_logits(logits, **settings))
        np.testing.assert_array_equal(found[-1] > 0, expected > 0)
        np.testing.assert_allclose(found[-1], expected, rtol=1e-12)
    # All but {} and a top-k above the vocabulary do something.
    assert len({probs.tobytes() for probs in found}) == len(SETTINGS) - 1


def test_ties_at_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    # Few values, as of bfloat16 logits, so that most edges have ties.
    logits = np.random.default_rng(1).integers(-8, 8, (300, 40)) / 4
    # torch may sort float32 and float64 by an algorithm that leaves ties in any order.
    monkeypatch.setattr(torch, "sort", partial(torch.sort, stable=True))
    for settings in ({"top_p": 0.85}, {"top_p": 0.3}, {"top_k": 7}, {"top_k": 9, "top_p": 0.6}):
        kept = otmd.probs_from_logits(logits, **settings) > 0
        np.testing.assert_array_equal(kept, _by_transformers(logits, settings) > 0)
    # Of two tokens that tie at the edge of top-p, the one with the higher id stays.
    assert (otmd.probs_from_logits([2.5, 0.8, 0.7, 0.7], top_p=0.85) > 0).tolist() == [1, 1, 0, 1]
    assert otmd.probs_from_logits([1.0, 1.0, 0.0], temperature=0).tolist() == [1, 0, 0]


# Logits that differ by less than the rounding of their distance to the largest are tied: none here.
@given(
    logits=st.lists(st.integers(-30_000, 30_000), min_size=1, max_size=8, unique=True).map(
        lambda thousandths: [k / 1000 for k in thousandths]
    ),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.one_of(st.none(), st.integers(1, 9)),
    top_p=st.one_of(st.none(), st.floats(0.05, 0.99)),
    min_p=st.one_of(st.none(), st.floats(0.0, 0.9)),
    order=st.one_of(st.sampled_from([*ORDERS]), st.permutations(ORDERS["transformers"])),
)
def test_by_the_warpers_in_every_order(
    logits: list[float],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    order: str | list[str],
) -> None:
    def by_warpers(**settings: float | None) -> np.ndarray:
        scores = torch.tensor([logits], dtype=torch.float64)
        for step in ORDERS[order] if isinstance(order, str) else order:
            if settings[step] is not None:
                scores = WARPERS[step](settings[step])(None, scores)
        return scores.softmax(-1)[0].numpy()

    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    probs = otmd.probs_from_logits(np.array(logits), **options, order=order)
    # A sum that meets the threshold to the last bit may fall on either side of it.
    nudged = [
        by_warpers(**options | {"top_p": p, "min_p": m})
        for p in ([top_p] if top_p is None else [top_p - 1e-12, top_p, top_p + 1e-12])
        for m in ([min_p] if min_p is None else [max(min_p - 1e-12, 0), min_p, min_p + 1e-12])
    ]
    assert any(np.allclose(probs, expected, rtol=0, atol=1e-12) for expected in nudged)
    by_object = otmd.Processing(**options, order=order)(np.array(logits))
    np.testing.assert_array_equal(by_object, probs)


def test_orders_are_texts_and_name_what_they_are() -> None:
    # llama.cpp cuts at temperature 1.
    options = {"temperature": 0.5, "top_p": 0.8}
    assert otmd.probs_from_logits([3.0, 2.0, 1.0], **options).tolist() == [1, 0, 0]
    at_last = otmd.probs_from_logits([3.0, 2.0, 1.0], **options, order="llama.cpp")
    np.testing.assert_allclose(at_last, [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2)), 0], rtol=1e-15)
    steps = ["temperature", "top_p", "top_k", "min_p"]
    processing = otmd.Processing(top_p=0.9, order=steps)
    assert processing == otmd.Processing(top_p=0.9, order="temperature, top_p, top_k, min_p")
    assert processing.order == "temperature,top_p,top_k,min_p"
    assert processing.steps == tuple(steps)
    assert otmd.Processing(0.5, order="vllm") == otmd.Processing(0.5)
    for order in ("vLLM", "temperature,top_p", steps[:3], [*steps, "top_p"], "", [[1]]):
        with pytest.raises(ValueError, match=r"order: got .* expected one of transformers, vllm"):
            otmd.Processing(top_p=0.9, order=order)
    with pytest.raises(TypeError, match=r"order: got int, expected one of transformers, vllm"):
        otmd.Processing(top_p=0.9, order=3)
