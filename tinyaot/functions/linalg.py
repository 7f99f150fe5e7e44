"""Products. Every one is a `dot` with letters: `matmul` names them by position, `einsum` by its
spec, and a sum over several operands becomes products of pairs.

Where a batch dim of one operand has size 1 and the other's has not, it is squeezed away rather
than repeated: the letter then stands in one operand only.
"""

from __future__ import annotations

import math
import re
import string
from typing import Any

from tinyaot import ops
from tinyaot.errors import DTypeError, ShapeError
from tinyaot.functions.elementwise import mul
from tinyaot.functions.operands import as_tensor, promoted
from tinyaot.shapes import bool_, broadcast_shapes
from tinyaot.tensor import Tensor


def matmul(a: Any, b: Any) -> Tensor:
    """The matrix product `[..., m, k] @ [..., k, n] -> [..., m, n]`, leading dims broadcast.

    A 1-d operand is a row on the left, a column on the right, and its dim is dropped.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype is b.dtype):
        a, b = promoted("matmul", as_tensor("matmul", a), as_tensor("matmul", b))
    _need_numbers("matmul", a)
    if not a.ndim or not b.ndim:
        raise ShapeError(
            f"matmul: shapes {a.shape} and {b.shape}: each needs at least one dim; use mul"
        )
    inner, outer = a.shape[-1], b.shape[-2] if b.ndim > 1 else b.shape[0]
    if inner != outer:
        raise ShapeError(
            f"matmul: shapes {a.shape} and {b.shape} do not fit: the last dim of the first has "
            f"size {inner}, the {'second to last' if b.ndim > 1 else 'only'} dim of the second "
            f"{outer}; transpose one of them"
        )
    if a.ndim == 2 and b.ndim == 2:
        return ops.dot(a, b, spec="ij,jk->ik")
    row, column = "i" if a.ndim > 1 else "", "k" if b.ndim > 1 else ""
    batch = string.ascii_uppercase
    try:
        broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
    except ShapeError:
        raise ShapeError(
            f"matmul: shapes {a.shape} and {b.shape} do not fit: all dims but the last two must "
            f"broadcast, and {a.shape[:-2]} and {b.shape[:-2]} do not; unsqueeze or expand one"
        ) from None
    rank = max(a.ndim - 2, b.ndim - 2, 0)
    letters_a = batch[rank - max(a.ndim - 2, 0) : rank] + row + "j"
    letters_b = batch[rank - max(b.ndim - 2, 0) : rank] + "j" + column
    return _product(a, letters_a, b, letters_b, batch[:rank] + row + column)


def dot(a: Any, b: Any) -> Tensor:
    """The inner product of two 1-d tensors of equal size: a 0-d tensor."""
    a, b = promoted("dot", as_tensor("dot", a), as_tensor("dot", b))
    _need_numbers("dot", a)
    if a.ndim != 1 or b.ndim != 1 or a.shape != b.shape:
        raise ShapeError(
            f"dot: needs two 1-d tensors of equal size, got shapes {a.shape} and {b.shape}; use "
            f"matmul for more dims"
        )
    return ops.dot(a, b, spec="i,i->")


def outer(a: Any, b: Any) -> Tensor:
    """All products of an element of `a` and one of `b`, both 1-d: `[m, n]`."""
    a, b = as_tensor("outer", a), as_tensor("outer", b)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"outer: needs two 1-d tensors, got shapes {a.shape} and {b.shape}")
    return mul(ops.reshape(a, shape=(a.shape[0], 1)), b)


def _need_numbers(op: str, x: Tensor) -> None:
    if x.dtype is bool_:
        raise DTypeError(f"{op} is not defined for bool operands; cast one to a number first")


def _product(a: Tensor, letters_a: str, b: Tensor, letters_b: str, out: str) -> Tensor:
    """`dot` of two tensors whose dims are named, after squeezing dims of size 1 that broadcast."""
    sizes_a, sizes_b = dict(zip(letters_a, a.shape)), dict(zip(letters_b, b.shape))
    both = sizes_a.keys() & sizes_b.keys()
    a, letters_a = _squeezed(a, letters_a, {c for c in both if sizes_a[c] == 1 != sizes_b[c]})
    b, letters_b = _squeezed(b, letters_b, {c for c in both if sizes_b[c] == 1 != sizes_a[c]})
    return ops.dot(a, b, spec=f"{letters_a},{letters_b}->{out}")


def _squeezed(x: Tensor, letters: str, gone: set[str]) -> tuple[Tensor, str]:
    if not gone:
        return x, letters
    kept = [(c, n) for c, n in zip(letters, x.shape) if c not in gone]
    return ops.reshape(x, shape=tuple(n for _, n in kept)), "".join(c for c, _ in kept)


# ---- einsum -------------------------------------------------------------------------------------


def einsum(spec: str, *operands: Any) -> Tensor:
    """Einstein's sum: `einsum("bij,bjk->bik", a, b)`; any number of operands.

    A letter names a dim; letters missing from the output are summed over, a letter repeated in one
    operand takes its diagonal, `...` stands for dims that broadcast. Without `->` the output has
    the letters that occur once, in alphabetical order. ShapeError for a spec that does not fit.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(spec, str) or not operands:
        raise DTypeError('einsum: give a spec and tensors, such as einsum("ij,jk->ik", a, b)')
    tensors = promoted("einsum", *(as_tensor("einsum", x) for x in operands))
    _need_numbers("einsum", tensors[0])
    names, out = _named_dims(spec, tensors)
    terms = [_diagonals(x, letters) for x, letters in zip(tensors, names)]
    sizes = _sizes(spec, terms)
    while len(terms) > 1:
        i, j = _cheapest_pair(terms, sizes)
        (b, letters_b), (a, letters_a) = terms.pop(j), terms.pop(i)
        later = set(out).union(*(letters for _, letters in terms))
        keep = "".join(c for c in dict.fromkeys(letters_a + letters_b) if c in later)
        keep = keep if terms else out
        terms.append((_product(a, letters_a, b, letters_b, keep), keep))
    return _single(*terms[0], out)


def _named_dims(spec: str, tensors: list[Tensor]) -> tuple[list[str], str]:
    """The letters of each operand's dims and of the output's, with `...` spelt out."""
    given, arrow, out = spec.replace(" ", "").partition("->")
    parts = given.split(",")
    shapes = " and ".join(str(x.shape) for x in tensors)
    if len(parts) != len(tensors):
        raise ShapeError(
            f"einsum: {spec!r} names {len(parts)} operands, but {len(tensors)} were given"
        )
    if not all(re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", p) for p in [*parts, out]):
        raise ShapeError(f"einsum: {spec!r} may hold letters, commas, one -> and ... only")
    spare = [c for c in string.ascii_letters if c not in spec]
    ranks = [x.ndim - len(p.replace("...", "")) for p, x in zip(parts, tensors)]
    for p, x, rank in zip(parts, tensors, ranks):
        if rank < 0 or (rank and "..." not in p):
            raise ShapeError(
                f"einsum: {p!r} in {spec!r} does not name the {x.ndim} dims of shape {x.shape}"
            )
    most = max((r for p, r in zip(parts, ranks) if "..." in p), default=0)
    dots = "".join(spare[:most])
    names = [p.replace("...", dots[most - rank :]) for p, rank in zip(parts, ranks)]
    if not arrow:
        letters = given.replace(",", "").replace("...", "")
        out = "..." + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    out = out.replace("...", dots)
    if len(set(out)) != len(out) or not set(out) <= set("".join(names)):
        raise ShapeError(
            f"einsum: the output of {spec!r} must hold letters of its operands, each once (shapes "
            f"{shapes})"
        )
    return names, out


def _sizes(spec: str, terms: list[tuple[Tensor, str]]) -> dict[str, int]:
    """The size of each letter; 1 broadcasts."""
    sizes: dict[str, int] = {}
    for x, letters in terms:
        for c, n in zip(letters, x.shape):
            have = sizes.setdefault(c, n)
            if have != n and 1 not in (have, n):
                shapes = " and ".join(str(t.shape) for t, _ in terms)
                raise ShapeError(
                    f"einsum: the letter {c!r} of {spec!r} has the sizes {have} and {n} (shapes "
                    f"{shapes}); they must be equal, or 1"
                )
            sizes[c] = n if have == 1 else have
    return sizes


def _diagonals(x: Tensor, letters: str) -> tuple[Tensor, str]:
    """Each letter once: a repeated one becomes a diagonal, which is the last dim."""
    for c in dict.fromkeys(letters):
        while letters.count(c) > 1:
            i, j = [k for k, letter in enumerate(letters) if letter == c][:2]
            if x.shape[i] != x.shape[j]:
                raise ShapeError(
                    f"einsum: the letter {c!r} has sizes {x.shape[i]} and {x.shape[j]} in shape "
                    f"{x.shape}; a diagonal needs equal sizes"
                )
            x = ops.diagonal(x, offset=0, axis1=i, axis2=j)
            letters = letters[:i] + letters[i + 1 : j] + letters[j + 1 :] + c
    return x, letters


def _cheapest_pair(terms: list[tuple[Tensor, str]], sizes: dict[str, int]) -> tuple[int, int]:
    """The two operands to multiply next: greedily, those with the fewest multiplications."""
    if len(terms) == 2:
        return 0, 1

    def work(i: int, j: int) -> int:
        return math.prod(sizes[c] for c in set(terms[i][1] + terms[j][1]))

    pairs = [(i, j) for j in range(len(terms)) for i in range(j)]
    return min(pairs, key=lambda pair: (work(*pair), pair))


def _single(x: Tensor, letters: str, out: str) -> Tensor:
    """Sum over the letters that are not in the output, and order those that are."""
    axes = tuple(a for a, c in enumerate(letters) if c not in out)
    if axes:
        x = ops.sum(x, axes=axes)
        letters = "".join(c for c in letters if c in out)
        x = ops.reshape(x, shape=tuple(n for a, n in enumerate(x.shape) if a not in axes))
    perm = tuple(letters.index(c) for c in out)
    return x if perm == tuple(range(len(perm))) else ops.permute(x, perm=perm)
