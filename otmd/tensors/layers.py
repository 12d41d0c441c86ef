# SPDX-License-Identifier: Apache-2.0
"""Draft trees from strata, verified layer by layer, for a batch of requests: one file in torch alone.

It may be copied into an engine. For each request, level by level::

    mass, tokens = top_tokens(draft_probs, k)        # the draft model's rows
    level = draft_level(mass, tokens, num_drafts)    # random drafts, one from each stratum
    ...                                              # the draft model runs on level.draft_tokens
    path, length, token = verify_tree(target_probs, levels)

The text is distributed exactly as the target's own. An engine keeps the target's rows, which it has anyway,
and k tokens with their strata for each node that drafts, in place of the draft's distribution over V tokens.

*Strata.* From the most likely token down, a token with at least an equal share of the mass that is left is a
stratum of its own. The tokens after these are cut into the remaining strata at equal shares. One token is
drafted from each stratum; ``inclusion`` is the probability that a token is the draft of its stratum.

*Sweep.* For a pair of a stratum and a token let t be the target's mass and q the inclusion. Pairs are taken
in an order of preference. Let s of a stratum be the probability that none of its pairs so far was accepted,
and A of a pair the product of the other strata's s before it. For any B ≥ A,

    c = min(1, t/(B q)),    a = A c q ≤ t

is lossless: a drafted pair is accepted with probability c, and t − a is left for the residual. B is 1 at
first; c follows, then s, then A of all pairs. With this A as B, c can only grow, and s and A can only fall.
So every round is lossless, and accepts at least as much as the last.

*Trees.* All nodes of a layer with their drafts are one such position. A node's score w is the probability
that the accepted path reaches it, given the drafts down to it; the mass of its tokens is w times the target.

Shapes: B requests, V tokens of the vocabulary, k tokens of a row, D nodes that draft, Q drafts of a level,
W nodes of a layer. They are known in advance, and no function waits for the device or looks at a value.
Numbers are not checked: a request with a row of the target that is NaN or has no mass has the output token
−1. Rows may be float16, bfloat16, float32 or float64; they are divided by their sums, taken in float64.

The rule is Preference() and LayerVerification() of otmd, with another order of pairs.

>>> q, p = torch.tensor([[[0.6, 0.3, 0.1]]]), torch.tensor([[0.2, 0.3, 0.5]])
>>> level = draft_level(*top_tokens(q, 3), num_drafts=2)
>>> level.slots, level.inclusion
(tensor([[[0, 1, 1]]]), tensor([[[1.0000, 0.7500, 0.2500]]], dtype=torch.float64))
>>> token, accepted = verify(p, level)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# c in the estimate that n drafts of a node are all rejected with probability (1 − Σ q²)/(n + c).
_MORE = 1.5
# The smallest B: its square is still a number, so that gradients are.
_TINY = 1e-150


# ---------------------------------------------------------------- strata and drafts


class Level(NamedTuple):
    """The drafts after some nodes of one layer of every tree, by :func:`draft_level`.

    Attributes
    ----------
    nodes : torch.Tensor of int64, shape (B, D)
        The nodes that draft, as indices among the drafts of the level above (0 is the root), each at
        most once; −1 for none.
    tokens : torch.Tensor of int64, shape (B, D, k)
        The tokens that may be drafted after each of these nodes.
    slots : torch.Tensor of int64, shape (B, D, k)
        The stratum of each token, by the index of its draft, 0 to Q − 1; Q for a token that is in none.
    inclusion : torch.Tensor of float64, shape (B, D, k)
        The probability that the token is the draft of its stratum; 0 for a token that is in none.
    drafts : torch.Tensor of int64, shape (B, Q)
        Each draft as an index among the D k tokens, node by node; those that are not needed are −1, and last.
    """

    nodes: Tensor
    tokens: Tensor
    slots: Tensor
    inclusion: Tensor
    drafts: Tensor

    @property
    def draft_tokens(self) -> Tensor:
        """The drafted tokens, shape (B, Q); −1 for none."""
        tokens = self.tokens.flatten(1).gather(1, self.drafts.clamp(min=0))
        return torch.where(self.drafts >= 0, tokens, -1)

    @property
    def parents(self) -> Tensor:
        """The index of each draft's node among the drafts of the level above, (B, Q); −1 for none."""
        index = self.drafts.clamp(min=0) // self.tokens.shape[-1]
        return torch.where(self.drafts >= 0, self.nodes.gather(1, index), -1)


def top_tokens(probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The masses (…, k) in float64 and ids (…, k) of the k most likely tokens of rows (…, V); V if k > V.

    They are in descending order, and equals are in ascending order of their ids, also where the k-th is one
    of many equals; ``torch.topk`` leaves that open. The largest of 64-bit keys are taken, a mass and an id
    each, which takes up to twice as long on a CPU. For float64 all of the row is sorted.
    """
    k = min(k, probs.shape[-1])
    if probs.dtype == torch.float64:
        tokens = probs.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    else:
        last = probs.shape[-1] - 1
        reversed_ids = torch.arange(last, -1, -1, device=probs.device)
        # The bits of numbers that are not negative are in the numbers' order; NaN, of either sign, is first.
        key = probs.float().abs().contiguous().view(torch.int32).long()
        key <<= 32
        key |= reversed_ids
        tokens = last - (key.topk(k, dim=-1).values & 0xFFFFFFFF)
    return probs.gather(-1, tokens).double(), tokens


def make_strata(mass: Tensor, num_drafts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Strata and inclusion probabilities, both (…, k), of tokens with descending masses (…, k).

    ``num_drafts`` (…) is the number of strata, at most ``most``, and at most the number of tokens with mass.
    Strata are numbered from 0; ``most`` stands for none.
    """
    k = mass.shape[-1]
    count = num_drafts[..., None]
    size = (mass > 0).sum(-1, keepdim=True)
    index, number = (torch.arange(m, device=mass.device) for m in (k, most))
    weight = mass / mass[..., :1]
    after = weight.flip(-1).cumsum(-1).flip(-1)
    head = min(most, k) - 1
    # The rests are compared, not the sums with the token itself: rounding would hide a small rest.
    heavy = after[..., 1 : head + 1] <= weight[..., :head] * (count - 1 - index[:head])
    alone = (heavy & (index[:head] < count - 1)).cumprod(-1).sum(-1, keepdim=True)
    weight = mass / mass.gather(-1, alone)
    after = weight.flip(-1).cumsum(-1).flip(-1)
    # A stratum begins with the first token from which on at most its end is left.
    end = after.gather(-1, alone) * ((count - number).double() / (count - alone))
    start = torch.where(number <= alone, number, torch.searchsorted(-after, -end))
    # No stratum is empty.
    start = (start - number).cummax(-1).values + number
    start = torch.minimum(start, torch.maximum(size - count + number, number))
    start = torch.where(number < count, start, k)
    stratum = torch.searchsorted(start, index.expand(mass.shape).contiguous(), right=True) - 1
    stratum = torch.where((mass > 0) & (stratum >= 0), stratum, most)
    total = mass.new_zeros((*mass.shape[:-1], most + 1)).scatter_add_(-1, stratum, mass)
    return stratum, torch.where(stratum < most, mass / total.gather(-1, stratum), 0.0)


def draft_level(
    mass: Tensor,
    tokens: Tensor,
    num_drafts: int | Tensor,
    quota: int | None = None,
    nodes: Tensor | None = None,
    uniforms: Tensor | None = None,
) -> Level:
    """Draft one token from each stratum after every node of a layer.

    The row of a node is its k tokens with descending masses, (B, D, k), by :func:`top_tokens`. Tokens without
    mass are never drafted, and a node has no more drafts than tokens with mass. The rule is lossless for all
    k, numbers of drafts and nodes that are determined by what was drafted above and by the draft model's
    distributions. All drafts of a level must be verified.

    ``num_drafts`` is the number of drafts after every node, or a tensor (B, D) with that of each.
    ``quota`` is Q, by default D times the number; drafts beyond it are not drawn. ``nodes`` (B, D) is as in
    :class:`Level`; by default the first D drafts of the level above, or the root. ``uniforms`` (B, Q) are
    independent random numbers from 0 to 1, by default those of ``torch.rand``. In float32 they are
    multiples of 2^-24, and so are the probabilities of the drafts.
    """
    batch, width, k = mass.shape
    if not isinstance(num_drafts, Tensor):
        most, quota = num_drafts, num_drafts * width if quota is None else quota
    elif quota is None:
        raise ValueError("quota: got None, expected the most drafts of a level")
    else:
        most = min(quota, k)
    if quota < 1:
        raise ValueError(f"num_drafts, quota: got a level of {quota} drafts, expected at least 1")
    if nodes is None:
        nodes = torch.arange(width, device=mass.device).expand(batch, width)
    uniforms = _given_or_drawn(uniforms, (batch, quota), mass).double()
    # A row with NaN has no drafts.
    mass = torch.where(mass.sum(-1, keepdim=True).isfinite(), mass, 0.0).double()
    counts = (mass > 0).sum(-1).clamp(max=most)
    if isinstance(num_drafts, Tensor):
        counts = torch.minimum(counts, num_drafts.clamp(min=0))
    ends = torch.where(nodes >= 0, counts, 0).cumsum(-1).clamp(max=quota)
    firsts = torch.nn.functional.pad(ends[:, :-1], (1, 0))
    stratum, inclusion = make_strata(mass, ends - firsts, most)
    slots = torch.where(stratum < most, firsts[..., None] + stratum, quota)
    # The strata lie side by side. A token that is in none is between two of them.
    place = torch.where(stratum < most, 2 * slots, 2 * ends[..., None] - 1).flatten(1)
    slot = torch.arange(quota, device=mass.device).expand(batch, quota).contiguous()
    first, end = (torch.searchsorted(place, 2 * slot, right=right) for right in (False, True))
    drawn = torch.searchsorted(inclusion.flatten(1).cumsum(-1), slot + uniforms, right=True)
    # Rounding must not reach the next stratum.
    drafts = torch.where(first < end, drawn.clamp(first, end - 1), -1)
    return Level(nodes, tokens, slots, inclusion, drafts)


def draft_adaptive_level(
    mass: Tensor, tokens: Tensor, reaches: Tensor, quota: int, uniforms: Tensor | None = None
) -> tuple[Level, Tensor]:
    """Draft a level whose Q drafts go where they add most to the estimated acceptance.

    The law is that of otmd's AdaptiveTree. A node's reach estimates the probability that the accepted path
    ends at it or below; it is 1 for the root, 0 for a node that does not exist. ``reaches`` (B, W) are those
    of all W drafts of the level above, and the rows (B, W, k) are theirs. The second result is (B, Q), the
    reaches of the new drafts.
    """
    mass = torch.where(reaches[..., None] > 0, mass, 0.0)
    probs = mass / mass.sum(-1, keepdim=True)
    spread = 1.0 - (probs * probs).sum(-1, keepdim=True)
    count = torch.arange(1, min(quota, mass.shape[-1]) + 1, device=mass.device)
    grown = torch.diff(1.0 - spread / (count + _MORE), prepend=torch.zeros_like(spread))
    has_token = count <= (mass > 0).sum(-1, keepdim=True)
    gains = torch.where(has_token, reaches[..., None] * grown, 0.0).nan_to_num(0.0).flatten(1)
    largest = gains.argsort(dim=-1, descending=True, stable=True)[:, :quota]
    chosen = (gains.gather(1, largest) > 0.0).long()
    counts = torch.zeros_like(reaches, dtype=torch.int64)
    counts = counts.scatter_add_(1, largest // len(count), chosen)
    level = draft_level(mass, tokens, counts, quota, uniforms=uniforms)
    draft = level.drafts.clamp(min=0)
    node = draft // mass.shape[-1]
    prob, inclusion = (x.flatten(1).gather(1, draft) for x in (probs, level.inclusion))
    accepted = 1.0 - (1.0 - prob) / (counts.gather(1, node) + _MORE)
    below = reaches.gather(1, node) * prob / inclusion * accepted
    return level, torch.where(level.drafts >= 0, below, 0.0)


# ---------------------------------------------------------------- verification


def sweep(
    target: Tensor,
    q: Tensor,
    slots: Tensor,
    num_slots: int,
    rounds: int = 8,
    classes: int = 12,
    passes: int = 3,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sweep pairs of a slot and a token in an order of preference; the arguments are (B, E).

    ``target`` is the mass of the pair's token, whose sum may be below 1, ``q`` the probability that the
    slot's draft is this token, ``slots`` from 0 to ``num_slots`` − 1. A cell is a slot and a class of
    similar t/q: one class for t ≥ q, and octaves below it. Cells are taken class by class, the last slot
    first. In the next pass the pairs that were thinned (c < 1) come after all others; the best pass is kept.

    Returns c q and a of each pair and its cell, (B, E), and the probability that none is accepted, (B,).
    ``rounds``, ``classes`` and ``passes``, at least 1, change the acceptance rate alone.
    """
    octave = (0.5 - torch.log2(target / q)).nan_to_num(0.0).clamp(0, classes - 2).long()
    cell = num_slots * torch.where(target >= q, 0, 1 + octave) + num_slots - 1 - slots
    best = result = _sweep_cells(target, q, cell, classes, num_slots, rounds)
    for turn in range(2, passes + 1):
        cell = cell + classes * num_slots * (result[0] < q)
        result = _sweep_cells(target, q, cell, turn * classes, num_slots, rounds)
        better = (result[3] < best[3])[:, None]
        pairs = [torch.where(better, x, y) for x, y in zip(result[:3], best[:3], strict=True)]
        best = pairs[0], pairs[1], pairs[2], torch.minimum(result[3], best[3])
    return best


def _sweep_cells(
    target: Tensor, q: Tensor, cell: Tensor, classes: int, num_slots: int, rounds: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    offered = after = q
    before = target.new_ones((len(target), classes * num_slots))
    for _ in range(rounds):
        # c q = min(q, t/B)
        offered = torch.minimum(q, target / before.clamp(min=_TINY).gather(-1, cell))
        mass = torch.zeros_like(before).scatter_add(-1, cell, offered).unflatten(1, (classes, -1))
        # s after each class, and the product of the other slots' s before each cell.
        after = (1.0 - mass.cumsum(1)).clamp(min=0.0)
        later = _products_before((after + mass).flip(-1)).flip(-1)
        before = (_products_before(after) * later).flatten(1)
    accepted = torch.minimum(target, before.gather(-1, cell) * offered)
    return offered, accepted, cell, after[:, -1].prod(-1)


def _products_before(x: Tensor) -> Tensor:
    """The product of all numbers before each, along the last axis."""
    return torch.cat([torch.ones_like(x[..., :1]), x[..., :-1]], -1).cumprod(-1)


def score_layer(
    target_probs: Tensor, scores: Tensor, level: Level, **options: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Decide on the drafts of one level, from the rows (B, W, V) and scores (B, W) of the nodes above.

    Returns the mass that is left of each node (B, W), its share of each token's mass (B, D, k), the
    probability that no draft of the level is accepted (B,), and the scores of the drafts (B, Q).
    """
    nodes, tokens, slots, inclusion, drafts = level
    num_slots, node = drafts.shape[1], nodes.clamp(min=0)
    weight = torch.where(nodes >= 0, scores.gather(1, node), 0.0)
    # A total of 0 gives NaN, and so the request the token −1.
    total = target_probs.sum(-1, dtype=torch.float64).gather(1, node)
    request = torch.arange(len(nodes), device=nodes.device)[:, None, None]
    target = target_probs[request, node[..., None], tokens].double()
    target = torch.where(weight[..., None] > 0, (weight / total)[..., None] * target, 0.0)
    q, slots = inclusion.flatten(1), slots.flatten(1).clamp(max=num_slots - 1)
    offered, accepted, cell, missed = sweep(target.flatten(1), q, slots, num_slots, **options)
    draft = drafts.clamp(min=0)
    accept = torch.where(drafts >= 0, (offered / q).gather(1, draft), 0.0)
    # The probability that the draft is the first in the order of the cells that is accepted.
    order = cell.gather(1, draft).argsort(dim=-1, stable=True)
    accept = accept.gather(-1, order)
    children = torch.empty_like(accept)
    children = children.scatter(-1, order, accept * _products_before(1.0 - accept))
    accepted = accepted.view(target.shape)
    share = torch.where(target > 0, (target - accepted) / target, 1.0)
    left = scores.scatter_add(1, node, -accepted.sum(-1)).clamp(min=0.0)
    return left, share, missed, children


def score_tree(
    target_probs: Tensor, levels: Sequence[Level], **options: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Decide on trees of levels, from the target's rows (B, N, V) of :func:`verify_tree`.

    Returns the scores of all nodes (B, N), the probability that the accepted path ends at each node, given
    all drafts (B, N), and the shares (B, D, k) of each level that are left. The sum of the scores is an
    unbiased estimate of the tokens per step. ``options`` are those of :func:`sweep`.
    """
    scores = [torch.ones_like(target_probs[:, :1, 0], dtype=torch.float64)]
    left, missed, shares, first = [], [], [], 0
    for level in levels:
        rows = target_probs[:, first : first + scores[-1].shape[1]]
        first += rows.shape[1]
        decision = score_layer(rows, scores[-1], level, **options)
        for values, value in zip((left, shares, missed, scores), decision, strict=True):
            values.append(value)
    left.append(scores[-1])
    missed.append(torch.ones_like(scores[0][:, 0]))
    undecided, ends = torch.ones_like(scores[0]), []
    for depth in reversed(range(len(scores))):
        mass, none = left[depth].sum(-1, keepdim=True), missed[depth][:, None]
        # Rounding aside, the mass is at most the probability that no path goes on below.
        stopping = torch.where(none > mass, mass / none, 1.0) if depth else 1.0
        masses = torch.where(mass > 0, left[depth], scores[depth])
        ends.append(undecided * stopping * masses / masses.sum(-1, keepdim=True).clamp(min=_TINY))
        undecided = undecided * (1.0 - stopping)
    return torch.cat(scores, 1), torch.cat(ends[::-1], 1), shares


def pick(masses: Tensor, uniforms: Tensor) -> Tensor:
    """An index (B,) of each row of masses (B, m) with probability proportional to them; −1 for none.

    ``uniforms`` (B,) are from 0 to 1.
    """
    reached = masses.double().cumsum(-1)
    total = reached[:, -1:]
    # Rounding must not reach a token after the last one with mass.
    reached_by = total * uniforms[:, None].double() * (1.0 - 1e-15)
    reached_by = torch.minimum(reached_by, total.nextafter(torch.zeros_like(total)))
    index = torch.searchsorted(reached, reached_by, right=True)
    return torch.where((total > 0) & total.isfinite(), index, -1)[:, 0]


def _given_or_drawn(uniforms: Tensor | None, shape: tuple[int, int], like: Tensor) -> Tensor:
    if uniforms is None:
        return torch.rand(shape, dtype=torch.float64, device=like.device)
    if uniforms.shape != shape:
        raise ValueError(f"uniforms: got shape {tuple(uniforms.shape)}, expected {shape}")
    return uniforms


def verify(
    target_probs: Tensor, level: Level, uniforms: Tensor | None = None, **options: int
) -> tuple[Tensor, Tensor]:
    """Verify the drafts of one position: a level after the root, and the target's row (B, V) there.

    Returns the output token (B,), and the index of the accepted draft (B,), −1 where none was accepted.
    ``uniforms`` is (B, 2): for the draft, and for the token where none is accepted. ``options`` are those of
    :func:`sweep`.
    """
    uniforms = _given_or_drawn(uniforms, (len(target_probs), 2), target_probs)
    rows, root = target_probs[:, None], torch.ones_like(target_probs[:, :1], dtype=torch.float64)
    _, share, _, accept = score_layer(rows, root, level, **options)
    none = (1.0 - accept.sum(-1, keepdim=True)).clamp(min=0.0)
    chosen = pick(torch.cat([none, accept], -1), uniforms[:, 0])
    drawn = pick(residual_masses(rows, [level], [share], torch.zeros_like(chosen)), uniforms[:, 1])
    drafted = level.draft_tokens.gather(1, (chosen - 1).clamp(min=0)[:, None])[:, 0]
    token = torch.where(chosen > 0, drafted, torch.where(chosen == 0, drawn, -1))
    return token, torch.where(chosen > 0, chosen - 1, -1)


def verify_tree(
    target_probs: Tensor, levels: Sequence[Level], uniforms: Tensor | None = None, **options: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept a path of every tree, and draw the token after it.

    Row 0 of ``target_probs`` (B, N, V) is the target's distribution after the root; then come those after
    the drafts, level by level. Rows of drafts that are −1 are ignored. ``uniforms`` is (B, 2): for the path,
    and for the token. ``options`` are those of :func:`sweep`.

    Returns the path as rows of ``target_probs``, then −1, (B, L); its length (B,); and the token (B,).
    """
    uniforms = _given_or_drawn(uniforms, (len(target_probs), 2), target_probs)
    _, ends, shares = score_tree(target_probs, levels, **options)
    end, firsts = pick(ends, uniforms[:, 0]), _first_rows(levels)
    node = end.clamp(min=0)
    token = pick(residual_masses(target_probs, levels, shares, node), uniforms[:, 1])
    token, node = torch.where(end < 0, -1, token), node[:, None]
    path = [node[:, :0]]
    for above, first, level in reversed(list(zip(firsts, firsts[1:], levels, strict=False))):
        below = node >= first
        path.append(torch.where(below, node, -1))
        parents = level.parents
        index = (node - first).clamp(0, parents.shape[1] - 1)
        node = torch.where(below, above + parents.gather(1, index), node)
    paths = torch.where((token < 0)[:, None], -1, torch.cat(path[::-1], 1))
    return paths, (paths >= 0).sum(-1), token


def residual_masses(
    target_probs: Tensor, levels: Sequence[Level], shares: Sequence[Tensor], nodes: Tensor
) -> Tensor:
    """The distribution, up to a factor, of the token after a path that ends at the nodes (B,); (B, V).

    ``shares`` are those of :func:`score_tree`.
    """
    request = torch.arange(len(nodes), device=nodes.device)
    masses, cut = target_probs[request, nodes].double(), []
    for first, level, share in zip(_first_rows(levels), levels, shares, strict=False):
        drafts, index = ((level.nodes >= 0) & (level.nodes + first == nodes[:, None])).max(-1)
        tokens, left = level.tokens[request, index], share[request, index]
        mass = masses.gather(-1, tokens)
        masses.scatter_(-1, tokens, torch.where(drafts[:, None], mass * left, mass))
        cut.append((drafts[:, None], tokens, mass))
    # Rounding must not leave a node without a token.
    empty = masses.amax(-1, keepdim=True) == 0
    for drafts, tokens, mass in cut:
        masses.scatter_(-1, tokens, torch.where(drafts & empty, mass, masses.gather(-1, tokens)))
    return masses


def _first_rows(levels: Sequence[Level]) -> list[int]:
    """The row of the first node of every layer."""
    firsts = [0, 1]
    for level in levels[:-1]:
        firsts.append(firsts[-1] + level.drafts.shape[1])
    return firsts


# ---------------------------------------------------------------- random numbers by counter


def philox_uniforms(seeds: Tensor, offsets: Tensor, count: int) -> Tensor:
    """Random numbers (B, count) in float64 from 0 to below 1, given by a seed and an offset alone.

    They are those of Philox4x32-10 (Salmon et al. 2011) with the key (seed's low word, high word) and the
    counter (block, 0, offset's low word, high word). A block gives two numbers, of 53 bits each. ``seeds``
    and ``offsets`` (B,) are int64, for example a request's seed, and 2 × position for its drafts and
    2 × position + 1 for their verification. A pair of a seed and an offset must be used once.
    """
    block = torch.arange((count + 1) // 2, device=seeds.device).expand(len(seeds), -1)
    offset, key = ((x[:, None] & _WORD, x[:, None] >> 32 & _WORD) for x in (offsets, seeds))
    words = philox((block, torch.zeros_like(block), *(x.expand_as(block) for x in offset)), key)
    pairs = [(high << 21 | low >> 11).double() for high, low in (words[:2], words[2:])]
    return torch.stack(pairs, -1).flatten(1)[:, :count] * 2.0**-53


_WORD = 0xFFFFFFFF


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10: four words from a counter of four words and a key of two, in int64 tensors."""
    (a, b, c, d), (u, v) = counter, key
    for _ in range(10):
        (high_a, low_a), (high_c, low_c) = _product(a, 0xD2511F53), _product(c, 0xCD9E8D57)
        a, b, c, d = high_c ^ b ^ u, low_c, high_a ^ d ^ v, low_a
        u, v = (u + 0x9E3779B9) & _WORD, (v + 0xBB67AE85) & _WORD
    return a, b, c, d


def _product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of a product of words, which int64 cannot hold."""
    low, high = (x & 0xFFFF) * factor, (x >> 16) * factor
    middle = (low >> 16) + high
    return middle >> 16, (middle & 0xFFFF) << 16 | (low & 0xFFFF)


# ---------------------------------------------------------------- SGLang's layout


class LinkedTree(NamedTuple):
    """Trees of N nodes as SGLang's kernels take them, and the strata of the M nodes above the last level.

    Attributes
    ----------
    candidates : torch.Tensor of int64, shape (B, N)
        The tokens: the last one of the text, then the drafts; 0 for none.
    retrieve_index : torch.Tensor of int64, shape (B, N)
        The index of each node in the batch, B N in all.
    retrieve_next_token, retrieve_next_sibling : torch.Tensor of int64, shape (B, N)
        The first draft after each node, and the next draft after the same node; −1 for none.
    tokens, slots, inclusion : torch.Tensor of int64, int64 and float64, shape (B, M, k)
        Those of :class:`Level`, but a slot is the node that is the draft of the stratum, −1 for none.
    """

    candidates: Tensor
    retrieve_index: Tensor
    retrieve_next_token: Tensor
    retrieve_next_sibling: Tensor
    tokens: Tensor
    slots: Tensor
    inclusion: Tensor


def to_links(root_tokens: Tensor, levels: Sequence[Level]) -> LinkedTree:
    """Trees of levels, all with the same k, in SGLang's layout. ``root_tokens`` (B,) end the text so far."""
    firsts, (batch, _, k) = _first_rows(levels), levels[0].tokens.shape
    num_above, device = firsts[-1], root_tokens.device
    drafts = torch.cat([level.draft_tokens for level in levels], 1)
    exists = drafts >= 0
    parent = [level.parents + first for level, first in zip(levels, firsts, strict=False)]
    parent = torch.where(exists, torch.cat(parent, 1), num_above)
    size = 1 + drafts.shape[1]
    row = torch.arange(1, size, device=device).expand(batch, -1)
    # Drafts after one node are next to each other.
    child = torch.full((batch, size + 1), size, device=device)
    child = child.scatter_reduce(1, parent, row, "amin")[:, :num_above]
    child = torch.nn.functional.pad(torch.where(child < size, child, -1), (0, size - num_above), value=-1)
    is_next = exists[:, 1:] & (parent[:, 1:] == parent[:, :-1])
    sibling = torch.nn.functional.pad(torch.where(is_next, row[:, 1:], -1), (1, 1), value=-1)

    def by_row(values: list[Tensor], none: float) -> Tensor:
        rows = torch.full((batch, num_above + 1, k), none, device=device, dtype=values[0].dtype)
        for level, first, value in zip(levels, firsts, values, strict=False):
            index = torch.where(level.nodes >= 0, level.nodes + first, num_above)
            rows = rows.scatter(1, index[..., None].expand_as(value), value)
        return rows[:, :num_above]

    slots = [
        torch.where(level.slots < level.drafts.shape[1], level.slots + first, -1)
        for level, first in zip(levels, firsts[1:], strict=True)
    ]
    return LinkedTree(
        torch.cat([root_tokens[:, None], drafts.clamp(min=0)], 1),
        torch.arange(batch * size, device=device).view(batch, size),
        child,
        sibling,
        by_row([level.tokens for level in levels], 0),
        by_row(slots, -1),
        by_row([level.inclusion for level in levels], 0.0),
    )


def from_links(tree: LinkedTree, quotas: Sequence[int]) -> list[Level]:
    """Levels of trees in SGLang's layout, whose nodes are level by level, ``quotas`` drafts on each.

    The links determine which drafts there are, and after which node.
    """
    size = tree.candidates.shape[1]
    row = torch.arange(size, device=tree.candidates.device).expand_as(tree.candidates)

    def source(link: Tensor) -> Tensor:
        """The node that links to each; −1 for none."""
        none = torch.full_like(row[:, :1], -1).expand(-1, size + 1)
        return none.scatter(1, torch.where(link >= 0, link, size), row)[:, :size]

    before = source(tree.retrieve_next_sibling)
    head = torch.where(before >= 0, before, row)
    for _ in range(size.bit_length()):
        head = head.gather(1, head)
    parent = source(tree.retrieve_next_token).gather(1, head)
    levels, above, first = [], 0, 1
    for quota in quotas:
        tokens, slots, inclusion = (x[:, above:first] for x in (tree.tokens, tree.slots, tree.inclusion))
        width, k = tokens.shape[1:]
        drafted, node = (x[:, first : first + quota, None] for x in (tree.candidates, parent))
        index = (node - above).clamp(0, width - 1).expand(-1, -1, k)
        slot = row[:, first : first + quota, None]
        is_draft = (slots.gather(1, index) == slot) & (tokens.gather(1, index) == drafted)
        exists, place = is_draft.max(-1)
        drafts = torch.where(exists & (node[..., 0] >= 0), index[..., 0] * k + place, -1)
        slots = torch.where(slots >= 0, slots - first, quota)
        levels.append(Level(row[:, :width], tokens, slots, inclusion, drafts))
        above, first = first, first + quota
    return levels


def tree_speculative_sampling_strata(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    tokens: Tensor,
    slots: Tensor,
    inclusion: Tensor,
    quotas: Sequence[int],
) -> None:
    """:func:`verify_tree` with the arguments of SGLang's ``tree_speculative_sampling_target_only``.

    The tree is a :class:`LinkedTree`; ``tokens``, ``slots`` and ``inclusion`` are in the place of the draft's
    distributions, and ``quotas`` says how many drafts each level has. As in the kernel, three tensors are
    written. ``predicts`` (B N) has, at the index of each accepted node, the token after it. ``accept_index``
    (B, L + 1) has the indices of the root and of the accepted nodes, then −1. ``accept_token_num`` (B,) is
    their number without the root. Of ``uniform_samples`` (B, N) the first of each row is used, for the path.
    """
    links = retrieve_index, retrieve_next_token, retrieve_next_sibling
    tree = LinkedTree(candidates, *links, tokens, slots, inclusion)
    uniforms = torch.stack([uniform_samples[:, 0], uniform_samples_for_final_sampling], -1)
    path, length, token = verify_tree(target_probs, from_links(tree, quotas), uniforms)
    index = retrieve_index.gather(1, path.clamp(min=0))
    accept_index[:, :1] = retrieve_index[:, :1]
    accept_index[:, 1:] = torch.where(path >= 0, index, -1)
    accept_token_num.copy_(length)
    # After each node of the path comes the next one, after the last one the token that was drawn.
    after = torch.where(path >= 0, candidates.gather(1, path.clamp(min=0)), token[:, None])
    after = torch.cat([after, token[:, None]], 1)
    last = index.gather(1, (length[:, None] - 1).clamp(min=0))
    last = torch.where(length[:, None] > 0, last, retrieve_index[:, :1])
    at = torch.where(path >= 0, index, last)
    predicts[torch.cat([retrieve_index[:, :1], at], 1)] = after.to(predicts.dtype)
