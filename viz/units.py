"""Numbers as people read them: bytes, FLOPs and seconds in three digits and a unit."""

from __future__ import annotations

BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
DECIMAL = ("", "k", "M", "G", "T")
DASH = "-"


def bytes_text(n: float | None) -> str:
    """1536 -> '1.5 KiB'; None -> '-'."""
    return DASH if n is None else _scaled(n, 1024, BINARY)


def count_text(n: float | None) -> str:
    """1250000 -> '1.25 M'; None -> '-'."""
    return DASH if n is None else _scaled(n, 1000, DECIMAL)


def seconds_text(seconds: float | None) -> str:
    """0.000125 -> '125 us'; None -> '-'."""
    if seconds is None:
        return DASH
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds * 1e9)} ns"


def _scaled(n: float, step: int, units: tuple[str, ...]) -> str:
    size, unit = float(n), units[0]
    for unit in units:
        if abs(size) < step or unit == units[-1]:
            break
        size /= step
    text = str(round(size)) if unit == units[0] else _three(size)
    return f"{text} {unit}".rstrip()


def _three(x: float) -> str:
    digits = 0 if abs(x) >= 100 else 1 if abs(x) >= 10 else 2
    text = f"{x:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
