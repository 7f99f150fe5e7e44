"""Parameter: a tensor that a Module counts as its own to learn."""

from __future__ import annotations

from typing import Any

from tinyaot.functions.operands import as_tensor
from tinyaot.tensor import Tensor


class Parameter(Tensor):
    """A leaf tensor that a Module registers when it is assigned to an attribute.

    It shares the memory of `data`. Raises GradError if it is to require a gradient and its dtype is
    not floating.
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        source = as_tensor("Parameter", data)
        super().__init__(source._concrete("Parameter()"))
        self._history.storage = source._history.get_storage()
        if requires_grad:
            self.requires_grad_(True)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"
