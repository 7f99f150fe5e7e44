"""The garbage collector waits for a compile, and is afterwards as it was."""

from __future__ import annotations

import gc

import pytest

import tinyaot as ta
from tinyaot import collector


def test_it_is_as_it_was_afterwards() -> None:
    assert gc.isenabled()
    with collector.paused():
        assert not gc.isenabled()
        with collector.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collector.paused():
        _ = 1 / 0
    assert gc.isenabled()


def test_who_switched_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with collector.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_compile_pauses_it() -> None:
    @ta.compile(backend="numpy")
    def double(x: ta.Tensor) -> ta.Tensor:
        assert not gc.isenabled()  # when it is traced
        return x * 2

    assert double(ta.tensor([1.0])).tolist() == [2.0]
    assert gc.isenabled()
