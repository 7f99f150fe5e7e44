"""Nested containers of tensors, flattened and rebuilt: JAX's pytrees, for the builtin ones and,
where they are rebuilt, for dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from tinyaot.tensor import Tensor


def leaves(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every leaf (what is not a list, tuple or dict), with its path such as `batch['x'][0]`."""
    if isinstance(tree, (list, tuple)):
        return [leaf for i, x in enumerate(tree) for leaf in leaves(x, f"{path}[{i}]")]
    if isinstance(tree, dict):
        return [leaf for k, x in tree.items() for leaf in leaves(x, f"{path}[{k!r}]")]
    return [(path, tree)]


def map_leaves(tree: Any, kind: type, fn: Callable[[Any], Any], keep: Container[int] = ()) -> Any:
    """The same containers with `fn` of every leaf of a class; other leaves as they are. Dataclass
    objects with such leaves are copied, but for those whose ids are in `keep`."""
    if isinstance(tree, kind):
        return fn(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(x, kind, fn, keep) for x in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_leaves(x, kind, fn, keep) for x in tree)
    if isinstance(tree, dict):
        return type(tree)((k, map_leaves(x, kind, fn, keep)) for k, x in tree.items())
    if _is_record(tree) and id(tree) not in keep and _holds(tree, kind):
        made = copy(tree)
        for field in fields(tree):
            value = map_leaves(getattr(tree, field.name), kind, fn, keep)
            object.__setattr__(made, field.name, value)
        return made
    return tree


def _is_record(x: Any) -> bool:
    return is_dataclass(x) and not isinstance(x, type)


def _holds(tree: Any, kind: type) -> bool:
    """Whether there is a leaf of a class."""
    if isinstance(tree, (list, tuple)):
        return any(_holds(x, kind) for x in tree)
    if isinstance(tree, dict):
        return any(_holds(x, kind) for x in tree.values())
    if _is_record(tree) and not isinstance(tree, kind):
        return any(_holds(getattr(tree, f.name, None), kind) for f in fields(tree))
    return isinstance(tree, kind)


def map_tensors(tree: Any, fn: Callable[[Tensor], Any], keep: Container[int] = ()) -> Any:
    """The same containers with `fn` of every tensor in them."""
    return map_leaves(tree, Tensor, fn, keep)


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
