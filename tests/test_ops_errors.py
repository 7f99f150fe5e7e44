"""Wrong operands: the error names the op and the types, and is the same at every caller."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tinyaot import shapes as S
from tinyaot.errors import DTypeError, IndexingError, ShapeError
from tinyaot.ops import TABLE
from tinyaot.shapes import TensorType

F, N, B = S.float32, S.int64, S.bool_
BAD: list[tuple[str, list[tuple[S.DType, tuple[int, ...]]], dict[str, Any], type, str]] = [
    ("add", [(F, (2, 3)), (F, (4,))], {}, ShapeError, r"add.*\(2, 3\).*\(4,\)"),
    ("add", [(F, (2,)), (N, (2,))], {}, DTypeError, "add.*float32.*int64"),
    ("exp", [(N, (2,))], {}, DTypeError, "exp.*int64.*float"),
    ("logical_and", [(F, ()), (F, ())], {}, DTypeError, "logical_and.*float32"),
    ("where", [(F, ()), (F, ()), (F, ())], {}, DTypeError, "where.*bool.*float32"),
    ("where", [(B, ()), (F, ()), (N, ())], {}, DTypeError, "where.*float32.*int64"),
    ("sum", [(B, (2,))], {"axes": (0,)}, DTypeError, "sum.*bool"),
    ("sum", [(F, (2,))], {"axes": (1,)}, ShapeError, r"sum.*\(1,\).*\(2,\)"),
    ("sum", [(F, (2, 2))], {"axes": (1, 0)}, ShapeError, "sum.*axes"),
    ("amax", [(F, (2, 0))], {"axes": (1,)}, ShapeError, r"amax.*\(2, 0\).*no elements"),
    ("argmin", [(F, (0,))], {"axis": 0}, ShapeError, "argmin.*no elements"),
    ("argmax", [(F, ())], {"axis": 0}, ShapeError, "argmax.*no axis"),
    ("cumsum", [(B, (2,))], {"axis": 0}, DTypeError, "cumsum.*bool"),
    ("cumprod", [(F, (2,))], {"axis": 1}, ShapeError, "cumprod.*no axis 1"),
    ("argsort", [(F, (2,))], {"axis": 2, "descending": False}, ShapeError, "argsort"),
    ("reshape", [(F, (2, 3))], {"shape": (4,)}, ShapeError, "reshape.*6 elements"),
    ("permute", [(F, (2, 3))], {"perm": (0, 0)}, ShapeError, r"permute.*\(2, 3\)"),
    ("broadcast", [(F, (2,))], {"shape": (3,)}, ShapeError, r"broadcast.*\(2,\).*\(3,\)"),
    ("broadcast", [(F, (1, 2))], {"shape": (2,)}, ShapeError, "broadcast"),
    ("slice", [(F, (2,))], {"starts": (0,), "stops": (3,), "steps": (1,)}, ShapeError, "slice"),
    ("slice", [(F, (2,))], {"starts": (0,), "stops": (2,), "steps": (0,)}, ShapeError, "slice"),
    ("slice", [(F, (2,))], {"starts": (), "stops": (), "steps": ()}, ShapeError, "slice"),
    (
        "slice_scatter",
        [(F, (2,)), (F, (2,))],
        {"starts": (0,), "stops": (1,), "steps": (1,)},
        ShapeError,
        r"slice_scatter.*\(2,\).*\(1,\)",
    ),
    ("diagonal", [(F, (2,))], {"offset": 0, "axis1": 0, "axis2": 1}, ShapeError, "diagonal"),
    ("concat", [(F, (2, 3)), (F, (2, 4))], {"axis": 0}, ShapeError, r"concat.*\(2, 4\)"),
    ("concat", [(F, (2,)), (N, (2,))], {"axis": 0}, DTypeError, "concat.*int64"),
    ("concat", [(F, ())], {"axis": 0}, ShapeError, "concat"),
    ("concat", [], {"axis": 0}, ShapeError, "concat"),
    ("gather", [(F, (2,)), (F, (2,))], {"axes": (0,)}, IndexingError, "gather.*float32"),
    ("gather", [(F, (2,)), (B, (2,))], {"axes": (0,)}, IndexingError, "gather.*bool"),
    ("gather", [(F, (2,)), (N, (2,))], {"axes": (1,)}, IndexingError, r"gather.*\(2,\)"),
    ("gather", [(F, (2,))], {"axes": ()}, IndexingError, "gather"),
    (
        "scatter",
        [(F, (2,)), (F, (3,)), (N, (2,))],
        {"axes": (0,), "mode": "add"},
        ShapeError,
        r"scatter.*\(3,\).*\(2,\)",
    ),
    (
        "scatter",
        [(F, (2,)), (F, (2,)), (N, (2,))],
        {"axes": (0,), "mode": "mul"},
        DTypeError,
        "scatter.*mode",
    ),
    ("take_along", [(F, (2, 2)), (N, (2,))], {"axis": 0}, ShapeError, r"take_along.*\(2,\)"),
    ("take_along", [(F, (2, 2)), (N, (2, 3))], {"axis": 0}, ShapeError, "take_along"),
    (
        "put_along",
        [(F, (2,)), (F, (1,)), (N, (2,))],
        {"axis": 0, "mode": "set"},
        ShapeError,
        "put_along",
    ),
    ("dot", [(F, (2, 3)), (F, (4, 2))], {"spec": "ij,jk->ik"}, ShapeError, "dot.*'j'.*3.*4"),
    ("dot", [(F, (2,)), (F, (2, 2))], {"spec": "ij,jk->ik"}, ShapeError, r"dot.*\(2,\)"),
    ("dot", [(F, (2, 2)), (F, (2,))], {"spec": "ii,i->i"}, ShapeError, "dot.*spec"),
    ("dot", [(F, (2,)), (F, (2,))], {"spec": "i,i->k"}, ShapeError, "dot.*spec"),
    ("dot", [(F, (2,)), (N, (2,))], {"spec": "i,i->"}, DTypeError, "dot.*int64"),
    ("dot", [(B, (2,)), (B, (2,))], {"spec": "i,i->"}, DTypeError, "dot.*bool"),
    ("full", [], {"value": "a", "shape": (), "dtype": F}, DTypeError, "full"),
    ("full", [], {"value": -1, "shape": (), "dtype": S.uint8}, DTypeError, "full.*uint8"),
    ("full", [], {"value": math.nan, "shape": (), "dtype": N}, DTypeError, "full.*int64"),
    ("full", [], {"value": 1, "shape": (-1,), "dtype": N}, ShapeError, "full"),
    ("iota", [], {"size": -1, "dtype": N}, ShapeError, "iota"),
    ("random_bits", [(F, ()), (N, ())], {"ordinal": 0, "shape": ()}, DTypeError, "random_bits"),
    ("set_value", [(F, (2,)), (F, ())], {}, ShapeError, "set_value"),
    ("write", [(F, (2,)), (F, ())], {}, ShapeError, "write"),
    ("write", [(F, (2,)), (N, (2,))], {}, DTypeError, "write"),
]


@pytest.mark.parametrize("name,types,attrs,error,message", BAD)
def test_errors_name_op_and_types(
    name: str, types: Any, attrs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        TABLE[name].infer([TensorType(d, s) for d, s in types], attrs)


@pytest.mark.parametrize("bad", [3, -4])
def test_indices_out_of_range(bad: int) -> None:
    x, index = np.zeros((3, 3)), np.array([[0, bad]])
    src = np.zeros((1, 2, 3))
    for call in [
        lambda: TABLE["gather"].array(x, index, axes=(0,)),
        lambda: TABLE["gather"].into(np.zeros((1, 2, 3)), x, index, axes=(0,)),  # type: ignore[misc]
        lambda: TABLE["gather"].array(x, index, axes=(1,)),
        lambda: TABLE["scatter"].array(x, src, index, axes=(0,), mode="set"),
        lambda: TABLE["scatter"].array(x, src, index, axes=(0,), mode="add"),
        lambda: TABLE["take_along"].array(x, index, axis=1),
        lambda: TABLE["put_along"].array(x, src[..., 0], index, axis=1, mode="set"),
        lambda: TABLE["put_along"].array(x, src[..., 0], index, axis=1, mode="add"),
    ]:
        with pytest.raises(
            IndexingError, match=f"index: {bad} is out of range for a dim of size 3"
        ):
            call()
