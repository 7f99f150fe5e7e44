"""The table of planted faults does not rot: each fits its file, and every pass has one."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.faults import ROOT, Fault, faults, misplaced

FAULTS = list(faults())


def test_texts_occur_once() -> None:
    assert misplaced() == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_planted_file_is_python(fault: Fault) -> None:
    """Else anything catches it."""
    assert fault.old != fault.new
    ast.parse((ROOT / fault.file).read_text().replace(fault.old, fault.new))


def test_rows_are_well_formed() -> None:
    assert [name for name, n in Counter(f.name for f in FAULTS).items() if n > 1] == []
    missing = {test for f in FAULTS for test in f.tests if not (ROOT / test).is_file()}
    assert missing == set()
    assert all(f.tests for f in FAULTS)


def test_every_pass_has_a_fault() -> None:
    passes = {f"tinyaot/passes/{p.name}" for p in (ROOT / "tinyaot/passes").glob("*.py")}
    assert passes - {"tinyaot/passes/__init__.py"} <= {f.file for f in FAULTS}
