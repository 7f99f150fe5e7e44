"""Planted faults: mistakes that a compiler's author might make, each of which the tests must catch.

    python -m tests.faults [--only NAME]

A row names a file, the fault and the test files that have to fail; then stand the lines that it
takes away (-) and those it puts in their place (+), as in a diff. The runner copies the repository
to a temporary folder, sees that the tests pass there, plants one fault at a time and runs the tests
named. A fault that survives shows that a test is missing (mutation testing: DeMillo, Lipton and
Sayward, "Hints on test data selection", 1978).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 300  # seconds for the tests of one fault; a fault that makes them hang is caught

TABLE = """
@ ops/elementwise.py wrong-sign-in-a-vjp: ops_derivatives
- lambda g, y, a, b: neg(div(mul(g, y), b))
+ lambda g, y, a, b: div(mul(g, y), b)
@ ops/elementwise.py wrong-operand-in-a-vjp: ops_derivatives
- lambda g, y, a, b: mul(g, b), lambda g, y, a, b: mul(g, a)
+ lambda g, y, a, b: mul(g, b), lambda g, y, a, b: mul(g, b)

@ passes/functionalize.py stale-view-not-replayed: functionalize
- if view.version != view.history.version:
+ if view.version > view.history.version:
@ passes/functionalize.py set-value-moves-the-wrt: functionalize
- visible = [self._visible(self.views[v.id]) for v in wrt]
+ visible = [self.read(v) for v in wrt]
@ passes/functionalize.py write-through-another-history-unseen: functionalize
- hidden = self._replay(view, storage.value)
+ hidden = self._visible(view)
@ passes/functionalize.py write-onto-an-old-base: functionalize
- new = self._emit(node, target, put, self._read(base), new)
+ new = self._emit(node, target, put, base.visible, new)
@ passes/functionalize.py two-tensors-one-value: functionalize
- elif not view.chain and self.uses[source.id] > 1:
+ elif not view.chain and self.uses[source.id] > 2:
@ passes/functionalize.py write-of-nothing-keeps-the-value: functionalize
- new = self._emit(node, target, ops.copy, self._read(base))
+ return

@ passes/autodiff.py accumulation-overwrites: autodiff
- contribution = summed.value
+ total[target.id] = summed.value
@ passes/autodiff.py set-value-keeps-the-old: autodiff
- new[node.result.id] = node.inputs[-1]
+ new[node.result.id] = node.inputs[0]

@ passes/simplify.py cse-key-without-attributes: simplify
- key = node.op, tuple(inputs), _attrs_key(node.attrs), phase
+ key = node.op, tuple(inputs), (), phase
@ passes/simplify.py cse-across-checkpoints: checkpoint
- within = node.checkpoint if node.inputs else ()
+ within = ()
@ passes/simplify.py cse-merges-the-zeros: simplify
- return struct.pack("<d", x) if isinstance(x, float) else x
+ return x
@ passes/simplify.py cse-takes-sub-for-commutative: simplify
- {"add", "mul", "eq",
+ {"add", "sub", "mul", "eq",
@ passes/simplify.py cse-across-phases: simplify
- phase = node.phase if self.by_phase else None
+ phase = None
@ passes/simplify.py cse-merges-what-grad-pins: simplify
- len(node.results) != 1 or node.result.id in self.pinned:
+ len(node.results) != 1:
@ passes/simplify.py merged-value-in-the-later-phase: simplify
- if PHASES.index(node.phase) < PHASES.index(made.phase):
+ if PHASES.index(node.phase) > PHASES.index(made.phase):

@ passes/identities.py x-plus-zero-is-x: simplify
- unit = {"add": -0.0 if float_ else 0,
+ unit = {"add": 0.0 if float_ else 0,
@ passes/identities.py never-negative-zero-by-one-piece: simplify
- return all(never_negative_zero(v, graph) for v in node.inputs)
+ return any(never_negative_zero(v, graph) for v in node.inputs)
@ passes/identities.py divide-by-any-number: simplify
- or abs(math.frexp(x)[0]) != 0.5:
+ or x == 0:
@ passes/view_identities.py permutations-compose-backwards: simplify
- perm = tuple(inner.attrs["perm"][p] for p in node.attrs["perm"])
+ perm = tuple(node.attrs["perm"][p] for p in inner.attrs["perm"])
@ passes/view_identities.py stop-of-a-backward-slice: simplify
- r = range(r[0], r[-1] + (1 if r.step > 0 else -1), r.step)
+ r = range(r[0], r[-1] + 1, r.step)
@ passes/view_identities.py slice-of-concat-off-by-one: simplify
- if start <= low and high < stop:
+ if start <= low and high <= stop:
@ passes/view_identities.py touching-ranges-are-disjoint: simplify
- return not len(r) or not len(s) or max(r) < min(s) or
+ return not len(r) or not len(s) or max(r) <= min(s) or
@ passes/view_identities.py sum-of-pieces-keeps-negative-zero: simplify
- return plus_zero(node, whole, graph)
+ return whole

@ passes/narrow.py sum-with-an-unreduced-sum: narrow
- self.new[node.result.id] = self.new.get(other.id, other)
+ self.new[node.result.id] = other
@ passes/narrow.py zero-is-any-product-with-a-zero: narrow
- if zeros and not carried:
+ if zeros:

@ passes/apart.py output-shares-with-an-input: simplify functionalize
- owner = {i.value.id: i.value.id for i in after.inputs}
+ owner: dict[int, int] = {}
@ passes/apart.py mutated-outputs-not-kept-apart: simplify functionalize
- if now.role not in ("user", "mutated"):
+ if now.role != "user":
@ passes/apart.py output-not-in-c-order: simplify functionalize
- if ordered and owner.setdefault
+ if owner.setdefault

@ passes/entries.py saved-values-not-taken: fuse semantics
- inputs=taken + saved + program.inputs_of("cotangent"),
+ inputs=taken + program.inputs_of("cotangent"),
@ passes/layout.py copies-not-recorded: fuse
- if op.reason and log is not None:
+ if op.reason and log:
@ passes/layout.py for-libraries-only: ir_cases fuse
- if not loops:
+ if loops:
@ passes/fuse.py notes-of-another-program: fuse
- if isinstance(program.notes, Fusion) and program.notes.nodes is program.nodes:
+ if isinstance(program.notes, Fusion):
@ passes/fuse.py one-plan-for-both-halves: fuse
- plan = plan_fusion(part, threads, machine)
+ plan = plan_fusion(entries[next(iter(entries))], threads, machine)
@ passes/regions.py freed-a-level-early: fuse ir_cases semantics
- replace(places[root], last=last)
+ replace(places[root], last=places[root].last)
@ passes/regions.py saved-values-at-one-place: codegen_random semantics fuse
- saved += padded(place.nbytes)
+ saved += 0
@ passes/regions.py in-place-unseen: ir_cases fuse
- found.append((value.id, Place("input", 0, value.type.nbytes, leaf, first, end)))
+ found.append((value.id, Place("output", 0, value.type.nbytes, value.id, first, end)))

@ passes/storage.py permuted-counts-as-whole: plan
- and not seen.offset and seen.is_contiguous:
+ and not seen.offset:
@ passes/storage.py view-of-a-view-owned-by-the-view: plan
- root[id_], geometry[id_] = root[source], seen
+ root[id_], geometry[id_] = source, seen

@ passes/homes.py update-before-the-last-reader: plan
- if last < at or (last == at and may_write_over(program.nodes[at], of, storages)):
+ if last <= at:
@ passes/homes.py read-through-a-view-not-counted: plan
- last_read[storages.root[v.id]] = at
+ last_read[v.id] = at
@ passes/homes.py swapped-views-not-copied: plan
- if output.value.id != output.of and self.root(output.value) in overwritten:
+ if output.value.id != output.of and output.value.id in overwritten:
@ passes/homes.py gradients-share-memory: plan
- taken.add(root)
+ taken.add(output.value.id)
@ passes/homes.py written-over-by-any-op: plan
- v.type == result.type and primitive.may_overwrite(i) and v.id
+ v.type == result.type and v.id

@ passes/plan.py liveness-ends-one-node-early: plan
- last[root[v.id]] = at
+ last[root[v.id]] = at - 1
@ passes/plan.py liveness-misses-reads-of-views: plan
- last[root[v.id]] = at
+ last[v.id] = at
@ passes/plan.py birth-and-death-at-one-node: plan
- (last[:at] >= slot.first)
+ (last[:at] > slot.first)
@ passes/plan.py gap-seen-behind-a-short-neighbour: plan
- ends = np.maximum.accumulate(stops[order])
+ ends = stops[order]
@ passes/plan.py saved-values-overlap: plan
- end = _align(end + slot.nbytes)
+ end = _align(slot.nbytes)
@ passes/plan.py intermediate-in-an-updated-parameter: plan
- if last < update:
+ if last <= update:

@ passes/schedule.py backward-nodes-in-the-forward: schedule
- return int(self.joint and self.nodes[at].phase == "backward")
+ return 0
@ passes/schedule.py update-waits-in-a-circle: schedule
- if waits and not waits.isdisjoint(self._reached_from(update)):
+ if update in waits:

@ passes/partition.py budget-not-asked-for: partition
- return search.within(budget)
+ return search.least_peak(slack)
@ passes/candidates.py budget-of-saved-bytes: partition
- peak = rungs[middle].peak
+ peak = rungs[middle].choice.bytes
@ passes/candidates.py faster-and-smaller-is-taken: budget
- if peak <= limit and (chosen is None or peak >= chosen.peak):
+ if peak <= limit:
@ passes/candidates.py only-rungs-for-a-number-of-bytes: budget
- if chosen is None:  # the estimate may be wrong
+ if False:
@ passes/estimate.py recomputed-from-its-last-use: estimate
- born[id_] = min(uses)
+ born[id_] = max(uses)
@ passes/candidates.py slack-ignored: partition
- candidates = self.corners(forced + slack * self.graph.step.seconds)
+ candidates = self.corners()
@ passes/candidates.py between-corners-a-peak-not-looked-at: partition
- chosen = next((c for c in between if chosen.peak <= c.peak <= limit), chosen)
+ chosen = next((c for c in between if chosen.peak <= c.peak), chosen)
@ passes/splitgraph.py overwritten-input-read-again: partition
- return {o.of for o in mutated if o.of is not None and o.value.id != o.of}
+ return set()
@ passes/frontier.py needs-from-the-wrong-side: frontier
- edge = self.network.add_edge(self.ends[need][1], v_in, INFINITY)
+ edge = self.network.add_edge(self.ends[need][0], v_in, INFINITY)
@ passes/frontier.py tree-forgets-its-own-price: frontier
- b1, p1 = sum(h[2] for h in behind), sum(h[3] for h in behind) + int(price)
+ b1, p1 = sum(h[2] for h in behind), sum(h[3] for h in behind)
@ passes/frontier.py folded-although-another-wants-it: frontier
- if v not in graph.read and len(graph.users[v]) == 1 and folded.issuperset(wanted):
+ if v not in graph.read and folded.issuperset(wanted):
@ passes/exact.py labels-of-different-wants-compared: frontier
- price = cheapest.get(label.wants)
+ price = min(cheapest.values(), default=None)
@ passes/exact.py what-was-given-up-forgotten: frontier
- if self.given_up is None or self.given_up > self.room:
+ if True:
@ passes/rematerialize.py clone-of-a-clone-reads-the-original: partition
- inputs=tuple(inputs),
+ inputs=node.inputs,
@ passes/rematerialize.py nested-regions-share-their-clones: checkpoint
- return tuple(region for region, _ in shared)
+ return own[:1]
@ passes/splitgraph.py region-read-outside-kept-to-itself: checkpoint
- inside -= {root[v.id] for v in node.inputs if region.get(root[v.id]) != reader}
+ pass
@ passes/splitgraph.py border-computed-again: checkpoint
- self.borders, self.compared = self._borders(), self._compared()
+ self.borders, self.compared = set(), self._compared()
@ passes/autodiff.py rule-written-for-zeros: custom_vjp
- seed.id: total[r.id] if r.id in total else self._full(0.0, r)
+ seed.id: self._full(0.0, r)
@ passes/autodiff.py rule-answers-in-the-wrong-place: custom_vjp
- self._arrive(total, x, new.get(g.id, g))
+ self._arrive(total, x, g)
@ passes/rematerialize.py old-value-kept-and-not-read: partition
- self.new[value.id, ()] = self.saved[copy.id] = copy
+ self.saved[copy.id] = copy
@ passes/mincut.py back-flow-overwritten: mincut
- residual[edge ^ 1] += pushed
+ residual[edge ^ 1] = pushed

@ backends/numpy.py state-bound-once: backend_numpy
- elif fixed[value.id] is not array:
+ elif fixed[value.id] is None:
@ backends/numpy.py array-named-without-its-geometry: backend_numpy
- key = value.id, geometry
+ key = value.id, own

@ tape.py leaf-accumulation-overwrites: tape
- total = cotangent if have is None else ops.add(have[1], cotangent)
+ total = cotangent
@ tape.py reads-cached-without-the-needed: tape
- key = primitive, attrs.get("mode"), needed
+ key = primitive, attrs.get("mode"), ()
@ tape.py overwritten-base-keeps-its-cotangent: tape semantics
- base = ops.scatter_back(g, self.chain, ops.zeros_like(view))
+ base = g
@ recorder.py edge-of-a-stale-view: tape semantics
- if tensor._version != history.version:
+ if tensor._edge is None:
@ recorder.py view-of-a-leaf-may-be-written: tape
- if history.requires_grad and history.edge is None:
+ if history.requires_grad and history.edge is None and not dst._chain:

@ op_tracer.py no-grad-forgets-views: semantics
- if mode.grad_enabled or not differentiable or self.edge(tensor) is None:
+ if mode.grad_enabled or tensor._chain or self.edge(tensor) is None:
@ op_tracer.py hyperparameters-by-name-alone: state
- self.touched.setdefault((id(owner), name), Hyper
+ self.touched.setdefault((0, name), Hyper
@ op_tracer.py draws-of-one-ordinal: semantics
- self.draws += 1
+ self.draws = 1
@ trace.py grad-accumulation-overwrites: state
- self.write(have, self.bind(ops.add, (have, total), {}))
+ self.write(have, total)
@ overlap.py a-write-is-no-history-of-its-siblings: semantics
- if recorded[pair[0]] or recorded[pair[1]]
+ if recorded[pair[0]] and recorded[pair[1]]
@ results.py a-result-is-detached-once-more: fuzz
- path = data.path if apart else data.path[len(base._data.path) :]
+ path = data.path
@ passes/schedule.py an-update-before-a-check: errors_surface
- for reader in waits.union(checks).difference(self._reached_from(update), {update}):
+ for reader in waits.difference(self._reached_from(update), {update}):
@ passes/fusion/graph.py an-overwriting-before-a-check: errors_surface
- g.checks[out].add(first)
+ g.checks[out].update(())
@ passes/storage.py a-repeat-of-a-check-that-is-gone: errors_surface
- return [at for at, ids in again.items() if known.isdisjoint(ids)]
+ return [at for at, ids in again.items() if not ids]
@ passes/fusion/regions.py an-overwriting-in-the-loop-that-checks: errors_surface
- all(c in done for c in g.checks[op])
+ all(c in done or c in members or c is op for c in g.checks[op])
@ passes/fusion/order.py waiting-for-what-waits: codegen_fusion
- if waiting < least <= top:
+ if waiting < least < top:
@ codegen/c.py counters-stay-advanced: errors_surface
- *(f"  if (bad) *({kind} *)b[{i}] = old{i};" for i, kind in counters),
+
@ capture.py twin-not-guarded: state
- twins += [(slot, index) for slot in slots[1:]]
+
@ state.py unread-tensor-unguarded: state
- self.unread += slots
+ pass
@ guards.py unread-tensor-known-by-its-object-alone: state
- same.append(f"{expression} is {name} and {name}._data is {data}")
+ same.append(f"{expression} is {name}")
@ guards.py unread-tensor-may-be-an-argument: state
- same = [f"id(x{i}) not in {self.name(frozenset(map(id, held)))}" for i in range(arguments)]
+ same = []
@ guards.py unread-tensors-are-not-compared: state
- if was != now:
+ if False:
@ capture.py gradient-of-an-argument-is-a-constant: state
- elif index in owners:
+ elif not owners:
@ capture.py gradients-read-are-not-guarded: state
- grads_read=_grads_read(engine),
+ grads_read={},
@ guards.py strides-not-guarded: state
- now = data.shape, data.strides, data.dtype
+ now = data.shape, self.strides, data.dtype
@ guards.py fast-check-of-requires-grad-left-out: state
- self.field(tensor._history, "requires_grad")
+ self.field(tensor, "_data")
@ guards.py fast-check-of-sharing-left-out: state
- self.require(f"id({v} if b{i} is None else b{i}) not in {self.name(owners)}")
+ pass
@ guards.py memory-that-is-no-array's: state
- self.require(f"b{i} is None or {own}")
+ pass
@ steady.py fast-check-of-grad-left-out: state
- text.field(sources[i], "_grad")
+ text.field(sources[i], "_data")
@ backends/watch.py watch-slot-not-noted: steady
- return self._note(SLOT, owner, offset(kind, name), value)
+ return True
@ backends/watch.py watch-items-of-a-whole-dict-not-noted: steady
- id(items[k]) if k in items else 0)
+ 0)
@ backends/watch.py watch-whole-list-not-noted: steady
- self.facts[ELEMENTS, id(owner), 0, len(owner)] = None
+ pass
@ backends/watch.py watch-another-dict-unseen: steady
- self._note(ATTRIBUTES, owner, 0, attributes)
+ pass
@ backends/watch.py watch-of-nothing-written: steady
- self.written.append(history)
+ pass
@ backends/watch.py watch-of-sharing-left-out: steady
- [byte_bounds(a) for a in apart]
+ []
@ steady.py steady-write-unannounced: steady
- if s is not None and s.handles:
+ if s is not None and not s.handles:
@ steady.py steady-number-stale: steady
- if n is not {n}[0]:
+ if n is None:
@ steady.py steady-result-without-history: steady
- h.edge, h.requires_grad =
+ h, h =
@ specialization.py grad-mode-not-guarded: state
- if mode.grad_enabled != self.grad_mode:
+ if mode.grad_enabled and not self.grad_mode:
@ specialization.py saved-by-eager-and-overwritten: state
- if storage is not None:
+ if storage is not None and not captured.whole_step:
@ state.py globals-to-come-are-no-places: assigned
- names & (space.keys() | new)
+ names & space.keys()
@ state.py attribute-more-of-a-class-unseen: state assigned
- self.reach.scalars.append(number_of_attributes(cls.__name__, cls))
+ pass
@ state.py functions-are-what-they-were: state
- self.identities.append((f.slot, f.held))
+ pass
@ state.py classes-of-objects-are-not-guarded: state
- self.reach.identities.append((kind, kind.read()))
+ pass
@ steady.py a-leaf-is-written-in-a-steady-call: state
- text.require(f"{text.name(sources[i]._history)}.edge is not None")
+ pass
@ assigned.py what-a-container-held-is-lost: assigned
- self.others.append((path, container.copy()))
+ pass
@ state.py methods-of-our-classes-are-called-by-name-alone: state
- if name != "__init__" and any(hasattr(base, name) for base in theirs):
+ if False:
@ state.py names-are-never-computed: state
- if not named.isdisjoint(names) or not named.isdisjoint(BY_COMPUTED_NAMES):
+ if not named.isdisjoint(names):
@ codegen/across.py repeated-sums-in-another-order: codegen_across
- if op.form == "reduce" and g.is_repeated(op):
+ if op.form == "scatter":
@ slots.py zeros-are-one-scalar: state
- return bool(a == b) and (a != 0 or repr(a) == repr(b))
+ return bool(a == b)
@ state.py defaults-by-keyword-missed: state
- for defaults in ("__defaults__", "__kwdefaults__"):
+ for defaults in ("__defaults__",):
@ state.py globals-of-a-lambda-missed: state
- found += [c for c in outer.co_consts if isinstance(c, types.CodeType)]
+ found += []
@ state.py longer-list-missed: state
- self.whole(f"len({path})", value, LENGTH)
+ pass
"""


class Fault(NamedTuple):
    """A row of the table: the text `old` of a file of the package becomes `new`."""

    file: str
    name: str
    tests: tuple[str, ...]
    old: str
    new: str


def faults() -> Iterator[Fault]:
    """The rows of the table."""
    for row in TABLE.split("\n@ ")[1:]:
        head, *lines = row.strip("\n").split("\n")
        where, _, tests = head.partition(": ")
        file, name = where.split()
        old, new = ("\n".join(x[2:] for x in lines if x[:1] == sign) for sign in "-+")
        files = tuple(f"tests/test_{test}.py" for test in tests.split())
        yield Fault(f"tinyaot/{file}", name, files, old, new)


def misplaced(root: Path = ROOT) -> list[str]:
    """The faults whose text does not occur exactly once in their file."""
    found = [(f.name, (root / f.file).read_text().count(f.old)) for f in faults()]
    return [f"{name}: its text occurs {times} times" for name, times in found if times != 1]


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the repository, as it stands on disk, that goes away again."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in listed.stdout.decode().splitlines():
            if (ROOT / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(folder) / name)
        yield Path(folder)


def first_failure(root: Path, chosen: Sequence[Fault]) -> str:
    """The first test of these faults that fails, or what else went wrong; empty if all pass."""
    tests = sorted({test for f in chosen for test in f.tests})
    command = [sys.executable, "-m", "pytest", "-x", "-n0", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    if not any(part in f.file for f in chosen for part in ("/codegen/", "/fusion/", "watch")):
        env["CC"] = "none"  # on NumPy alone the tests take half the time
    try:
        run = subprocess.run(
            command, cwd=root, env=env, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "no end"
    if run.returncode == 0:
        return ""
    failed = [x for x in run.stdout.splitlines() if x.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0] if failed else run.stdout[-500:] + run.stderr[-500:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", action="append", help="the name of a fault (may be repeated)")
    only = parser.parse_args().only
    chosen = [f for f in faults() if only is None or f.name in only]
    problems = misplaced()
    caught = 0
    with copied() as root:
        if before := first_failure(root, chosen):
            problems.append(f"without a fault: {before}")
        for fault in chosen if not problems else ():
            path = root / fault.file
            text = path.read_text()
            path.write_text(text.replace(fault.old, fault.new))
            failure = first_failure(root, [fault])
            path.write_text(text)
            caught += bool(failure)
            print(f"{'caught' if failure else 'SURVIVED':9}{fault.name:42}{failure}", flush=True)
    print(*problems, f"{caught} of {len(chosen)} faults caught", sep="\n")
    return 0 if caught == len(chosen) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
