"""A loop-by-loop twin of the verifier that follows a transport plan."""

from __future__ import annotations

from collections.abc import Callable

from reference import Law, Number, Outcomes, Probs, Tokens, _spread, excess


def plan_rule(p: Probs, law: Law, accepted: dict[tuple[Tokens, int], Number]) -> Callable:
    """A rule from accepted masses π(x, y), scaled down to Q(x) first and to p(y) then."""
    mass = {arc: max(own, 0) for arc, own in accepted.items()}
    for part, limit in ((0, law), (1, dict(enumerate(p)))):
        for key in {arc[part] for arc in mass}:
            total = sum(own for arc, own in mass.items() if arc[part] == key)
            if total > limit[key]:
                mass = {
                    a: m * (limit[key] / total if a[part] == key else 1) for a, m in mass.items()
                }
    taken = [sum(own for arc, own in mass.items() if arc[1] == y) for y in range(len(p))]

    def outcomes_of(tokens: Tokens) -> Outcomes:
        outcomes = [
            (y, tokens.index(y), mass[tokens, y] / law[tokens]) for y in sorted(set(tokens))
        ]
        _spread(outcomes, excess(p, taken), 1 - sum(own for _, _, own in outcomes))
        return outcomes

    return outcomes_of
