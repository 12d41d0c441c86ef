"""From two models' distributions along texts to a decision: which drafts, which rule, which tree."""
