"""Several processes: their results, and that none is left, however the work ends."""

import multiprocessing
import os
import time
from contextlib import closing

import pytest

from nvdp.errors import InputError
from nvdp.processes import in_processes


def test_every_call_has_its_result_and_an_error_of_one_is_raised_here():
    assert sorted(in_processes(divmod, [(7, 2), (9, 4), (5, 5)], 2)) == [(1, 0), (2, 1), (3, 1)]
    with pytest.raises(ZeroDivisionError):
        list(in_processes(divmod, [(1, 0)], 2))
    assert multiprocessing.active_children() == []


def test_a_killed_process_is_one_line_and_the_others_end():
    with pytest.raises(
        InputError, match="a process ended unexpectedly, perhaps for lack of memory; fewer --jobs need less"
    ):
        list(in_processes(os._exit, [(9,), (9,)], 2))
    assert multiprocessing.active_children() == []


def test_ending_one_group_of_processes_leaves_another_alone():
    with closing(in_processes(time.sleep, [(0,), (600,)], 2)) as first:
        next(first)
        later = in_processes(divmod, [(7, 2), (9, 4), (5, 5)], 1)
        assert next(later) == (3, 1)
        first.close()
        assert sorted(later) == [(1, 0), (2, 1)]
    assert multiprocessing.active_children() == []


def test_nobody_waits_for_results_that_are_not_wanted_any_more():
    began = time.monotonic()
    with closing(in_processes(time.sleep, [(0,), (600,)], 2)) as results:
        next(results)
    assert time.monotonic() - began < 300
    assert multiprocessing.active_children() == []
