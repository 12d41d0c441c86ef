from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otmd.models import ContextNGram, NGram, NGramDraft, load_draft
from otmd.models.continuations import continuations
from otmd.models.ngram import SHORTEST
from otmd.probabilities import Processing

TOKENS = st.lists(st.integers(0, 5), max_size=12)


@given(
    sequences=st.lists(TOKENS, min_size=1, max_size=5).filter(any),
    order=st.integers(1, 4),
    context=TOKENS,
)
def test_equals_the_naive_twin_and_is_a_positive_law(sequences, order, context):
    probs = NGram.fit(sequences, 6, order).probs(context)
    np.testing.assert_allclose(probs, naive_ngram(sequences, 6, order, context), rtol=1e-12, atol=0)
    assert abs(probs.sum() - 1) < 1e-12
    assert (probs > 0).all()


def test_a_large_vocabulary_does_not_overflow():
    tokens = [151_935, 151_934] * 3
    model = NGram.fit([tokens], 151_936, order=5)
    probs = model.probs(tokens)
    assert probs.argmax() == 151_935
    assert abs(probs.sum() - 1) < 1e-10


TEXTS = st.lists(st.integers(0, 3), max_size=30)


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
    corpus=TEXTS.filter(any),
    order=st.integers(1, 3),
    text=TEXTS,
    prefix=st.lists(st.integers(0, 3), max_size=4),
    longest=st.integers(0, 5),
    cut=st.integers(0, 30),
)
def test_counts_of_the_text_equal_their_naive_twin(corpus, order, text, prefix, longest, cut):
    model = ContextNGram(NGram.fit([corpus], 4, order), longest)
    model.extend(text[:cut])
    model.extend(text[cut:])
    found = model.probs(prefix)
    np.testing.assert_allclose(found, naive([corpus], order, text, prefix, longest), rtol=1e-12)
    assert found.sum() == pytest.approx(1.0)
    assert (found > 0).all()


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
    counted = continuations(learning, text[:3])
    counted.extend(text[3:])
    np.testing.assert_allclose(counted.logits([()])[0], learning.logits(text)[-1], rtol=1e-5)
    for step in (Processing(), Processing(0.5)):
        expected = step(counted.logits([()])[0])
        np.testing.assert_allclose(counted.distribution((), step), expected, rtol=1e-12)
    assert isinstance(plain, NGramDraft)


def naive_ngram(sequences, vocab_size, order, context):
    """Law (list of V floats) of the token after ``context``, by Witten-Bell interpolation."""
    after = defaultdict(Counter)
    for sequence in sequences:
        for end, token in enumerate(sequence):
            for length in range(min(order - 1, end) + 1):
                after[tuple(sequence[end - length : end])][token] += 1

    def prob(token, history):
        counts = after[history]
        lower = prob(token, history[1:]) if history else 1 / vocab_size
        if not counts:
            return lower
        kinds = len(counts)
        return (counts[token] + kinds * lower) / (sum(counts.values()) + kinds)

    history = tuple(context[max(0, len(context) - (order - 1)) :])
    return [prob(token, history) for token in range(vocab_size)]
