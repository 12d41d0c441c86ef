"""Kernels of the ratio curve: rates that need a few passes over p and q, and no sort.

``target`` and ``draft`` are p and q of one position, shape (V,). Kernels with ``p_row`` and ``q_row`` serve
many positions: position b reads row p_row[b] of p and row q_row[b] of q.
"""

import numpy as np

from otmd.kernel import REASSOCIATE, kernel

# Tokens are summed in parts of this size, which loses fewer digits than one long chain of additions.
AT_A_TIME = 1024
# Larger ratios are compressed, or p/q would overflow where q is subnormal.
_LARGE_RATIO = 2.0**1020

SLACK = 1e-13
"""Values of p − g that differ by less count as equal: the difference may be rounding."""

# Steps of the search for K-SEQ's scale; Newton's method takes about eight.
_MOST_STEPS = 200
# Newton's method has converged when its bracket is this narrow, relative to its upper end.
_LAST_DIGITS = 4.0 * np.finfo(float).eps


@kernel()
def power(x, n):
    """x^n for a whole number n ≥ 1, by squaring."""
    result = 1.0
    while n > 0:
        if n & 1:
            result *= x
        x *= x
        n >>= 1
    return result


@kernel()
def copy_numbers(source, target):
    """Copy an array of the same size; Numba takes seconds to compile an assignment of arrays."""
    for i in range(source.size):
        target[i] = source[i]


@kernel(error_model="numpy")
def fill_ratios(target, draft, ratio):
    """p/q of each token, inf where q = 0. Ratios beyond 2^1020 are compressed, and keep their order."""
    large = 0
    for y in range(target.size):
        ratio[y] = target[y] / draft[y] if draft[y] > 0.0 else np.inf
        large += 1 if ratio[y] >= _LARGE_RATIO and draft[y] > 0.0 else 0
    if large:
        _compress(target, draft, ratio)


@kernel()
def _compress(target, draft, ratio):
    """Replace each ratio r beyond 2^1020, finite or not, by 2^1020 (r/2^1020)^(1/32), which is finite."""
    for y in range(target.size):
        if ratio[y] >= _LARGE_RATIO and draft[y] > 0.0:
            root = target[y] * 2.0**-1020 / draft[y]
            for _ in range(5):
                root = np.sqrt(root)
            ratio[y] = _LARGE_RATIO * root


@kernel()
def ratios_of(target, draft, tokens):
    """The ratios of some tokens, as :func:`fill_ratios` has them."""
    p = np.empty(AT_A_TIME)
    q = np.empty(AT_A_TIME)
    ratio = np.empty(tokens.size)
    for start in range(0, tokens.size, AT_A_TIME):
        part = ratio[start : start + AT_A_TIME]
        for i in range(part.size):
            y = np.uint64(tokens[start + i])
            p[i], q[i] = target[y], draft[y]
        fill_ratios(p[: part.size], q[: part.size], part)
    return ratio


@kernel()
def fill_below(target, draft, ends, subsets):
    """Fill the masks (N, V) of the tokens with p/q below each of the ends (N,)."""
    ratio = np.empty(AT_A_TIME)
    for start in range(0, target.size, AT_A_TIME):
        p, q = target[start : start + AT_A_TIME], draft[start : start + AT_A_TIME]
        fill_ratios(p, q, ratio)
        for i in range(ends.size):
            below = subsets[i, start : start + AT_A_TIME]
            end = ends[i]
            for y in range(p.size):
                below[y] = ratio[y] < end


@kernel()
def fill_sorted_cuts(target, draft, ratio, order, counts, value, ends):
    """Fill the smallest minimiser of p(H) − q(H)^n for the ``counts`` (N,) of drafts, shapes (B, N).

    ``order`` (B, V) are the tokens by p/q ascending. ``value`` becomes p(H) − q(H)^n, and ``ends`` the ratio
    that H ends below.
    """
    p_before, q_before, edge, values = np.empty((4, order.shape[1] + 1))
    for b in range(order.shape[0]):
        k = 0
        p = 0.0
        q = 0.0
        last = -1.0
        for j in range(order.shape[1]):
            y = order[b, j]
            # A cut holds all tokens of one ratio or none.
            if ratio[b, y] > last:
                last = ratio[b, y]
                p_before[k] = p
                q_before[k] = q
                edge[k] = last
                k += 1
            p += target[b, y]
            q += draft[b, y]
        p_before[k] = p
        q_before[k] = q
        edge[k] = np.inf
        for i in range(counts.size):
            least = np.inf
            for j in range(k + 1):
                # p(H) − q(H)^n, H the tokens below the edge j : values[j]
                values[j] = p_before[j] - power(min(q_before[j], 1.0), counts[i])
                least = min(least, values[j])
            j = 0
            while values[j] > least + SLACK:
                j += 1
            value[b, i] = values[j]
            ends[b, i] = edge[j]


@kernel(fastmath=REASSOCIATE)
def hockey_stick(target, draft, C):
    """W(C) = Σ (p − C q)₊."""
    # Σ (p − C q)₊ : total
    total = 0.0
    for start in range(0, target.size, AT_A_TIME):
        p, q = target[start : start + AT_A_TIME], draft[start : start + AT_A_TIME]
        part = 0.0
        for y in range(p.size):
            part += max(p[y] - C * q[y], 0.0)
        total += part
    return min(total, 1.0)


@kernel(fastmath=REASSOCIATE)
def _hockey_stick_and_slope(target, draft, C):
    """W(C), and −W′(C): q of the tokens with p > C q."""
    # W(C) = p_above − C q_above, −W′(C) = q_above
    p_above, q_above = 0.0, 0.0
    for start in range(0, target.size, AT_A_TIME):
        p, q = target[start : start + AT_A_TIME], draft[start : start + AT_A_TIME]
        p_part, q_part = 0.0, 0.0
        for y in range(p.size):
            # A factor vectorises where a condition on two sums does not.
            above = 1.0 if p[y] > C * q[y] else 0.0
            p_part += above * p[y]
            q_part += above * q[y]
        p_above += p_part
        q_above += q_part
    return min(max(p_above - C * q_above, 0.0), 1.0), q_above


@kernel()
def fill_hockey_sticks(p, p_row, q, q_row, C, out):
    """Fill W at the C (B, N) of each position, shape (B, N)."""
    for b in range(p_row.size):
        for i in range(C.shape[1]):
            out[b, i] = hockey_stick(p[p_row[b]], q[q_row[b]], C[b, i])


@kernel()
def fill_chains(p, p_row, q, q_row, C, W):
    """C_1 = 0, C_{k+1} = C_k + W(C_k): fill C and W (B, n + 1) with the chains and their values."""
    for b in range(p_row.size):
        C[b, 0] = 0.0
        W[b, 0] = 1.0
        for k in range(1, C.shape[1]):
            C[b, k] = C[b, k - 1] + W[b, k - 1]
            W[b, k] = hockey_stick(p[p_row[b]], q[q_row[b]], C[b, k])


@kernel(error_model="numpy")
def k_sequential_scale(target, draft, num_drafts):
    """ρ* of K-SEQ and W there: the root in [1, n] of F(ρ) = (1 − β)^n − W(ρ), β = (1 − W(ρ))/ρ.

    Newton's method within a bracket. The upper end of the last bracket is returned: every ρ ≥ ρ* is
    lossless, and none below it is.
    """
    # ρ : rho, 1 − β : rejected, F(ρ) : value, F′(ρ) : slope, −W′(ρ) : above
    low = 1.0
    high = float(num_drafts)
    W, above = _hockey_stick_and_slope(target, draft, low)
    W_high = -1.0
    rho = low
    for _ in range(_MOST_STEPS):
        rejected = 1.0 - (1.0 - W) / rho
        value = power(rejected, num_drafts) - W
        if value >= 0.0:
            high = rho
            W_high = W
            if rho == 1.0:
                break
        else:
            low = rho
        if high - low <= _LAST_DIGITS * high:
            break
        # dβ/dρ = −(mass of p below the line)/ρ².
        below = max(1.0 - W - rho * above, 0.0)
        slope = above + num_drafts * power(rejected, num_drafts - 1) * below / (rho * rho)
        step = value / slope
        # A step of the size of rounding is lengthened, so that it crosses the root and ends the search.
        if abs(step) <= _LAST_DIGITS * rho:
            step = np.copysign(2.0 * abs(step) + 0.5 * _LAST_DIGITS * rho, value)
        rho -= step
        # In this form the condition also holds for NaN.
        if not low < rho < high:
            rho = 0.5 * (low + high)
        W, above = _hockey_stick_and_slope(target, draft, rho)
    if W_high < 0.0:
        W_high = hockey_stick(target, draft, high)
    return high, W_high


@kernel()
def fill_k_sequential_scales(p, p_row, q, q_row, counts, scale, W):
    """Fill ρ* and W there for the ``counts`` (N,) of drafts, shapes (B, N)."""
    surplus = np.empty((2, p.shape[1]))
    for b in range(p_row.size):
        target = p[p_row[b]]
        draft = q[q_row[b]]
        k = np.uint64(0)
        # Tokens with p ≤ q add nothing to W(ρ), as ρ ≥ 1. Each token is written, and k advances past those
        # with p > q only: no branch can be mispredicted.
        for y in range(target.size):
            surplus[0, k], surplus[1, k] = target[y], draft[y]
            k += np.uint64(target[y] > draft[y])
        target, draft = surplus[0, :k], surplus[1, :k]
        for i in range(counts.size):
            scale[b, i], W[b, i] = k_sequential_scale(target, draft, counts[i])


@kernel(fastmath=REASSOCIATE)
def inclusion_probs(draft, num_drafts, out):
    """1 − (1 − q)^n as q Σ (1 − q)^i, i < n: every term is positive."""
    for start in range(0, draft.size, AT_A_TIME):
        q = draft[start : start + AT_A_TIME]
        included = out[start : start + AT_A_TIME]
        # Σ_{i<n} (1 − q)^i by Horner's rule : included. The loop over tokens is inside: it vectorises.
        for y in range(q.size):
            included[y] = 1.0
        for _ in range(num_drafts - 1):
            for y in range(q.size):
                included[y] = 1.0 + (1.0 - q[y]) * included[y]
        for y in range(q.size):
            included[y] = min(q[y] * included[y], 1.0)


@kernel(fastmath=REASSOCIATE)
def fill_hit_rates(p, p_row, q, q_row, counts, out):
    """Fill Σ p (1 − (1 − q)^n) for the ``counts`` (N,) of drafts, shape (B, N)."""
    included = np.empty(AT_A_TIME)
    for b in range(p_row.size):
        for i in range(counts.size):
            # Σ p (1 − (1 − q)^n) : out[b, i]
            out[b, i] = 0.0
            for start in range(0, p.shape[1], AT_A_TIME):
                target = p[p_row[b], start : start + AT_A_TIME]
                inclusion_probs(q[q_row[b], start : start + AT_A_TIME], counts[i], included)
                part = 0.0
                for y in range(target.size):
                    part += target[y] * included[y]
                out[b, i] += part


@kernel()
def largest_entries(probs, count):
    """Indices of the ``count`` largest entries, largest first, ties to the lowest index."""
    best = np.full(count, -1, np.int64)
    least = -np.inf if count else np.inf
    for start in range(0, probs.size, AT_A_TIME):
        part = probs[start : start + AT_A_TIME]
        # Most parts have no entry above the least: counting them vectorises, and skips the part.
        above = 0
        for y in range(part.size):
            above += 1 if part[y] > least else 0
        if above == 0:
            continue
        for y in range(part.size):
            if part[y] <= least:
                continue
            j = count - 1
            while j > 0 and (best[j - 1] < 0 or part[y] > probs[best[j - 1]]):
                best[j] = best[j - 1]
                j -= 1
            best[j] = start + y
            if best[count - 1] >= 0:
                least = probs[best[count - 1]]
    return best


@kernel(fastmath=REASSOCIATE)
def sum_where(values, subset):
    """Σ of the values in the subset."""
    total = 0.0
    for start in range(0, values.size, AT_A_TIME):
        numbers = values[start : start + AT_A_TIME]
        inside = subset[start : start + AT_A_TIME]
        part = 0.0
        for y in range(numbers.size):
            part += numbers[y] if inside[y] else 0.0
        total += part
    return total
