"""Devices that tensors can be asked for: the CPU holds them; a GPU only runs compiled programs."""

from __future__ import annotations

from functools import cache
from typing import Any

from tinyaot.functions.operands import check_device


@cache
def is_available(device: str = "cuda") -> bool:
    """Whether a device works here: "cpu" always, "cuda" where CuPy finds a GPU and its driver."""
    if device == "cpu":
        return True
    if device.split(":")[0] != "cuda":
        return False
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except Exception:  # no CuPy, or no driver: it raises errors of several kinds
        return False


def set_default_device(device: Any) -> None:
    """The device of new tensors. Only "cpu" holds eager tensors; BackendError for another."""
    check_device("set_default_device", device)
