"""Nested containers of tensors, flattened and rebuilt (JAX's pytrees, for the builtin ones)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyaot.tensor import Tensor


def leaves(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every leaf (what is not a list, tuple or dict), with its path such as `batch['x'][0]`."""
    if isinstance(tree, (list, tuple)):
        return [leaf for i, x in enumerate(tree) for leaf in leaves(x, f"{path}[{i}]")]
    if isinstance(tree, dict):
        return [leaf for k, x in tree.items() for leaf in leaves(x, f"{path}[{k!r}]")]
    return [(path, tree)]


def map_leaves(tree: Any, kind: type, fn: Callable[[Any], Any]) -> Any:
    """The same containers with `fn` of every leaf of a class; other leaves as they are."""
    if isinstance(tree, kind):
        return fn(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(x, kind, fn) for x in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_leaves(x, kind, fn) for x in tree)
    if isinstance(tree, dict):
        return type(tree)((k, map_leaves(x, kind, fn)) for k, x in tree.items())
    return tree


def map_tensors(tree: Any, fn: Callable[[Tensor], Any]) -> Any:
    """The same containers with `fn` of every tensor in them."""
    return map_leaves(tree, Tensor, fn)


def structure(tree: Any) -> Any:
    """A hashable skeleton: containers and keys, tensors as a mark, other leaves as None."""
    if isinstance(tree, Tensor):
        return "T"
    if isinstance(tree, (list, tuple)):
        return type(tree), tuple([structure(x) for x in tree])
    if isinstance(tree, dict):
        return dict, tuple([(k, structure(x)) for k, x in tree.items()])
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """In a tree without its tensors: where one of them was."""

    index: int


def flatten(tree: Any) -> tuple[list[Tensor], Any]:
    """The tensors of a tree, and the tree with their places, for `fill`."""
    tensors: list[Tensor] = []

    def take(t: Tensor) -> Place:
        tensors.append(t)
        return Place(len(tensors) - 1)

    return tensors, map_tensors(tree, take)


def fill(tree: Any, values: Sequence[Any] | Mapping[int, Any]) -> Any:
    """The tree with values in their places: the inverse of `flatten`."""
    return map_leaves(tree, Place, lambda place: values[place.index])
