import os
import threading

import numba
import numpy as np
import pytest

import otmd.kernel
from otmd.kernel import in_threads

LARGE = 1_000_000


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.setattr(otmd.kernel, "num_threads", lambda: 2)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
def test_every_position_is_done_once(count):
    done = np.zeros(count, int)

    def work(start, stop):
        done[start:stop] += 1

    in_threads(work, count, LARGE)
    assert (done == 1).all()


def test_threads_work_side_by_side():
    both = threading.Barrier(2, timeout=30)
    in_threads(lambda start, stop: start < 2 and both.wait(), 8, LARGE)


def test_small_work_stays_in_the_callers_thread():
    names = []
    in_threads(lambda start, stop: names.append((start, stop, threading.get_ident())), 8, 10)
    assert names == [(0, 8, threading.get_ident())]


@pytest.mark.parametrize("wrong", range(8))
def test_what_one_part_raises_is_raised(wrong):
    def work(start, stop):
        if start == wrong:
            raise ValueError(f"position {start}")

    with pytest.raises(ValueError, match=f"position {wrong}"):
        in_threads(work, 8, LARGE)
    in_threads(lambda start, stop: None, 8, LARGE)


def test_calls_within_calls_wait_for_nothing():
    done = np.zeros((8, 8), int)

    def row(start, stop):
        for i in range(start, stop):
            in_threads(lambda first, last, i=i: done[i, first:last].__iadd__(1), 8, LARGE)

    in_threads(row, 8, LARGE)
    assert (done == 1).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_starts_its_own_threads():
    in_threads(lambda start, stop: None, 8, LARGE)
    child = os.fork()
    if child == 0:
        both = threading.Barrier(2, timeout=30)
        try:
            in_threads(lambda start, stop: start < 2 and both.wait(), 8, LARGE)
        except threading.BrokenBarrierError:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_numbas_number_of_threads_counts(monkeypatch):
    monkeypatch.undo()
    assert otmd.kernel.num_threads() <= numba.config.NUMBA_NUM_THREADS
