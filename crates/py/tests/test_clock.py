"""The package's clock: deadlines pass, and waits end, by what it shows alone."""

import threading

from waiting import ManualTime

from cenote.clock import Deadline


def test_a_deadline_passes_when_its_clock_says_so(manual_time: ManualTime) -> None:
    deadline, never = Deadline(8.0), Deadline(None)
    assert (deadline.left, deadline.passed) == (8.0, False)
    manual_time.advance(7)
    assert (deadline.left, deadline.passed) == (1.0, False)
    manual_time.advance(2)
    assert (deadline.left, deadline.passed) == (0.0, True)
    assert Deadline(0).passed
    assert not never.passed


def test_a_wait_ends_by_the_clock_alone(manual_time: ManualTime) -> None:
    bell = threading.Condition()

    def wait(timeout: float) -> bool:
        with bell:
            return Deadline(timeout).wait_for(bell, lambda: False)

    assert not manual_time.expire(wait)
    with bell:
        assert Deadline(0).wait_for(bell, lambda: True), "what holds is seen after the deadline, too"


def test_a_wait_without_a_timeout_ends_with_its_event(manual_time: ManualTime) -> None:
    bell, came = threading.Condition(), threading.Event()

    def come() -> None:
        with bell:
            came.set()
            bell.notify_all()

    with bell:
        thread = threading.Thread(target=come)
        thread.start()
        assert Deadline(None).wait_for(bell, came.is_set)
    thread.join()
