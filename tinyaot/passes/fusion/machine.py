"""What the cost model knows of a processor, and the two prices that labelling needs, too."""

from __future__ import annotations

from dataclasses import dataclass

LOAD = 0.08  # ns an element: a load that misses L1
RANDOM = 1.0  # ns an element of random bits, made a row at a time, with any vectors


@dataclass(frozen=True, slots=True)
class Machine:
    """What the model knows of a processor: vector lanes of float32, caches in bytes, bandwidth in
    bytes a ns, product rate in FLOPs a ns for one core. `grid`: a GPU, whose tiles run in any order
    on as many blocks as there are, so none adds to another's result, and whose products are a
    library's."""

    lanes: int = 8
    l2: int = 1 << 20
    l3: int = 32 << 20
    l3_rate: float = 30.0
    memory_rate: float = 12.0
    flops: float = 65.0
    grid: bool = False

    @property
    def map_scale(self) -> float:
        """The table's weights are for 16 lanes."""
        return 16 / self.lanes

    def rate(self, nbytes: int) -> float:
        """Bytes a ns at the level where a value of this size lives."""
        return self.l3_rate if nbytes <= self.l3 // 4 else self.memory_rate
