"""Texts that the target did not sample are refused; its own are not."""

from __future__ import annotations

import numpy as np
import pytest
from collected import write_folder
from planning.test_make_plan import LENGTH, VOCAB

from otmd.models import open_dataset
from otmd.probabilities import Processing
from otmd.study.planning import Settings, read_texts
from otmd.study.planning.goodness_of_fit import check_texts

PROMPTS = 30


def write_texts(path, seed=0, temperature=1.0, by_draft=False, shift=0):
    """Logits that are drawn anew for each token, and the tokens that some process sampled from them."""
    rng = np.random.default_rng(seed)
    target = rng.normal(0, 2, (PROMPTS * LENGTH, VOCAB))
    draft = target + rng.normal(0, 1, target.shape)
    probs = Processing(temperature)(draft if by_draft else target)
    tokens = np.array([rng.choice(VOCAB, p=row) for row in probs])
    prompts = np.repeat([f"p{i}" for i in range(PROMPTS)], LENGTH)
    position = np.tile(np.arange(LENGTH), PROMPTS)
    return write_folder(
        path, target_logits=target, draft_logits=draft, prompt_id=prompts, position=position,
        token=np.roll(tokens, shift),
    )  # fmt: skip


def check(path, target=Processing()):  # noqa: B008
    dataset = open_dataset(path)
    check_texts(dataset, read_texts(dataset), Settings((), (1,), target, (target,), 0))


def test_the_targets_own_texts_pass(tmp_path):
    check(write_texts(tmp_path / "warm"))
    check(write_texts(tmp_path / "cold", temperature=0.6), Processing(0.6))


@pytest.mark.slow
def test_the_targets_own_texts_pass_at_the_stated_rate(tmp_path):
    """At a false-alarm rate of 1e-4, twenty sound runs are all accepted in 499 of 500 tests."""
    for seed in range(20):
        check(write_texts(tmp_path / f"{seed}", seed))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"temperature": 0.5}, "more likely"),
        ({"temperature": 2.0}, "less likely"),
        ({"shift": 1}, "less likely"),
        ({"by_draft": True}, "less likely"),
    ],
)
def test_texts_of_others_are_refused(tmp_path, fault, said):
    with pytest.raises(
        ValueError, match=f"target did not sample.*{said} than its samples.*, expected"
    ):
        check(write_texts(tmp_path / "texts", **fault))
