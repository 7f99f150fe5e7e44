"""Reads through views: every operand as (root, an index for each axis of the root).

A view has no code. Following an edge through its views ends at a root that has memory or code, and
each axis of the root is read either atom by atom (an atom of the reader, or a constant) or as an
affine form of the reader's atoms. The address of an element is then a base plus a sum of index
times stride, whatever reshapes, transposes and slices lay between (the access maps of polyhedral
compilers, restricted to what strides can express).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tinyaot.passes.fusion.labels import Atom, Labels
from tinyaot.passes.fusion.op import Op


@dataclass(frozen=True, slots=True)
class Const:
    """A constant index along an atom of `size`."""

    value: int
    size: int


Term = Atom | Const


@dataclass(frozen=True, slots=True)
class Linear:
    """const + sum of coefficient * atom: the index along a whole axis."""

    const: int
    terms: tuple[tuple[int, Atom], ...]

    def scaled(self, step: int, start: int) -> Linear:
        terms = tuple((c * step, a) for c, a in self.terms)
        return Linear(start + step * self.const, terms)


AxisIndex = tuple[Term, ...] | Linear


@dataclass(frozen=True)
class Access:
    """A read of `root`: `pairs` of (root atom, term) and `affine` reads of whole axes."""

    root: Op
    pairs: tuple[tuple[Atom, Term], ...]
    affine: tuple[tuple[int, Linear], ...] = ()

    @cached_property
    def straight(self) -> bool:
        """The root's element at the reader's own position."""
        return not self.affine and all(a is e for a, e in self.pairs)

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        """The reader's atoms that the read depends on, in the root's order."""
        found = [e for _, e in self.pairs if isinstance(e, Atom)]
        found += [a for _, linear in self.affine for _, a in linear.terms]
        return tuple(dict.fromkeys(found))


class Opaque(Exception):
    """A view that strides cannot express from here: it must be copied."""

    def __init__(self, view: Op) -> None:
        super().__init__(repr(view))
        self.view = view


def resolve(labels: Labels, op: Op, i: int) -> Access:
    """Operand i of op as an access to its root. Raises Opaque."""
    v = op.ins[i]
    seen = edge_of(labels, op, i)
    while v.form == "view":
        seen = through(labels, v, seen)
        v = v.ins[0]
    pairs: list[tuple[Atom, Term]] = []
    affine: list[tuple[int, Linear]] = []
    for j, (axis, index) in enumerate(zip(labels.out[v], seen)):
        if isinstance(index, Linear):
            affine.append((j, index))
        else:
            pairs += zip(axis, index)
    return Access(v, tuple(pairs), tuple(affine))


def edge_of(labels: Labels, op: Op, i: int) -> list[AxisIndex]:
    """How op sees operand i, axis by axis of the operand."""
    fixed = labels.fixed.get((op, i), {})
    bent = labels.affine.get((op, i), {})
    seen: list[AxisIndex] = []
    for j, (edge, axis) in enumerate(zip(labels.edge[op, i], labels.out[op.ins[i]])):
        if j in bent:
            whole = linear(tuple(bent[j].atoms))
            seen.append(whole.scaled(bent[j].step, bent[j].start))
        elif j in fixed:
            seen.append(align(fixed_terms(edge, labels.out[op][j], fixed[j]), axis))
        else:
            seen.append(align(tuple(edge), axis))
    return seen


def fixed_terms(edge: list[Atom], out: list[Atom], k: int) -> tuple[Term, ...]:
    """Constants for the atoms that lead an equal slice, then its own atoms."""
    lead = edge[: len(edge) - len(out)]
    terms: list[Term] = list(out)
    for a in reversed(lead):
        terms.insert(0, Const(k % a.size, a.size))
        k //= a.size
    return tuple(terms)


def align(terms: tuple[Term, ...], axis: list[Atom]) -> AxisIndex:
    """Terms paired with the atoms of the operand's axis, or one linear form where sizes differ."""
    if not axis:
        return ()
    if len(terms) == len(axis) and all(t.size == a.size for t, a in zip(terms, axis)):
        return terms
    return linear(terms)


def linear(terms: tuple[Term, ...]) -> Linear:
    """The joint row-major index of some terms."""
    const, coef, parts = 0, 1, []
    for t in reversed(terms):
        if isinstance(t, Const):
            const += t.value * coef
        else:
            parts.append((coef, t))
        coef *= t.size
    return Linear(const, tuple(reversed(parts)))


def through(labels: Labels, view: Op, seen: list[AxisIndex]) -> list[AxisIndex]:
    """The index of a view, as one of what it views."""
    src, out = view.ins[0], labels.out[view]
    term = {
        a: t
        for axis, index in zip(out, seen)
        if not isinstance(index, Linear)
        for a, t in zip(axis, index)
    }
    by_atoms = {tuple(axis): x for axis, x in zip(out, seen) if isinstance(x, Linear)}
    found: list[AxisIndex] = []
    for edge, index in zip(labels.out[src], edge_of(labels, view, 0)):
        if isinstance(index, Linear):
            found.append(substitute(index, term, by_atoms, view))
            continue
        own = tuple(t for t in index if isinstance(t, Atom))
        if own and own in by_atoms:  # an axis read by index passes whole
            lead = index[: len(index) - len(own)]
            base = linear((*lead, *(Const(0, a.size) for a in own)))
            inner = by_atoms[own]
            found.append(Linear(base.const + inner.const, inner.terms))
            continue
        if any(isinstance(t, Atom) and t not in term for t in index):
            raise Opaque(view)
        replaced = tuple(term[t] if isinstance(t, Atom) else t for t in index)
        found.append(align(replaced, edge))
    return found


def substitute(
    index: Linear,
    term: dict[Atom, Term],
    whole: dict[tuple[Atom, ...], Linear],
    view: Op,
) -> Linear:
    """A linear form of the view's atoms, in the reader's."""
    atoms = tuple(a for _, a in index.terms)
    if atoms in whole:
        return whole[atoms].scaled(index.terms[-1][0], index.const)
    const, terms = index.const, []
    for coef, a in index.terms:
        t = term.get(a)
        if t is None:
            raise Opaque(view)
        if isinstance(t, Const):
            const += coef * t.value
        else:
            terms.append((coef, t))
    return Linear(const, tuple(terms))
