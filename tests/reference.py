"""Loop-by-loop twins of the mathematics: slow, short, and meant to be read.

Everything takes plain lists and works for ``float`` and for ``fractions.Fraction`` alike, so the
same lines that check a kernel on random floats give exact rational ground truth. A draft law is a
plain dictionary from ordered tuples of tokens to their probabilities; a verifier is a function from
a tuple to its *outcomes*, a list of ``(token, draft_index, probability)`` with index -1 where the
token was not among the drafts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations, permutations, product

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

Number = float | Fraction
Probs = Sequence[Number]
Tokens = tuple[int, ...]
Law = dict[Tokens, Number]
Outcomes = list[tuple[int, int, Number]]


# ---------------------------------------------------------------- distributions


def normalised(masses: Probs) -> list[Number]:
    total = sum(masses)
    return [mass / total for mass in masses]


def exact(values: Iterable[object]) -> list[Fraction]:
    """Read floats (or strings such as "3/10") without rounding, then make them sum to one."""
    return normalised([Fraction(value) for value in values])


def fractions(text: str) -> list[Fraction]:
    return [Fraction(part) for part in text.split(",")]


def without(masses: Probs, removed: Iterable[int]) -> list[Number]:
    """The law once some tokens are removed, what remains scaled to one.

    Sums the survivors instead of subtracting the removed from one: with masses over thirty orders
    of magnitude the subtraction would leave nothing.
    """
    gone = set(removed)
    return normalised([0 if token in gone else mass for token, mass in enumerate(masses)])


def excess(p: Probs, q: Probs) -> list[Number]:
    """The excess of p over q, (p - q)_+, scaled to one.

    Two laws that differ by rounding alone may leave nothing; p itself is then as good as any, its
    weight in the outcome being of the order of the rounding.
    """
    above = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
    return normalised(above) if any(above) else list(p)


def support(masses: Probs) -> list[int]:
    return [token for token, mass in enumerate(masses) if mass > 0]


def likeliest(q: Probs, count: int) -> Tokens:
    """The likeliest tokens in falling order, ties to the lowest id."""
    return tuple(sorted(range(len(q)), key=lambda token: (-q[token], token))[:count])


# ---------------------------------------------------------------- draft laws


def _positive(law: Law) -> Law:
    return {tokens: mass for tokens, mass in law.items() if mass > 0}


def with_replacement(q: Probs, n: int) -> Law:
    return independent([q] * n)


def independent(table: Sequence[Probs]) -> Law:
    """One distribution a draft, drawn independently."""
    law: Law = {}
    for tokens in product(range(len(table[0])), repeat=len(table)):
        law[tokens] = math.prod(q[token] for q, token in zip(table, tokens, strict=True))
    return _positive(law)


def without_replacement(q: Probs, n: int) -> Law:
    """One after another, each from what the earlier drafts have left."""
    law: Law = {}
    for tokens in permutations(support(q), n):
        mass: Number = 1
        for i, token in enumerate(tokens):
            mass = mass * without(q, tokens[:i])[token]
        law[tokens] = mass
    return _positive(law)


def conditional_poisson(q: Probs, n: int) -> Law:
    """An n-subset with probability proportional to the product of its masses, in uniform order."""
    weights: Law = {}
    for tokens in permutations(support(q), n):
        weights[tokens] = math.prod(q[token] for token in tokens)
    total = sum(weights.values())
    return _positive({tokens: weight / total for tokens, weight in weights.items()})


def top_then(q: Probs, n: int, top: int, rest: Callable[[Probs, int], Law]) -> Law:
    """The likeliest tokens first, then `rest` on what remains of q; none or all may be certain."""
    head = likeliest(q, top)
    if top == n:
        return {head: 1}
    return {head + tail: mass for tail, mass in rest(without(q, head), n - top).items()}


def greedy(q: Probs, n: int) -> Law:
    """The n - 1 likeliest tokens, then one drawn from the rest."""
    return top_then(q, n, n - 1, with_replacement)


def hub(q: Probs) -> Law:
    """SpecHub's pairs: (x, a) with q(x), (a, x) with q(a) q(x) / (1 - q(a)), a the likeliest."""
    (a,) = likeliest(q, 1)
    rest = sum(mass for token, mass in enumerate(q) if token != a)
    law: Law = {}
    for token, mass in enumerate(q):
        if token != a:
            law[token, a] = mass
            law[a, token] = q[a] * mass / rest
    return _positive(law)


def strata(
    q: Probs, n: int, sharpness: int = 1, shares: Probs | None = None
) -> tuple[list[int], list[Number]]:
    """The stratum of each token, and its probability to be that stratum's draft.

    Tokens in descending order of q; one that outweighs its share of what is left stands alone, and a
    token starts the next stratum where the share is used up. Each stratum has a token with mass.
    """
    weights, parts = [mass**sharpness for mass in q], list(shares or [1] * n)
    order = likeliest(q, len(q))
    starts = [0]
    while len(starts) < n:
        left = sum(weights[y] for y in order[starts[-1] :])
        if weights[order[starts[-1]]] * sum(parts[len(starts) - 1 :]) < left * parts[len(starts) - 1]:
            break
        starts.append(starts[-1] + 1)
    first, alone = starts[-1], len(starts) - 1
    left, rest = sum(weights[y] for y in order[first:]), sum(parts[alone:])
    while len(starts) < n:
        share = left * sum(parts[alone : len(starts)]) / rest
        place = starts[-1] + 1
        while place < len(q) and sum(weights[y] for y in order[first:place]) < share:
            place += 1
        starts.append(min(place, len(support(q)) - (n - len(starts))))
    number = [0] * len(q)
    for i, y in enumerate(order):
        number[y] = sum(start <= i for start in starts) - 1
    mass = [sum(w for w, j in zip(weights, number, strict=True) if j == k) for k in range(n)]
    return number, [w / mass[j] for w, j in zip(weights, number, strict=True)]


def containment(law: Law, subset: Iterable[int]) -> Number:
    """P(every draft lies in the subset)."""
    inside = set(subset)
    return sum(mass for tokens, mass in law.items() if inside.issuperset(tokens))


def inclusion(law: Law, vocab_size: int) -> list[Number]:
    """P(token is among the drafts), for each token."""
    return [sum(mass for tokens, mass in law.items() if token in tokens) for token in range(vocab_size)]


def arrivals(rates: Probs, time: float, most: int) -> list[Number]:
    """P(exactly m tokens of an exponential race have arrived by a time) for m < most, token by token."""
    counts: list[Number] = [1] + [0] * (most - 1)
    for rate in rates:
        absent, present = math.exp(-rate * time), -math.expm1(-rate * time)
        counts = [counts[m] * absent + (counts[m - 1] * present if m else 0) for m in range(most)]
    return counts


# ---------------------------------------------------------------- the optimum


def subsets(vocab_size: int) -> Iterable[Tokens]:
    for size in range(vocab_size + 1):
        yield from combinations(range(vocab_size), size)


def best_subset(p: Probs, contained: Callable[[Tokens], Number]) -> tuple[Number, Tokens]:
    """The minimum over H of p(H) - contained(H), and the first (smallest) H that attains it."""
    best: Number = 0
    cut: Tokens = ()
    for subset in subsets(len(p)):
        value = sum(p[token] for token in subset) - contained(subset)
        if value < best:
            best, cut = value, subset
    return best, cut


def optimal_by_subsets(p: Probs, law: Law) -> tuple[Number, Tokens]:
    """1 + min over H of p(H) - Q(all drafts in H), and the smallest H that attains it."""
    value, cut = best_subset(p, lambda subset: containment(law, subset))
    return 1 + value, cut


def smallest_best_cut(p: Probs, q: Probs, n: int) -> tuple[Number, Tokens]:
    """The minimum over H of p(H) - q(H)^n, and the smallest H that attains it; p may sum to less than one."""
    return best_subset(p, lambda subset: sum(q[token] for token in subset) ** n)


# ---------------------------------------------------------------- verifiers, one tuple at a time


def _spread(outcomes: Outcomes, law: Probs, weight: Number) -> None:
    """Add what is sampled from a residual when no draft was accepted."""
    outcomes.extend((token, -1, weight * mass) for token, mass in enumerate(law) if mass > 0)


def recursive_rejection(p: Probs, draft_after: Callable[[Tokens], Probs], tokens: Tokens) -> Outcomes:
    """Accept draft i with min(1, p_i/q_i); on rejection p becomes the excess of p_i over q_i.

    `draft_after(rejected)` is the law of the next draft, given the tokens rejected so far.
    """
    outcomes: Outcomes = []
    alive: Number = 1
    for i, token in enumerate(tokens):
        q = draft_after(tokens[:i])
        accept = min(1, p[token] / q[token])
        outcomes.append((token, i, alive * accept))
        alive = alive * (1 - accept)
        if not alive:
            return outcomes
        p = excess(p, q)
    _spread(outcomes, p, alive)
    return outcomes


def rrs(p: Probs, q: Probs) -> Callable[[Tokens], Outcomes]:
    """Recursive rejection on drafts drawn with replacement; maximal coupling on a single draft."""
    return lambda tokens: recursive_rejection(p, lambda _: q, tokens)


def rrsw(p: Probs, q: Probs) -> Callable[[Tokens], Outcomes]:
    """Recursive rejection on drafts drawn without replacement: rejected tokens leave q."""
    return lambda tokens: recursive_rejection(p, lambda rejected: without(q, rejected), tokens)


def rrs_independent(p: Probs, table: Sequence[Probs]) -> Callable[[Tokens], Outcomes]:
    """Recursive rejection where draft i has its own law."""
    return lambda tokens: recursive_rejection(p, lambda rejected: table[len(rejected)], tokens)


def k_seq_beta(p: Probs, q: Probs, rho: Number) -> Number:
    return sum(min(a / rho, b) for a, b in zip(p, q, strict=True))


def _tries(beta: Number, n: int) -> Number:
    """(1 - (1 - beta)^n) / beta as a geometric sum, which does not cancel for small beta."""
    return sum((1 - beta) ** i for i in range(n))


def k_seq_rho(p: Probs, q: Probs, n: int) -> float:
    """The root of 1 - (1 - beta)^n = rho beta in [1, n], by bisection."""
    low, high = 1.0, float(n)
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        if _tries(k_seq_beta(p, q, middle), n) > middle:
            low = middle
        else:
            high = middle


def k_seq(p: Probs, q: Probs, n: int, rho: Number | None = None) -> Callable[[Tokens], Outcomes]:
    """K-SEQ: accept each draft with min(1, p/(rho q)); the residual is what that leaves of p."""
    scale = k_seq_rho(p, q, n) if rho is None else rho
    ratio = _tries(k_seq_beta(p, q, scale), n)
    residual = excess(p, [min(a / scale, b) * ratio for a, b in zip(p, q, strict=True)])

    def outcomes_of(tokens: Tokens) -> Outcomes:
        outcomes: Outcomes = []
        alive: Number = 1
        for i, token in enumerate(tokens):
            accept = min(1, p[token] / (scale * q[token]))
            outcomes.append((token, i, alive * accept))
            alive = alive * (1 - accept)
        _spread(outcomes, residual, alive)
        return outcomes

    return outcomes_of


def spec_hub(p: Probs, q: Probs) -> Callable[[Tokens], Outcomes]:
    """(x, a) goes to x first, then (a, x) to x, then what is left of all pairs to a, up to p(a)."""
    law = hub(q)
    (a,) = likeliest(q, 1)
    taken: Law = {}
    for x in range(len(q)):
        if (x, a) in law:
            taken[x, a] = min(p[x], law[x, a])
            taken[a, x] = min(p[x] - taken[x, a], law.get((a, x), 0))
    left = sum(mass - taken[pair] for pair, mass in law.items())
    to_hub = min(1, p[a] / left) if left > 0 else 0
    used: list[Number] = [0] * len(q)
    for pair, mass in taken.items():
        used[pair[1 - pair.index(a)]] += mass
    used[a] = to_hub * left
    residual = excess(p, used)

    def outcomes_of(pair: Tokens) -> Outcomes:
        at_hub = pair.index(a)
        share = taken[pair] / law[pair]
        outcomes: Outcomes = [(pair[1 - at_hub], 1 - at_hub, share)]
        outcomes.append((a, at_hub, (1 - share) * to_hub))
        _spread(outcomes, residual, (1 - share) * (1 - to_hub))
        return outcomes

    return outcomes_of


def greedy_coupling(p: Probs, q: Probs, n: int) -> Callable[[Tokens], Outcomes]:
    """Maximal coupling of p with q off the top; a residual token among the drafts counts."""
    coupled = rrs(p, without(q, likeliest(q, n - 1)))

    def outcomes_of(tokens: Tokens) -> Outcomes:
        last = len(tokens) - 1
        return [
            (token, last if index == 0 else position(tokens, token), mass)
            for token, index, mass in coupled(tokens[-1:])
        ]

    return outcomes_of


def position(tokens: Tokens, token: int) -> int:
    return tokens.index(token) if token in tokens else -1


def target_only(p: Probs) -> Callable[[Tokens], Outcomes]:
    """Sample the target and see whether the token was drafted."""
    return lambda tokens: [(y, position(tokens, y), mass) for y, mass in enumerate(p) if mass > 0]


def skipping_duplicates(p: Probs, q: Probs) -> Callable[[Tokens], Outcomes]:
    """A fault: a draft that repeats a rejected one is skipped, p_i left as it was."""

    def outcomes_of(tokens: Tokens) -> Outcomes:
        distinct = tuple(dict.fromkeys(tokens))
        return recursive_rejection(p, lambda _: q, distinct)

    return outcomes_of


def conditional(outcomes: Outcomes, vocab_size: int) -> list[Number]:
    """The law of the output token, given the drafts."""
    law: list[Number] = [0] * vocab_size
    for token, _, mass in outcomes:
        law[token] += mass
    return law


def judged(
    law: Law, outcomes_of: Callable[[Tokens], Outcomes], vocab_size: int
) -> tuple[Number, list[Number]]:
    """Acceptance rate (output among the drafts) and output law, every tuple enumerated."""
    rate: Number = 0
    output: list[Number] = [0] * vocab_size
    for tokens, chance in law.items():
        for token, _, mass in outcomes_of(tokens):
            output[token] += chance * mass
            if token in tokens:
                rate += chance * mass
    return rate, output


# ---------------------------------------------------------------- the ratio curve


def hockey_stick(p: Probs, q: Probs, C: Number) -> Number:
    """W(C) = sum of (p - C q)_+."""
    return sum(max(a - C * b, 0) for a, b in zip(p, q, strict=True))


def rrs_by_curve(p: Probs, q: Probs, n: int) -> Number:
    """1 - W(C_{n+1}) with C_1 = 0 and C_{k+1} = C_k + W(C_k)."""
    C: Number = 0
    for _ in range(n):
        C = C + hockey_stick(p, q, C)
    return 1 - hockey_stick(p, q, C)


# ---------------------------------------------------------------- sequences

Model = Callable[[Tokens], Probs]
Tree = dict[Tokens, Tokens]
Emitted = list[tuple[Tokens, Number]]


def trees_of_paths(draft: Model, paths: int, depth: int) -> Iterable[tuple[Tree, Number]]:
    """Independent paths as trees: the drafts after a prefix, in the order of their paths."""
    for drawn in product(product(range(len(draft(()))), repeat=depth), repeat=paths):
        chance = math.prod(draft(path[:i])[y] for path in drawn for i, y in enumerate(path))
        tree: Tree = {}
        for path in drawn:
            for i, y in enumerate(path):
                tree[path[:i]] = (*tree.get(path[:i], ()), y)
        if chance > 0:
            yield tree, chance


def trees_by_layer(
    draft: Model, branching: Sequence[int], law: Callable[[Probs, int], Law], prefix: Tokens = ()
) -> Iterable[tuple[Tree, Number]]:
    """Every node of a layer has as many drafts as the layer's number says, of the law of q and n."""
    if not branching:
        yield {}, 1
        return
    for tokens, mass in law(draft(prefix), branching[0]).items():
        distinct = dict.fromkeys(tokens)
        below = [trees_by_layer(draft, branching[1:], law, (*prefix, y)) for y in distinct]
        for parts in product(*below):
            tree = {node: own for part, _ in parts for node, own in part.items()}
            yield tree | {prefix: tokens}, mass * math.prod(chance for _, chance in parts)


def emitted(trees: Iterable[tuple[Tree, Number]], rule: Callable[[Tree], Emitted]) -> Law:
    """The law of what a step emits, every tree and every outcome of the rule enumerated."""
    law: Law = {}
    for tree, chance in trees:
        for tokens, mass in rule(tree):
            law[tokens] = law.get(tokens, 0) + chance * mass
    return _positive(law)


def token_level(target: Model, draft: Model, verifier: Callable) -> Callable[[Tree], Emitted]:
    """Verify one position after another; ``verifier(p, q, n)`` is the rule of one position."""

    def after(tree: Tree, prefix: Tokens) -> Emitted:
        p, tokens = target(prefix), tree.get(prefix, ())
        if not tokens:
            return [((*prefix, y), mass) for y, mass in enumerate(p)]
        found: Emitted = []
        for y, _, mass in verifier(p, draft(prefix), len(tokens))(tokens):
            longer = after(tree, (*prefix, y)) if y in tokens else [((*prefix, y), 1)]
            found += [(own, mass * chance) for own, chance in longer]
        return found

    return lambda tree: after(tree, ())


def traversal(target: Model, draft: Model) -> Callable[[Tree], Emitted]:
    """Children before their parent, drafts without replacement; on a single path, block verification."""

    def below(tree: Tree, prefix: Tokens, reached: Number) -> tuple[Emitted, Number]:
        """The emitted paths with their probabilities, and the probability that the subtree is refused."""
        p, found, alive = target(prefix), [], 1
        drafts = tree.get(prefix, ())
        for i, y in enumerate(drafts):
            q = without(draft(prefix), drafts[:i])
            inner, refused = below(tree, (*prefix, y), min(reached * p[y] / q[y], 1))
            found += [(own, alive * mass) for own, mass in inner]
            alive = alive * refused
            scaled = [reached * mass for mass in p]
            left = hockey_stick(scaled, q, 1)
            p = excess(scaled, q) if left > 0 else p
            reached = left / (left + 1 - reached) if left + 1 - reached > 0 else 1
        stop = reached if prefix else 1
        found += [((*prefix, y), alive * stop * mass) for y, mass in enumerate(p)]
        return found, alive * (1 - stop)

    return lambda tree: below(tree, (), 1)[0]


def best_step(target: Model, trees: Iterable[tuple[Tree, Number]], depth: int) -> float:
    """The most tokens per step: e_x(u) ≥ 0 for each tree x and each path of it with one token more."""
    listed, size = list(trees), len(target(()))
    paths = [[(), *((*node, y) for node, own in tree.items() for y in own)] for tree, _ in listed]
    columns = [(x, (*u, y)) for x, own in enumerate(paths) for u in dict.fromkeys(own) for y in range(size)]
    sequences = list(product(range(size), repeat=depth + 1))

    def chance(tokens: Tokens, known: int = 0) -> float:
        return math.prod(target(tokens[:i])[tokens[i]] for i in range(known, len(tokens)))

    rows = [[float(x == own) for x, _ in columns] for own in range(len(listed))]
    rows += [[chance(s, len(u)) * (s[: len(u)] == u) for _, u in columns] for s in sequences]
    limit = np.array([*(mass for _, mass in listed), *map(chance, sequences)])
    # Feasibility tolerances are absolute, so the masses are scaled up to make them 1e-15 in effect.
    scale, lengths = 1e5, np.array([float(len(u)) for _, u in columns])
    options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    sides = {"A_eq": coo_array(rows), "b_eq": scale * limit}
    answer = linprog(-lengths, **sides, bounds=(0, None), method="highs-ds", options=options)
    assert answer.status == 0, answer.message
    return -answer.fun / scale
