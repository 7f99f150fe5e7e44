"""A case of the table of functions, run by torch: the same code, with torch's modules in place of
ours. What this needs to know is only where a name of ours is another there."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from tests.case import Case, outputs

RENAMED: dict[str, Callable[..., Any]] = {
    "floordiv": torch.floor_divide,
    "one_hot": torch.nn.functional.one_hot,
    "embedding": torch.nn.functional.embedding,
    "pad": torch.nn.functional.pad,
    "permute": torch.Tensor.permute,  # dims one by one, too
    "flip": torch.Tensor.flip,
}

# Operands for which torch has no derivative, by the case; elsewhere it is asked for all.
CONSTANT = {
    "nll_loss-weight": (2,),
    "cross_entropy-all": (2,),
    "binary_cross_entropy_with_logits-weight": (2, 3),
    "batch_norm": (1, 2),
    "__rmod__": (0,),
    "scatter_add": (1,),  # a source larger than the index
    "norm-p0": (0,),  # None there, zeros here
    "copy_": (0,),  # written whole: torch gives zeros, here there is no path
}
CONSTANT |= dict.fromkeys(("__floordiv__", "__rfloordiv__", "__ifloordiv__"), (0, 1))


def moving(case: Case) -> list[bool]:
    """Which operands of a case get a gradient."""
    fixed = (0, 1) if case.public == "floordiv" else CONSTANT.get(case.name, ())
    return [a.dtype.kind == "f" and i not in fixed for i, a in enumerate(case.operands)]


class Namespace(types.ModuleType):
    """`ta` as torch spells it: its functions, else the methods of its tensors."""

    def __getattr__(self, name: str) -> Any:
        if name in RENAMED:
            return RENAMED[name]
        return getattr(torch, name) if hasattr(torch, name) else getattr(torch.Tensor, name)


TORCH = Namespace("torch")


def in_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with `ta` and `F` meaning torch's."""
    if (function.__module__ or "").startswith("tinyaot"):
        return getattr(TORCH, function.__name__)  # type: ignore[no-any-return]
    names = {"ta": TORCH, "F": torch.nn.functional, "getattr": _getattr}
    code = types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    code.__kwdefaults__ = function.__kwdefaults__
    return code


def _getattr(thing: Any, name: str) -> Any:
    import tinyaot

    return getattr(TORCH if thing is tinyaot else thing, name)


def torch_dtype(dtype: Any) -> torch.dtype:
    """torch's dtype of the same name."""
    return getattr(torch, dtype.name)  # type: ignore[no-any-return]


def run(case: Case, dtype: Any) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """torch's outputs, and its gradients of the sum of their squares."""
    xs = [
        torch.tensor(a, dtype=torch_dtype(dtype) if a.dtype.kind == "f" else None)
        for a in case.operands
    ]
    xs = [x.requires_grad_() if moves else x for x, moves in zip(xs, moving(case))]
    ys = outputs(in_torch(case.function)(*xs))
    pulled = [(y * y).sum() for y in ys if y.requires_grad]
    if pulled:
        sum(pulled).backward()  # type: ignore[union-attr]
    return ys, [x.grad for x in xs]
