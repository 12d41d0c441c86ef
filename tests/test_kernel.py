"""Kernels: plain Python for small inputs, compiled for large ones, with the same result."""

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from conformance import VARIANTS
from numba.core.event import trigger_event

import otmd
import otmd.kernel
from otmd.kernel import every_kernel_compiled, in_threads, input_size, kernel
from otmd.verifiers import verifiers_serving

_LIMIT = 32


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


def test_the_size_of_the_input_decides_whatever_ran_before(double):
    doubled, ran = double
    large = np.ones(_LIMIT + 1)
    calls = [np.ones(3)] * 100 + [large, np.ones(_LIMIT), large[:3], large]
    assert [doubled(values) for values in calls] == [2.0 * values.size for values in calls]
    assert ran == ["plain"] * 100 + ["compiled", "plain", "plain", "compiled"]
    assert otmd.kernel._size((large, (large, 1.0))) == 2 * large.size


@pytest.mark.parametrize("vocab_size", [4, 400])
def test_the_same_call_gives_the_same_bits_whatever_ran_before(vocab_size):
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(vocab_size), 2)
    laws = [otmd.WithReplacement(q, 3), otmd.WithoutReplacement(q, 3), otmd.Stratified(q, 3)]

    def answers():
        return [
            [otmd.optimal_acceptance(p, law).rate, *otmd.acceptance_bounds(rule, p, law)]
            for law in laws
            for rule in (otmd.TargetOnly(), otmd.Optimal())
        ]

    before = answers()
    with every_kernel_compiled():
        answers()
    otmd.optimal_acceptance(p[::-1], laws[0])
    assert answers() == before


def test_a_digest_of_a_large_input_is_compiled_in_threads_too(double):
    doubled, ran = double
    with input_size(_LIMIT + 1), input_size(1):
        doubled(np.ones(1))
    for count, size in ((4, _LIMIT), (4, _LIMIT + 1), (100, _LIMIT)):
        in_threads(lambda start, stop: doubled(np.ones(1)), count, size)
    assert ran == ["compiled", "plain", "compiled", "compiled"]
    in_threads(lambda start, stop: doubled(np.ones(1)), 4, 1_000_000)
    assert set(ran[4:]) == {"compiled"}
    assert otmd.kernel._mode.size == 0


@pytest.mark.parametrize("name", VARIANTS)
def test_kernels_that_get_a_few_classes_of_a_large_vocabulary_are_told_its_size(name, monkeypatch):
    plain = []
    monkeypatch.setattr(otmd.kernel.Kernel, "_run_plain", lambda made, _: plain.append(made))
    p = np.repeat([1.5, 0.5], 50) / 100
    law = VARIANTS[name](np.full(100, 0.01), 2)
    law.sample(rng=0)
    law.containment(np.arange(100) < 50)
    law.inclusion_probs()
    otmd.optimal_acceptance(p, law)
    for verifier in verifiers_serving(law):
        otmd.acceptance_bounds(verifier, p, law)
        verifier.prepare(p, law)
    assert not plain


@pytest.mark.parametrize(("vocab_size", "num_drafts"), [(3, 2), (16, 2), (_LIMIT, 2)])
def test_a_first_answer_on_few_tokens_compiles_nothing(vocab_size, num_drafts, monkeypatch):
    compiled = []
    for made in [made for made in gc.get_objects() if type(made) is otmd.kernel.Kernel]:
        monkeypatch.setattr(made, "_compiled", partial(compiled.append, made.py_func.__name__))
    p, q = np.random.default_rng(0).dirichlet(np.ones(vocab_size), 2)
    law = otmd.Stratified(q, num_drafts)
    otmd.optimal_acceptance(p, law)
    otmd.acceptance_rate(otmd.Preference(), p, law)
    otmd.Preference().verify(p, law, law.sample(rng=0), rng=0)
    otmd.compare(p, q, num_drafts=num_drafts)
    assert not compiled


def test_kernels_inside_a_plain_run_stay_plain_even_if_it_raises(double):
    doubled, ran = double

    def outer(values):
        doubled(np.ones(1000))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kernel()(outer)(np.ones(1))
    doubled(np.ones(1000))
    assert ran == ["plain", "compiled"]
    assert not otmd.kernel._mode.plain


def test_waiting_is_explained_once(monkeypatch, capsys):
    monkeypatch.setattr(otmd.kernel, "_told", threading.Event())
    monkeypatch.setattr(otmd.kernel, "_PATIENCE", 0.01)
    # What takes long without a compiler is the loading of compiled kernels.
    compiles = partial(trigger_event, "numba:compile")
    for compiling, said in ((nullcontext, 0), (compiles, 1), (compiles, 0)):
        with otmd.kernel._waiting_is_explained(), compiling():
            threading.Event().wait(0.2)
        assert capsys.readouterr().err.count("compiling kernels") == said


def test_a_full_disk_costs_no_answer(monkeypatch):
    def tripled(values):
        return 3.0 * values[0]

    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("numba.core.caching.FunctionCache.save_overload", full)
    monkeypatch.setattr(otmd.kernel, "_not_kept", threading.Event())
    with pytest.warns(UserWarning, match="cannot be kept on disk: No space left") as said:
        answers = [kernel()(tripled)(np.ones(1000)) for _ in range(2)]
    assert answers == [3.0, 3.0]
    assert (len(said), full.call_count) == (1, 2)


@pytest.fixture
def alarm(monkeypatch):
    """A signal after some milliseconds, whose handler raises as that of Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_in_a_kernel_is_an_interrupt(alarm):
    target, draft = np.random.default_rng(0).dirichlet(np.ones(200_000), 2)
    law = otmd.WithReplacement(draft, 4)
    otmd.optimal_acceptance(target, law)
    for seconds in np.linspace(1e-3, 1e-2, 40):
        # The alarm is set inside: on a busy machine it may ring before the next line.
        with pytest.raises(KeyboardInterrupt):
            _ = alarm(float(seconds)), [otmd.optimal_acceptance(target, law) for _ in range(10_000)]


def test_an_interrupt_while_results_are_boxed_is_an_interrupt(double, monkeypatch):
    doubled, _ = double

    def boxed(values):
        error = SystemError("returned a result with an exception set")
        error.__cause__ = SystemError("once more")
        error.__cause__.__cause__ = KeyboardInterrupt()
        raise error

    monkeypatch.setattr(doubled, "_compiled", boxed)
    with pytest.raises(KeyboardInterrupt):
        doubled(np.ones(1000))


BITS = """
import sys, numpy as np
from otmd.laws.race.containment import power_sums
rates = np.random.default_rng(0).random(5000) / 20
print(*[x.hex() for _ in range(int(sys.argv[1])) for x in power_sums(rates, 12)])
print([x.hex() for x in power_sums(rates, 12)])
"""


@pytest.mark.slow
def test_the_process_that_compiles_gets_the_bits_of_later_ones(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    run = partial(subprocess.run, env=environment, check=True, capture_output=True, text=True)
    said = [run([sys.executable, "-c", BITS, count]).stdout for count in ("2", "2", "0")]
    assert len({text.splitlines()[-1] for text in said}) == 1
