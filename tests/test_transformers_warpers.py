"""Logits become the probabilities that transformers samples from, warper by warper and in its order."""

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


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_as_generate_does(settings: dict) -> None:
    logits = 3 * np.random.default_rng(0).standard_normal((8, 1000))
    expected = _by_transformers(logits, settings)
    probs = otmd.probs_from_logits(logits, **settings)
    np.testing.assert_array_equal(probs > 0, expected > 0)
    np.testing.assert_allclose(probs, expected, rtol=1e-12)


def test_the_settings_do_something() -> None:
    logits = 3 * np.random.default_rng(0).standard_normal((1, 1000))
    plain = otmd.probs_from_logits(logits)
    changed = [s for s in SETTINGS if not np.allclose(otmd.probs_from_logits(logits, **s), plain)]
    assert len(changed) == len(SETTINGS) - 2


def test_ties_at_the_edge() -> None:
    logits = np.log([0.3, 0.3, 0.2, 0.2])
    assert (otmd.probs_from_logits(logits, top_k=1) > 0).tolist() == [True, True, False, False]
    assert (otmd.probs_from_logits(logits, top_p=0.25) > 0).tolist() == [True, False, False, False]
    assert otmd.probs_from_logits(logits, temperature=0).tolist() == [1, 0, 0, 0]
