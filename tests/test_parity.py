"""docs/parity.md says what `python -m tests.parity` would write now, and leaves nothing blank."""

from __future__ import annotations

from itertools import zip_longest

from tests.agree import BACKENDS
from tests.parity import HEAD, PAGE, lines

C_COLUMN = 3


def test_the_page_is_what_is_found_now() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD), "run python -m tests.parity"
    written = [line.strip("| ").split(" | ") for line in text[len(HEAD) :].splitlines()]
    with_c = "c" in BACKENDS
    for have, want in zip_longest(written, lines(with_c)):
        assert have is not None and want is not None and all(have)
        if not with_c:
            have[C_COLUMN] = ""
        assert have == want, "run python -m tests.parity, if this is meant"
