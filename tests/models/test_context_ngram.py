"""The n-gram model that learns from the text, against the recursion written out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.naive_ngram import naive_ngram
from otmd.models import ContextNGram, NGram, NGramDraft, load_draft
from otmd.models.continuations import CountedContinuations
from otmd.models.ngram import SHORTEST
from otmd.probabilities import Processing

TOKENS = st.lists(st.integers(0, 3), max_size=30)


def naive(corpus, order, text, prefix, longest):
    """Law of the token after text and prefix: for each run, longer and longer, by its definition."""
    last = [*text, *prefix]
    law = naive_ngram(corpus, 4, order, last)
    for length in range(SHORTEST, min(longest, len(last)) + 1):
        run = last[-length:]
        starts = [i for i in range(len(text) - length) if text[i : i + length] == run]
        after = Counter(text[i + length] for i in starts)
        if not after:
            break
        kinds, total = len(after), sum(after.values())
        law = [(after[t] + kinds * law[t]) / (total + kinds) for t in range(4)]
    return law


@given(
    corpus=TOKENS.filter(any),
    order=st.integers(1, 3),
    text=TOKENS,
    prefix=st.lists(st.integers(0, 3), max_size=4),
    longest=st.integers(0, 5),
    cut=st.integers(0, 30),
)
def test_equals_the_naive_twin_and_is_a_positive_law(corpus, order, text, prefix, longest, cut):
    model = ContextNGram(NGram.fit([corpus], 4, order), longest)
    model.extend(text[:cut])
    model.extend(text[cut:])
    found = model.probs(prefix)
    np.testing.assert_allclose(found, naive([corpus], order, text, prefix, longest), rtol=1e-12)
    assert found.sum() == pytest.approx(1.0)
    assert (found > 0).all()


def test_what_the_text_repeats_becomes_likely():
    model = ContextNGram(NGram.fit([[0, 1, 2, 3]], 4, 1), 3)
    model.extend([0, 1, 2, 0, 1, 2, 0, 1])
    assert model.probs().argmax() == 2
    assert model.probs()[2] == pytest.approx(7 / 8)
    assert ContextNGram(model.model, 0).probs()[2] == pytest.approx(0.25)


def test_a_negative_length_is_refused():
    with pytest.raises(ValueError, match="longest: got -1"):
        ContextNGram(NGram.fit([[0]], 1, 1), -1)


def test_a_draft_of_both_kinds_by_its_text(tiny):
    corpus = [[5, 6, 7, 8] * 5]
    plain, learning = (load_draft(spec, tiny, corpus) for spec in ("ngram:2", "ngram:2+context"))
    assert (plain.name, learning.name) == ("ngram:2", "ngram:2+context")
    text = [9, 10, 11, 9, 10]
    before, after = (np.exp(draft.logits(text)[-1][11]) for draft in (plain, learning))
    assert after > 10 * before
    rows = [3, 1, 4, 3]
    alone = [learning.logits(text[: row + 1])[-1] for row in rows]
    assert (learning.logits(text, rows) == alone).all()
    counted = CountedContinuations(learning, text[:3])
    counted.extend(text[3:])
    np.testing.assert_allclose(counted.logits([()])[0], learning.logits(text)[-1], rtol=1e-5)
    sharp = counted.probs((), Processing(0.5))
    np.testing.assert_allclose(sharp, Processing(0.5)(counted.logits([()])[0]), rtol=1e-12)
    assert isinstance(plain, NGramDraft)


@pytest.mark.parametrize("spec", ["ngram+text", "ngram:x+context", "ngram:2+context+context:"])
def test_a_text_that_names_no_draft(tiny, spec):
    with pytest.raises(ValueError, match=r"draft: .*got|there is no file"):
        load_draft(spec, tiny, [[1, 2]])
