"""A steady call as a straight line of Python.

Most calls of a training step differ from the last one in the batch alone. For those a function is
generated: the fast guards, the inputs that changed, the run, and the results where eager would
have left them, with nothing looked up or decided that was decided before. What it cannot be sure
of takes the general way (`Specialization.bind` and its call), which this repeats for the plain
case: no rebound attributes, no views among results, no gradients across the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tinyaot import random
from tinyaot.guards import Text
from tinyaot.ops.core import mode
from tinyaot.results import Result
from tinyaot.slots import Slot
from tinyaot.specialization import NUMBERS, Bound, Specialization
from tinyaot.tensor import NOT_KEPT, Tensor
from tinyaot.tree import Place

if TYPE_CHECKING:
    from tinyaot.backends.watch import Watch

Lines: TypeAlias = tuple[list[str], dict[str, Any]]  # of a function, with the objects they name
TRIES = 8  # how often a specialisation gets a new steady call


def make_steady(
    found: Specialization, args: tuple[Any, ...], kwargs: dict[str, Any], bound: Bound
) -> None:
    """Give a specialisation its steady call, from a call that the slow check passed. A few times
    only: state that is another object at every call would have it made at every call."""
    if found.steady_tries >= TRIES:
        return
    found.steady_tries += 1
    text, plain = _guards_and_call(found, args, kwargs, bound)
    if text is None:
        return
    if plain is None:
        given = ", ".join(f"x{i}" for i in range(len(bound[1])))
        passed = {a.position for a in found.captured.arguments}
        sources = [None if i in passed else x for i, x in enumerate(bound[0])]
        names = {"sources": sources, "again": found.again}
        plain = [f"return again(sources, [{given}])"], names
    found.steady = text.function(*plain)


def guard_of(
    found: Specialization, args: tuple[Any, ...], kwargs: dict[str, Any], bound: Bound
) -> Callable[..., Any] | None:
    """The guards of a steady call alone: True, or MISS."""
    text, _ = _guards_and_call(found, args, kwargs, bound)
    if text is None:
        return None
    if text.watch is None:
        return text.function(["return True"], {})
    given = ", ".join(f"x{i}" for i in range(len(bound[1])))
    return text.function([f"return MISS if look({given}) else True"], {"look": text.watch.look()})


def _guards_and_call(
    found: Specialization, args: tuple[Any, ...], kwargs: dict[str, Any], bound: Bound
) -> tuple[Text | None, Lines | None]:
    """The guards, and what `plain_call` gives. C looks at them if it makes the call."""
    watch = _watch(found)
    if watch is not None:
        text = guards(found, args, kwargs, bound, watch)
        plain = None if text is None else plain_call(found, text, bound)
        if plain is not None:
            return text, plain
    text = guards(found, args, kwargs, bound, None)
    return text, None if text is None else plain_call(found, text, bound)


def _watch(found: Specialization) -> Watch | None:
    """What takes guards that need no line of Python, where the backend has such a thing and looks
    at them as part of its call."""
    make = getattr(found.executable, "watch", None)
    return make() if make and found.captured.whole_step else None


def guards(
    found: Specialization,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bound: Bound,
    watch: Watch | None,
) -> Text | None:
    """The conditions under which all state is surely what it was, but for those that the watch
    takes; None where one of them has no fast form."""
    captured, (sources, given) = found.captured, bound
    if any(a.views for a in captured.arguments) or len({id(a) for a in given}) != len(given):
        return None
    passed = {a.position for a in captured.arguments}
    if not passed.isdisjoint(captured.by_grad.values()):
        return None
    state = [i for i in found.guards if i not in passed]
    held: list[tuple[Slot | None, Tensor]] = [(captured.slots.get(i), sources[i]) for i in state]
    held += [(slot, sources[i]) for slot, i in captured.twins if i not in passed]
    if any(slot is not None and slot.read() is not t for slot, t in held):
        return None  # a NumPy array in reach
    text = Text(watch)
    examples: list[Tensor] = []
    if not (text.arguments("args", args, examples) and text.arguments("kwargs", kwargs, examples)):
        return None
    now = text.name(mode)
    text.require(f"{now}.engine is {text.name(mode.default)}")
    text.require(f"{now}.grad_enabled is {mode.grad_enabled}")
    if not text.slots((*captured.reach.identities, *captured.reach.scalars)):
        return None
    mutated = {i for i, _ in found.mutated}
    written = [a.position in mutated for a in captured.arguments]
    apart = [sources[i]._data for i in state if any(written) or i in mutated]
    if not (text.tensors(held) and text.like(examples, written, apart)):
        return None
    at = {a.position: f"x{k}" for k, a in enumerate(captured.arguments)}
    for slot, i in captured.twins:
        if i in passed:  # what is passed is also held in reach
            if (expression := text.read(slot)) is None:
                return None
            text.require(f"{expression} is {at[i]}")
    inputs = [at.get(i) or text.name(sources[i]) for i in found.guards]
    if not text.unread(found.unread, inputs, len(at)):
        return None
    # `like` looks if an argument requires grad, or shares what is written; of the rest it is none.
    able = (i for i in state if not (i in mutated or found.guards[i].requires_grad))
    if distinct := frozenset(id(sources[i]) for i in able):
        for x in at.values():
            text.require(f"id({x}) not in {text.name(distinct)}")
    for i, k in captured.grads_read.items():
        if i in at or k in at:
            owner = at.get(i) or text.name(sources[i])
            grad = "None" if k is None else at.get(k) or text.name(sources[k])
            text.require(f"{owner}._grad is {grad}")
        else:
            text.field(sources[i], "_grad")
    for i in captured.recorded:
        if i not in at and sources[i]._history.requires_grad:  # a leaf cannot be written
            text.require(f"{text.name(sources[i]._history)}.edge is not None")
    return text


def plain_call(found: Specialization, text: Text, bound: Bound) -> Lines | None:
    """Lines that make the call; None where it is not plain, or not C's though C would look."""
    captured, (sources, _) = found.captured, bound
    special = (
        *(captured.outside, captured.dead_inputs, captured.leaves, found.hiding),
        *(captured.rebinds, captured.settings, captured.inner_grads, captured.retained),
    )
    if any(special) or not captured.whole_step:
        return None
    if not all(_is_plain(r, found) for r in captured.results):
        return None
    at = {a.position: i for i, a in enumerate(captured.arguments)}
    arrays = found.peek(bound)
    if not all(arrays[i].flags.writeable for i, _ in found.mutated) or any(
        i in at for i, _ in found.mutated
    ):
        return None

    def tensor(position: int) -> str:
        return f"x{at[position]}" if position in at else text.name(sources[position])

    lines: list[str] = []
    seen = [(vars(owner)[name], arrays[i]) for i, (owner, name), _ in found.numbers]
    given = {position: f"{'x' if text.watch else 'v'}{i}" for position, i in at.items()}
    for k, (position, (owner, name), dtype) in enumerate(found.numbers):
        n, given[position] = f"n{k}", f"n{k}[1]"
        lines.append(f"n, {n} = {text.name(owner)}.__dict__[{name!r}], seen[{k}]")
        made_anew = f"(n, array(n, {text.name(dtype)}))"
        lines.append(f"if n is not {n}[0]:")
        lines.append("  if not isinstance(n, NUMBERS): return MISS")
        lines.append(f"  {n} = seen[{k}] = {made_anew}")
    prepare: list[str] = []
    for position, _ in found.mutated:
        history, data = (text.name(x) for x in (sources[position]._history, arrays[position]))
        prepare.append(f"s = {history}.storage")
        prepare.append(f"if s is not None and s.handles: s.before_write({data})")
    names = {"seen": seen, "array": np.array, "Tensor": Tensor, "NOT_KEPT": NOT_KEPT}
    names |= {"NUMBERS": NUMBERS}
    if text.watch is not None:
        for position, _ in found.mutated:
            text.watch.writes(sources[position]._history)
        executable: Any = found.executable  # one that gave a watch
        inlined = executable.lines("step", arrays, given, text.watch, prepare)
        if inlined is None:
            return None
        lines += inlined[0]
        names |= inlined[1]
    else:
        lines += prepare
        held = [None if i in given else a for i, a in enumerate(arrays)]
        names |= {"held": held, "run": found.executable.run}
        lines.append("inputs = held.copy()")
        lines += [f"inputs[{position}] = {x}" for position, x in given.items()]
        lines.append('outputs = run("step", inputs)')
    if captured.draws:
        lines.append(f"{text.name(random.generator)}.draw += {captured.draws}")
    made: dict[int, str] = {}
    for index, result in enumerate(captured.results):
        if result.kind == "output":
            made[index] = f"r{result.index}"
        else:
            made[index] = tensor(result.index) if result.kind == "input" else f"x{result.index}"
    for k in dict.fromkeys(r.index for r in captured.results if r.kind == "output"):
        place = found.user_at[k]
        lines.append(f"r{k} = Tensor({f'u{place}' if text.watch else f'outputs[{place}]'})")
    for r in captured.results:
        if r.dead is not None:
            edge = found.dead_end(sources, r.dead)
            lines.append(f"h = r{r.index}._history")
            lines.append(f"h.edge, h.requires_grad = {text.name(edge)}, True")
    for position, kept in captured.grads:
        value = "None" if kept is None else "NOT_KEPT" if kept < 0 else made[kept]
        lines.append(f"{tensor(position)}._grad = {value}")
    returned = _tree(captured.tree, made, text)
    if returned is None:
        return None
    lines.append(f"return {returned}")
    return lines, names


def _is_plain(result: Result, found: Specialization) -> bool:
    """Whether a result is an input or output itself. One whose graph was used up has the same
    history at every call, if a backward raises whatever it is for, and leads to state alone."""
    if result.views or result.leaf or result.edge is not None or result.kind == "result":
        return False
    if result.dead is None:
        return True
    passed = {a.position for a in found.captured.arguments}
    return (
        result.kind == "output"
        and found.is_dead_end(result.dead)
        and passed.isdisjoint(found.targets)
    )


def _tree(tree: Any, made: dict[int, str], text: Text) -> str | None:
    """An expression for the returned containers; None for one of another class."""
    if isinstance(tree, Place):
        return made[tree.index]
    if type(tree) in (tuple, list, dict):
        values = tree.values() if type(tree) is dict else tree
        inner = [_tree(x, made, text) for x in values]
        if None in inner:
            return None
        if type(tree) is dict:
            pairs = zip(tree, inner, strict=True)
            return "{" + ", ".join(f"{text.key(k)}: {x}" for k, x in pairs) + "}"
        items = "".join(f"{x}, " for x in inner)
        return f"({items})" if type(tree) is tuple else f"[{items}]"
    return None if isinstance(tree, (tuple, list, dict)) or is_dataclass(tree) else text.name(tree)
