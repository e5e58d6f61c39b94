"""The pause of the garbage collector."""

from __future__ import annotations

import gc
import weakref

import pytest

from autofuse.graph.collector import paused_collector


class Node:
    """Refers to itself: only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


def test_collects_nothing_inside_and_is_as_before_afterwards() -> None:
    """Nested pauses end with the outermost, and an error ends them too."""
    assert gc.isenabled()
    with paused_collector():
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError), paused_collector():
        raise ValueError
    assert gc.isenabled()


def test_what_became_garbage_inside_is_collected_later() -> None:
    """Objects made during the pause are not kept for ever."""
    with paused_collector():
        gone = weakref.ref(Node())
    gc.collect()
    assert gone() is None


def test_objects_that_the_program_has_frozen_stay_frozen() -> None:
    """The pause does not undo what a caller asked of the collector."""
    node = Node()

    def watched() -> bool:
        """Whether the collector looks at the object, as it does not while that is frozen."""
        return any(each is node for each in gc.get_objects())

    assert watched()
    gc.freeze()
    try:
        assert not watched()
        with paused_collector():
            assert not watched()
        assert not watched()
    finally:
        gc.unfreeze()
    assert watched()
