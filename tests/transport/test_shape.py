"""The size of a program before its tuples are listed, and the refusal of one that is too large."""

from __future__ import annotations

import time

import numpy as np
import pytest
from strategies import LAWS, instances, package_law

import otmd
from otmd.transport import (
    FORMS,
    ProblemShape,
    TransportProblem,
    build_program,
    program_size,
    solve_transport,
)


def uniform(size: int) -> np.ndarray:
    return np.full(size, 1 / size)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("name", LAWS)
def test_counts_are_those_of_the_enumerated_problem(name, merge):
    counted = 0
    for instance in instances(150, seed=51):
        if not instance.applicable(name):
            continue
        law = package_law(instance, name)
        problem = TransportProblem.of(instance.target_probs, law, merge)
        shape = ProblemShape.of(law, merge)
        enumerated = problem.num_sets, problem.num_arcs, problem.vocab_size
        assert (shape.num_sets, shape.num_arcs, shape.vocab_size) == enumerated, instance
        for form in FORMS:
            assert program_size(shape, form) == program_size(problem, form)
        counted += law.count_sets(merge) is not None
    closed = name in LAWS[:8] or (name == "independent" and not merge)
    assert counted > 50 or not closed


def test_a_law_from_elsewhere_is_counted_by_enumeration():
    class NeverTwice(otmd.WithReplacement):
        def position_tuple_prob(self, tokens):
            distinct = tokens[:, 0] != tokens[:, 1]
            return np.where(distinct, super().position_tuple_prob(tokens), 0.0)

    law = NeverTwice([0.2, 0.3, 0.5], 2)
    assert law.count_sets(merge=True) is None
    assert ProblemShape.of(law).num_sets == 3
    assert ProblemShape.of(law, merge=False).num_sets == 6


def test_tuples_that_underflow_are_counted_though_dropped():
    law = otmd.WithReplacement([1 - 1e-200, 1e-200], 2)
    assert ProblemShape.of(law, merge=False).num_sets == 4
    assert TransportProblem.of([0.5, 0.5], law, merge=False).num_sets == 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("law", [otmd.WithReplacement, otmd.WithoutReplacement])
def test_size_grows_with_the_vocabulary_and_the_drafts_and_merging_shrinks_it(form, law):
    def size(vocab_size, num_drafts, merge=True):
        return program_size(ProblemShape.of(law(uniform(vocab_size), num_drafts), merge), form)

    for vocab_size in (8, 50, 1000, 100_000):
        for num_drafts in (1, 2, 3):
            here = size(vocab_size, num_drafts)
            assert here.bytes < size(vocab_size + 1, num_drafts).bytes
            assert here.bytes < size(vocab_size, num_drafts + 1).bytes
            assert here.bytes <= size(vocab_size, num_drafts, merge=False).bytes


def test_the_known_sizes():
    law = otmd.WithReplacement(uniform(10), 4)
    assert program_size(ProblemShape.of(law, merge=False), "full").variables == 100_000
    assert program_size(ProblemShape.of(law, merge=False)).variables == 34_390
    assert program_size(ProblemShape.of(law)).variables == 1300
    hub = ProblemShape.of(otmd.Hub(uniform(1000)), merge=False)
    assert (hub.num_sets, hub.num_arcs) == (1998, 3996)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_law_of_too_many_tuples_is_refused_at_once(form, merge):
    law = otmd.WithReplacement(uniform(1000), 4)
    size = program_size(ProblemShape.of(law, merge), form)
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"variables, \S+ constraints .*; no form fits") as caught:
        solve_transport(uniform(1000), law, form, merge=merge)
    assert time.perf_counter() - start < 0.5
    assert f"got {form!r}, which needs {size.variables} variables" in str(caught.value)


def test_the_refusal_names_the_forms_that_fit_without_listing_a_tuple(monkeypatch):
    def listed(self):
        raise AssertionError("the tuples were listed")

    monkeypatch.setattr(otmd.WithReplacement, "enumerate", listed)
    law = otmd.WithReplacement(uniform(1000), 2)
    message = r"500500000 variables.*; form 'compact' or 'dual' or 'max_flow' fits"
    with pytest.raises(ValueError, match=message):
        solve_transport(uniform(1000), law, "full")


def test_forms_whose_tuples_cannot_be_listed_are_not_recommended():
    # The compact program would take 0.8 GB; 300^3 tuples are more than five million.
    law = otmd.WithReplacement(uniform(300), 3)
    assert program_size(ProblemShape.of(law)).bytes < 2**30
    with pytest.raises(ValueError, match="no form fits, as the law has too many tuples to list"):
        solve_transport(uniform(300), law, "full")


def test_sizes_of_thousands_of_digits_are_still_written():
    law = otmd.WithReplacement(uniform(2000), 3000)
    with pytest.raises(ValueError, match=r"which needs \d\.\d\de\+9906 variables"):
        solve_transport(uniform(2000), law, merge=False)


def test_laws_without_a_closed_form_are_refused_when_they_are_built():
    law = otmd.Independent(np.stack([uniform(60), uniform(60)]))
    size = program_size(ProblemShape.of(law), "full")
    with pytest.raises(ValueError, match=f"needs {size.variables} variables.*'compact'"):
        solve_transport(uniform(60), law, "full", max_bytes=size.bytes - 1)
    with pytest.raises(ValueError, match="enumerate: got 300"):
        ProblemShape.of(otmd.Independent(np.tile(uniform(300), (3, 1))))


def test_a_table_of_tuples_may_be_of_any_length():
    law = otmd.Joint(np.arange(60).reshape(2, 30), [0.5, 0.5], 60)
    assert law.can_enumerate()
    assert not otmd.WithReplacement(uniform(60), 30).can_enumerate()
    assert build_program(TransportProblem.of(uniform(60), law)).size.variables == 60


def test_wrong_laws_are_named():
    with pytest.raises(TypeError, match="law: got str, expected a DraftLaw"):
        ProblemShape.of("greedy")
    with pytest.raises(ValueError, match="form: got 'fast'"):
        program_size(ProblemShape.of(otmd.Greedy(uniform(3), 2)), "fast")
