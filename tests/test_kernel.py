"""Kernels: plain Python for a first answer, compiled for many or large ones, with the same result."""

import sys
import threading

import numpy as np
import pytest

import otmd.kernel
from otmd.cli import warmup
from otmd.curve import _kernels
from otmd.curve.blocks import fill_groups
from otmd.kernel import every_kernel_compiled, kernel
from otmd.probabilities import _sum_rows

_LIMIT_CALLS, _LIMIT_NUMBERS = 32, 256


@pytest.fixture
def double(monkeypatch):
    """A kernel of one array, and a list of how each call ran."""
    made, ran = kernel()(_double), []
    for how, name in (("compiled", "_compiled"), ("plain", "py_func")):
        function = getattr(made, name)
        monkeypatch.setattr(made, name, lambda x, h=how, f=function: ran.append(h) or f(x))
    return made, ran


def _double(values):
    total = 0.0
    for y in range(values.size):
        total += 2.0 * values[y]
    return total


def test_a_kernel_is_plain_for_the_first_calls_on_few_numbers(double):
    doubled, ran = double
    for _ in range(_LIMIT_CALLS + 3):
        assert doubled(np.ones(3)) == 6.0
    assert ran == ["plain"] * _LIMIT_CALLS + ["compiled"] * 3


def test_a_kernel_that_took_long_as_plain_python_is_compiled(double, monkeypatch):
    doubled, ran = double
    monkeypatch.setattr(otmd.kernel, "_MOST_SECONDS", 1e-9)
    assert [doubled(np.ones(3)) for _ in range(3)] == [6.0] * 3
    assert ran == ["plain", "compiled", "compiled"]


@pytest.mark.parametrize("as_tuple", [False, True])
def test_a_large_input_is_compiled_at_once_and_so_is_all_that_follows(as_tuple, double):
    doubled, ran = double
    doubled(np.ones(_LIMIT_NUMBERS))
    assert ran == ["plain"]
    large = np.ones(_LIMIT_NUMBERS + 1)
    if as_tuple:
        assert otmd.kernel._size((large, (large, 1.0))) == 2 * large.size
    assert doubled(large) == 2.0 * large.size
    doubled(np.ones(1))
    assert ran == ["plain", "compiled", "compiled"]


def test_every_kernel_compiled_is_for_small_inputs_too_and_ends(double):
    doubled, ran = double
    with every_kernel_compiled(), every_kernel_compiled():
        doubled(np.ones(1))
    assert ran == ["compiled"]
    assert not otmd.kernel._mode.compiled


def test_kernels_inside_a_plain_run_stay_plain(double):
    doubled, ran = double

    def outer(values):
        return doubled(np.ones(1000)) + values[0]

    assert kernel()(outer)(np.ones(1)) == 2001.0
    assert ran == ["plain"]
    assert not otmd.kernel._mode.plain


def test_a_plain_run_that_raises_leaves_no_trace(double):
    doubled, ran = double

    def wrong(values):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kernel()(wrong)(np.ones(1))
    doubled(np.ones(1000))
    assert ran == ["compiled"]


def test_plain_and_compiled_kernels_agree():
    p, q = np.random.default_rng(0).dirichlet(np.ones(60), 2)
    q[:3], p[3:5] = 0.0, 0.0
    rows, row = np.stack([p, -q]), np.zeros(1, np.int64)
    for function, inputs, shapes in (
        (_kernels.hockey_stick, (p, q, 0.8), ()),
        (_kernels.k_sequential_scale, (p, q, 3), ()),
        (_kernels.fill_chains, (p[None], row, q[None], row), ((1, 4), (1, 4))),
        (_kernels.fill_ratios, (p, q), (60,)),
        (fill_groups, (p, q), (60, 60)),
        (_sum_rows, (rows,), (2, (2, 60))),
    ):
        filled = [[np.zeros(shape) for shape in shapes] for _ in range(2)]
        found = function._run_plain((*inputs, *filled[0]))
        with every_kernel_compiled():
            again = function(*inputs, *filled[1])
        filled = [[*filled[0], found or 0.0], [*filled[1], again or 0.0]]
        for one, other in zip(*filled, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-14, err_msg=str(function))


@pytest.mark.parametrize("terminal", [True, False])
def test_waiting_is_explained_once_on_a_terminal(terminal, double, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(otmd.kernel, "_told", threading.Event())
    monkeypatch.setattr(otmd.kernel, "_PATIENCE", 0.0)
    for _ in range(2):
        with otmd.kernel._waiting_is_explained():
            threading.Event().wait(0.05)
    assert capsys.readouterr().err.count("compiling kernels") == terminal


def test_warmup_compiles_law_by_law(monkeypatch, capsys):
    monkeypatch.setattr(warmup, "VOCAB_SIZE", 30)
    monkeypatch.setattr(warmup, "LAWS", ["with-replacement", "greedy"])
    warmup.warmup()
    printed = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["with-replacement", "greedy"]
