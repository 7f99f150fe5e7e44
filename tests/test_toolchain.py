"""The compiler that is found, and the cache of what it made."""

from __future__ import annotations

import ctypes
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tinyaot.backends import cpu, runtime, toolchain
from tinyaot.errors import BackendError

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")
SOURCE = "int tinyaot_answer(void) { return 42; }"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("TINYAOT_CACHE", str(path))
    return path


def test_a_built_object_works_and_is_found_again(folder: Path) -> None:
    path = toolchain.build(SOURCE)
    assert ctypes.CDLL(str(path)).tinyaot_answer() == 42
    made = path.stat().st_mtime_ns
    assert toolchain.build(SOURCE) == path
    assert path.stat().st_mtime_ns == made
    assert folder.stat().st_mode & 0o077 == 0


def test_a_damaged_entry_is_rebuilt(folder: Path) -> None:
    path = toolchain.build(SOURCE)
    path.write_bytes(b"garbage")
    assert not toolchain.is_sound(path)
    assert ctypes.CDLL(str(toolchain.build(SOURCE))).tinyaot_answer() == 42


def test_flags_are_part_of_the_key(folder: Path) -> None:
    assert toolchain.build(SOURCE) != toolchain.build(SOURCE, toolchain.FUSED)


def test_a_directory_that_others_can_write_is_not_used(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    assert toolchain.cache_directory() is None
    assert toolchain.build(SOURCE).parent != folder


def test_without_a_compiler_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BackendError, match=r"set CC, or install gcc.*Tried CC=no-such-compiler"):
        toolchain.find_compiler()
    assert "no-such-compiler" in (cpu.unavailable() or "")


def test_source_that_does_not_compile(folder: Path) -> None:
    with pytest.raises(BackendError, match="failed"):
        toolchain.build("int broken(")


def test_several_sources_become_one_object(folder: Path) -> None:
    parts = [
        "int half(void) { return 21; }",
        "int half(void);\nint twice(void) { return 2 * half(); }",
    ]
    build = toolchain.Build(parts)
    assert ctypes.CDLL(str(build.path())).twice() == 42
    assert build.path() == toolchain.Build(parts).path()
    assert toolchain.Build(parts[::-1]).path() != build.path()
    assert [p.suffix for p in sorted(folder.iterdir())] == [".sha256", ".so"] * 2, "nothing is left"


def test_a_part_that_does_not_compile(folder: Path) -> None:
    build = toolchain.Build(["int half(void) { return 21; }", "int broken("])
    with pytest.raises(BackendError, match="failed"):
        build.path()
    assert not list(folder.iterdir())


def test_the_runtime_is_begun_early(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "start", cache(runtime.start.__wrapped__))
    runtime.prepare()
    assert [p for p in folder.iterdir() if p.is_dir()], "a compiler is at work"
    library = ctypes.CDLL(str(runtime.start(runtime.POOL).path()))
    assert library.tinyaot_nothing(None) == 0
    assert runtime.start(4).path().exists()


def test_vector_code_leaves_no_slow_registers_behind(tmp_path: Path) -> None:
    """AVX code that does not clear the upper halves makes SSE code that runs later slow."""
    source = tmp_path / "loop.c"
    source.write_text("void f(float *x) { for (int i = 0; i < 4096; i++) x[i] = -x[i]; }")
    compiler = toolchain.find_compiler()
    clang = "clang" in compiler.version
    known = [x for x in toolchain.EXACT if not clang or x in toolchain.COMMON]
    flags = (*compiler.command, *toolchain.FLAGS, *known)
    command = [*flags, "-S", "-o", "-", str(source)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert not re.search("[yz]mm", text) or "vzeroupper" in text
