import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.naive_ngram import naive_ngram
from otmd.models import NGram

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


def test_worked_by_hand():
    # After 0 came 1 twice and 2 once: c = 3, N = 2. Unigrams: c = 7, N = 3, V = 4.
    model = NGram.fit([[0, 1, 0, 1, 0, 2, 2]], 4, order=2)
    unigram = (np.array([3, 2, 2, 0]) + 3 / 4) / 10
    np.testing.assert_allclose(
        model.probs([3, 0]), (np.array([0, 2, 1, 0]) + 2 * unigram) / 5, rtol=1e-15
    )


def test_no_gram_reaches_over_the_end_of_a_sequence():
    together, apart = NGram.fit([[0, 1]], 3, 2), NGram.fit([[0], [1]], 3, 2)
    assert together.probs([0])[1] > apart.probs([0])[1]
    np.testing.assert_array_equal(apart.probs([0]), apart.probs([]))


def test_saved_and_loaded_is_the_same(tmp_path):
    rng = np.random.default_rng(0)
    model = NGram.fit([rng.integers(0, 50, 400)], 50, order=3)
    model.save(tmp_path / "model.npz")
    loaded = NGram.load(tmp_path / "model.npz")
    assert loaded.order == 3
    assert loaded.sha256() == model.sha256()
    np.testing.assert_array_equal(loaded.probs([3, 4]), model.probs([3, 4]))


def test_another_file_is_not_loaded(tmp_path):
    np.savez(tmp_path / "other.npz", unigrams=np.arange(3), more=np.arange(3))
    with pytest.raises(ValueError, match="no n-gram model"):
        NGram.load(tmp_path / "other.npz")


def test_a_large_vocabulary_does_not_overflow():
    tokens = [151_935, 151_934] * 3
    model = NGram.fit([tokens], 151_936, order=5)
    probs = model.probs(tokens)
    assert probs.argmax() == 151_935
    assert abs(probs.sum() - 1) < 1e-10


@pytest.mark.parametrize(
    ("sequences", "order", "message"),
    [([[0, 1]], 0, "order"), ([[]], 2, "sequences"), ([[0, 9]], 2, "sequences"), ([], 2, "seq")],
)
def test_bad_input(sequences, order, message):
    with pytest.raises(ValueError, match=message):
        NGram.fit(sequences, 5, order)
