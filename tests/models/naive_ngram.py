"""The n-gram model once more, with dictionaries and the recursion written out."""

from collections import Counter, defaultdict


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
