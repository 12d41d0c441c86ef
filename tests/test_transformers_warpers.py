"""Logits become the probabilities that transformers samples from, warper by warper and in its order."""

from functools import partial

import numpy as np
import pytest

import otmd

torch = pytest.importorskip("torch")
generation = pytest.importorskip("transformers.generation")

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


def test_by_the_warpers_in_the_order_of_an_engine() -> None:
    from otmd.probabilities import ORDERS

    logits = 3 * np.random.default_rng(0).standard_normal((8, 1000))
    settings = {"temperature": 0.6, "top_k": 30, "top_p": 0.9, "min_p": 0.05}
    warpers = {
        "temperature": generation.TemperatureLogitsWarper(0.6),
        "top_k": generation.TopKLogitsWarper(30),
        "top_p": generation.TopPLogitsWarper(0.9),
        "min_p": generation.MinPLogitsWarper(0.05),
    }
    found = []
    for order in [*ORDERS, ("temperature", "top_p", "top_k", "min_p")]:
        scores = torch.tensor(logits)
        for step in ORDERS.get(order, order):
            scores = warpers[step](None, scores)
        probs = otmd.probs_from_logits(logits, **settings, order=order)
        np.testing.assert_allclose(probs, scores.softmax(-1).numpy(), rtol=1e-12, atol=0)
        found.append(probs)
    # SGLang's order is that of transformers.
    assert len({probs.tobytes() for probs in found}) == len(found) - 1


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
