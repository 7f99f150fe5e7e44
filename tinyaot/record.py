"""What happened"""
from __future__ import annotations
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

@dataclass(frozen=True)
class Decision:
    kind: str
    subject: int | None
    choice: str
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    alternatives: tuple[Mapping[str, Any], ...] = ()
