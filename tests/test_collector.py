"""The garbage collector waits for a compile, and is afterwards as it was."""

from __future__ import annotations

import gc
import importlib
from typing import Any

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


def test_a_compile_pauses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = importlib.import_module("tinyaot.compile")
    capture, enabled = compiler.capture, []

    def watched(*args: Any) -> Any:
        enabled.append(gc.isenabled())
        return capture(*args)

    monkeypatch.setattr(compiler, "capture", watched)
    double = ta.compile(lambda x: x * 2, backend="numpy")
    assert double(ta.tensor([1.0])).tolist() == [2.0]
    assert enabled == [False]
    assert gc.isenabled()
