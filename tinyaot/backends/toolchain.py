"""The system's C compiler, and a disk cache of what it made.

The compiler is `$CC`, or the first of cc, gcc, clang that exists. It runs beside us: a `Build`
starts it, and waits only when the object is wanted. A shared object is cached under a key of
everything that went into it: source, flags, the compiler and its version, the processor. The
cache's directory belongs to the user alone; entries appear by an atomic rename, with a digest
beside them, and a damaged, unreadable or foreign entry is rebuilt.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tinyaot.errors import BackendError

CANDIDATES = ("cc", "gcc", "clang")
FLAGS = (
    "-march=native",
    "-std=gnu11",
    "-fPIC",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-Werror=incompatible-pointer-types",  # as from gcc 14 on
    "-Werror=int-conversion",
)
# Steps: a recomputed value is the saved one, bit for bit. More optimisation than -O1 takes half as
# long again and gains nothing, but for -fgcse, which keeps constants of loops in registers at no
# cost, and what gcc calls expensive: without it, no function clears the upper halves of vector
# registers, and SSE code after it (libm, NumPy) is up to seven times slower; threading jumps turns
# each clamp into three selections; following bits of constants takes a seventh of the time, and the
# code is the same. Vectors out of straight code undo those that are written, as random bits are.
EXACT = (
    "-O1",
    "-ftree-vectorize",
    "-fno-tree-slp-vectorize",
    "-fgcse",
    "-fexpensive-optimizations",
    "-fno-thread-jumps",
    "-fno-tree-bit-ccp",
    "-ffp-contract=off",
)
# Products: fused multiply-add is what makes them fast; -O3 takes twice as long and gains 2 %. They
# are written in vectors, and looking for more, for ranges and for jumps takes a fifth of the time.
FUSED = (
    "-O2",
    "-fno-tree-vectorize",
    "-fno-tree-vrp",
    "-fno-thread-jumps",
    "-fpeel-loops",
    "-ffp-contract=fast",
)
# Those of them that other compilers know.
COMMON = ("-O1", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-ffp-contract=fast")
LIBS = ("-lm", "-pthread")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command line that compiles C, and what it calls itself."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """The C compiler: `$CC`, or the first of the usual names. Raises BackendError, which says what
    was tried."""
    return _find_compiler(os.environ.get("CC"), os.environ.get("PATH"))


@cache
def _find_compiler(wanted: str | None, path: str | None) -> Compiler:
    """`wanted`: a command instead of the usual names. `path`: where commands are looked for, which
    is part of what is asked."""
    tried = []
    for text in [wanted] if wanted else CANDIDATES:
        try:
            command = tuple(shlex.split(text))
        except ValueError as error:
            tried.append(f"{text}: {error}")
            continue
        if not command or shutil.which(command[0]) is None:
            tried.append(f"{text}: not found")
            continue
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Compiler(command, done.stdout.splitlines()[0] if done.stdout else "")
        tried.append(f"{text}: exit status {done.returncode}")
    raise BackendError(
        "backend 'c' needs a C compiler: set CC, or install gcc or clang; or use backend='numpy'. "
        f"Tried {'CC=' if wanted else ''}{'; '.join(tried)}"
    )


@cache
def processor() -> str:
    """What tells this machine's processor from another."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        lines = [x for x in text.splitlines() if x.startswith(("model name", "flags", "Features"))]
        return "\n".join(dict.fromkeys(lines))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"


def cache_directory() -> Path | None:
    """The cache's directory, made if need be: `$TINYAOT_CACHE`, or tinyaot under `$XDG_CACHE_HOME`
    or ~/.cache. None: no cache, because it is switched off or not ours alone."""
    wanted = os.environ.get("TINYAOT_CACHE", "")
    if wanted == "0":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(wanted) if wanted else Path(base) / "tinyaot"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
    except OSError:
        return None
    ours = not hasattr(os, "getuid") or info.st_uid == os.getuid()
    if not stat.S_ISDIR(info.st_mode) or not ours or info.st_mode & 0o022:
        return None
    return path


class Build:
    """A shared object of C sources, compiled side by side, or found in the cache.

    `folder`: headers. Raises BackendError when there is no compiler.
    """

    def __init__(
        self, sources: Sequence[str], flags: Sequence[str] = EXACT, folder: Path | None = None
    ) -> None:
        compiler = find_compiler()
        known = [f for f in flags if f in COMMON or "clang" not in compiler.version]
        told = [*compiler.command, *FLAGS, *known]
        texts = [*sources, "\0".join(told), compiler.version, processor()]
        if folder:
            texts += [p.read_text() for p in sorted(folder.glob("*.h"))]
        key = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]
        self._path = (cache_directory() or Path(_private_directory())) / f"{key}.so"
        self._lock = threading.Lock()
        self._work: _Work | None = None
        if not is_sound(self._path):
            self._work = _Work(sources, [*told, *([f"-I{folder}"] if folder else [])], self._path)

    def path(self) -> Path:
        """Where the object is, once it is there. Raises BackendError with the compiler's own words
        when a source does not compile."""
        with self._lock:
            if self._work is not None:
                self._work.finish()
                self._work = None
        return self._path


class _Work:
    """Compilers at work in a directory of their own, beside what they make."""

    def __init__(self, sources: Sequence[str], command: Sequence[str], path: Path) -> None:
        self.command, self.path = command, path
        self.folder = tempfile.TemporaryDirectory(
            dir=path.parent, prefix="build-", ignore_cleanup_errors=True
        )
        self.made = Path(self.folder.name) / "step.so"
        whole = len(sources) == 1
        self.objects = [self.made] if whole else []
        self.running: list[tuple[subprocess.Popen[str], Path]] = []
        for i, source in enumerate(sources):
            text = Path(self.folder.name) / f"step{i}.c"
            text.write_text(source)
            if whole:
                self.start(["-shared", str(text), "-o", str(self.made), *LIBS])
            else:
                self.objects.append(text.with_suffix(".o"))
                self.start(["-c", str(text), "-o", str(self.objects[-1])])

    def start(self, arguments: Sequence[str]) -> None:
        errors = Path(self.folder.name) / f"errors{len(self.running)}"
        with errors.open("w") as stream:
            process = subprocess.Popen([*self.command, *arguments], stderr=stream, text=True)
        self.running.append((process, errors))

    def wait(self) -> None:
        codes = [process.wait() for process, _ in self.running]
        failed = [errors for (_, errors), code in zip(self.running, codes, strict=True) if code]
        self.running = []
        if failed:
            first = "\n".join(failed[0].read_text().splitlines()[:12])
            raise BackendError(f"{self.command[0]} failed on a compiled step:\n{first}")

    def finish(self) -> None:
        """Wait, link, and move the result to its place in one step."""
        with self.folder:
            self.wait()
            if self.objects != [self.made]:
                parts = [str(p) for p in self.objects]
                self.start(["-shared", *parts, "-o", str(self.made), *LIBS])
                self.wait()
            digest = Path(self.folder.name) / "digest"
            digest.write_text(hashlib.sha256(self.made.read_bytes()).hexdigest())
            os.replace(digest, digest_path(self.path))
            os.replace(self.made, self.path)


def build(source: str, flags: Sequence[str] = EXACT, folder: Path | None = None) -> Path:
    """Path of a shared object of C `source`; raises what `Build` and its `path` raise."""
    return Build([source], flags, folder).path()


_temporary: list[tempfile.TemporaryDirectory[str]] = []


def _private_directory() -> str:
    """A directory for this process alone."""
    if not _temporary:
        _temporary.append(tempfile.TemporaryDirectory(prefix="tinyaot-"))
    return _temporary[0].name


def digest_path(path: Path) -> Path:
    return path.with_suffix(".sha256")


def is_sound(path: Path) -> bool:
    """Whether a cached file is ours and whole."""
    try:
        info = path.lstat()
        if not stat.S_ISREG(info.st_mode):
            return False
        if hasattr(os, "getuid") and info.st_uid != os.getuid():
            return False
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return digest_path(path).read_text() == digest
    except OSError:
        return False
