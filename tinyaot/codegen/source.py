"""A C source as data: what an emitter hands over, and the one place that joins it to text.

What is done to a source before it is compiled (like regions folded, parts that compile side by
side, a clock between regions) makes another source of it; nobody parses text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

HIDDEN = '__attribute__((visibility("hidden")))'
# A region computes pointers, and calls kernels and products with them, once a tile. That is little
# time but much text: of a step of 63 regions a third of the machine code, and a fifth of the
# compiler's work. So what touches no element itself is not optimised.
MARK = """#if defined(__clang__)
#define CALLS __attribute__((optnone, noinline))
#else
#define CALLS __attribute__((optimize("O0")))
#endif
"""
_STATE = """{0} const struct tinyaot_runtime *rt;
{0} int64_t share_bytes;"""
_LINK = """void tinyaot_link(const struct tinyaot_runtime *runtime, int64_t bytes) {
  rt = runtime, share_bytes = bytes;
}"""


@dataclass(frozen=True, slots=True)
class Function:
    """A region: its statements, and the kernels that they call.

    fills: it goes over elements itself, to clear them. own: it is an op without a tile, which has
    loops and memory of its own. table: numbers for each call, where it has been folded.
    """

    name: str
    comment: str
    body: str
    kernels: frozenset[str]
    fills: bool = False
    own: bool = False
    table: tuple[tuple[str, ...], ...] = ()
    storage: str = "static"

    def head(self) -> str:
        more = ", const int64_t *at" if self.table else ""
        return f"{self.storage} void {self.name}(void **b, int share, int64_t *error{more})"

    def text(self, marked: bool = False) -> str:
        mark = "CALLS " if marked and not self.fills and not self.own else ""
        before = self.numbers() if self.table else f"{self.comment}\n"
        return f"{before}{mark}{self.head()} {{\n{self.body}\n}}"

    def declaration(self) -> str:
        """What calls need where it is of another part."""
        return f"{self.numbers()}{self.head()};"

    def numbers(self) -> str:
        if not self.table:
            return ""
        rows = ",\n  ".join("{" + (", ".join(row) or "0") + "}" for row in self.table)
        size = f"[{len(self.table)}][{len(self.table[0]) or 1}]"
        return f"static const int64_t {self.name}_at{size} = {{\n  {rows}\n}};\n"


@dataclass(frozen=True, slots=True)
class Call:
    """A level's call of a region; of a folded one with a row of its table. `lap`: the variable that
    a clock adds its seconds to."""

    region: str
    row: int | None = None
    lap: str = ""

    def text(self) -> str:
        row = "" if self.row is None else f", {self.region}_at[{self.row}]"
        call = f"    {self.region}(f->b, share, f->error{row});"
        if not self.lap:
            return call
        return f"    {self.lap} -= tinyaot_clock();\n{call}\n    {self.lap} += tinyaot_clock();"


@dataclass(frozen=True, slots=True)
class Step:
    """An entry point: its regions, what its levels do, and the function that runs them."""

    name: str
    regions: tuple[Function, ...]
    levels: tuple[str | Call, ...]
    entry: str

    def text(self, marked: bool = False) -> str:
        lines = (x if isinstance(x, str) else x.text() for x in self.levels)
        frame = f"struct {self.name}_frame"
        return "\n".join(
            [
                f"{frame} {{ void **b; int64_t *error; }};",
                "",
                f"{'CALLS ' * marked}static void {self.name}_step"
                "(void *frame, int level, int share) {",
                f"  {frame} *f = frame;",
                "  UNUSED(f), UNUSED(share);",
                "  switch (level) {",
                *lines,
                "  }",
                "}",
                "",
                self.entry,
            ]
        )


@dataclass(frozen=True, slots=True)
class Source:
    """A C file. `part`: which of several that link to one object, of which the first has the steps
    and the state, if it is one."""

    headers: str
    helpers: str
    kernels: Mapping[str, str]
    steps: tuple[Step, ...]
    part: int | None = None
    elsewhere: tuple[Function, ...] = ()  # regions of other parts

    @property
    def regions(self) -> list[Function]:
        return [r for step in self.steps for r in step.regions]

    def text(self, marked: bool = False) -> str:
        """The file; with `marked`, regions and steps that only call others are not optimised."""
        state = {None: "static", 0: HIDDEN}.get(self.part, f"extern {HIDDEN}")
        blocks = [self.headers, _STATE.format(state)]
        blocks += [self.helpers, *self.kernels.values()]
        blocks += [r.declaration() for r in self.elsewhere]
        if not self.part:
            blocks.append(_LINK)
        for step in self.steps:
            blocks += [r.text(marked) for r in step.regions]
            if not self.part:
                blocks.append(step.text(marked))
        return MARK * marked + "\n\n".join(filter(None, blocks)) + "\n"

    def with_regions(self, made: Mapping[str, Function | None]) -> Source:
        """With other regions under these names; without those that are None."""

        def regions(step: Step) -> tuple[Function, ...]:
            return tuple(x for r in step.regions if (x := made.get(r.name, r)) is not None)

        return replace(self, steps=tuple(replace(s, regions=regions(s)) for s in self.steps))

    def with_calls(self, made: Mapping[str, Call]) -> Source:
        """With other calls of these regions."""

        def levels(lines: Sequence[str | Call]) -> tuple[str | Call, ...]:
            return tuple(x if isinstance(x, str) else made.get(x.region, x) for x in lines)

        return replace(self, steps=tuple(replace(s, levels=levels(s.levels)) for s in self.steps))
