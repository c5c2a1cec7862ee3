"""Compile ``kernels.c`` with the user's C compiler, once, and load it.

The result is kept in the user's cache, under a name that depends on the source, the compiler and the processor, with a
checksum at its end. Where the cache cannot be written or is not private, the file is compiled for this process alone.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from nvdp.errors import InputError
from nvdp.system import write_whole

SOURCE = Path(__file__).with_name("kernels.c")
BLOCK = 32  # rows of a weight matrix that one thread works on at a time
# Without -ffast-math: it would change how the whole process treats denormal numbers.
FLAGS = f"-O3 -march=native -ffp-contract=fast -fno-math-errno -fno-trapping-math -fPIC -DBLOCK={BLOCK}".split()
# With gcc the kernels use the threads of PyTorch. Compilers with another OpenMP than PyTorch's get one thread.
PARALLEL = ("-fopenmp", "-fopenmp-simd")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT = 60.0  # seconds
CHECKSUM = 16  # bytes
# The arguments of each function: l a long, p a pointer, f a float, i an int.
SIGNATURES = {
    "nvdp_weights": "lllpppplfppi",
    "nvdp_outputs": "lllppplffppppi",
    "nvdp_noise_gradient": "lllpppppi",
    "nvdp_gradients": "lllppppplfppppppppppi",
    "nvdp_basis": "llllppppffpi",
    "nvdp_basis_gradients": "llllppppffpppppi",
    "nvdp_kl": "llpplpllflppppli",
}
TYPES = {"l": ctypes.c_long, "p": ctypes.c_void_p, "f": ctypes.c_float, "i": ctypes.c_int}
_LOCK = threading.Lock()


def loaded_kernels() -> ctypes.CDLL | str:
    """The compiled functions, or why there are none; tried once in a process. ``NVDP_COMPILE=0`` opts out."""
    with _LOCK:  # threads that begin together compile once
        return _loaded()


@lru_cache(maxsize=1)
def _loaded() -> ctypes.CDLL | str:
    if os.environ.get("NVDP_COMPILE", "1") == "0":
        return "NVDP_COMPILE=0"
    try:
        given = shlex.split(os.environ.get("CC", ""))
        compiler = given or [name for name in COMPILERS if shutil.which(name)][:1]
        if not compiler:
            return f"no C compiler: none of {', '.join(COMPILERS)} found"
        return _cached_or_compiled(compiler)
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        return f"{error.cmd[0]} cannot compile: {lines[0] if lines else f'exit code {error.returncode}'}"
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as error:
        return f"cannot compile: {error}"


def _cached_or_compiled(compiler: Sequence[str]) -> ctypes.CDLL:
    cached = _cache_folder() / f"kernels-{_digest(compiler)}.so"
    with suppress(OSError, AttributeError):  # there is none, or a damaged one
        content = cached.read_bytes()
        if _is_private(cached.parent) and content[-CHECKSUM:] == _checksum(content[:-CHECKSUM]):
            return _declared(cached)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.so"
        library = _compiled(compiler, path)
        content = path.read_bytes()
    with suppress(OSError, AttributeError, InputError):  # otherwise the next process compiles again
        cached.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(cached.parent):
            write_whole(cached, lambda part: _write(part, content))
    return library


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content + _checksum(content))


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECKSUM).digest()


def _cache_folder() -> Path:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "nvdp" / "kernels"


def _is_private(folder: Path) -> bool:
    """Whether only this user can have put files there: they are run."""
    about = folder.stat()
    return about.st_uid == os.getuid() and not about.st_mode & 0o077


def _digest(compiler: Sequence[str]) -> str:
    """Of all that the compiled file depends on; a folder may be shared by machines with different processors."""
    parts = [" ".join([*compiler, *FLAGS]), _run([*compiler, "--version"]), platform.machine()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        kinds = ("model name", "flags", "Features", "CPU part")
        parts += sorted({line for line in cpuinfo.read_text(errors="replace").splitlines() if line.startswith(kinds)})
    return hashlib.blake2b(SOURCE.read_bytes() + "\n".join(parts).encode(), digest_size=10).hexdigest()


def _compiled(compiler: Sequence[str], path: Path) -> ctypes.CDLL:
    """Compile to `path` and load it, with threads if that works."""
    problem: Exception | None = None
    for parallel in PARALLEL:
        try:
            _run([*compiler, *FLAGS, parallel, "-c", str(SOURCE), "-o", str(path.with_suffix(".o"))])
            # Linked without -fopenmp: its functions are found in PyTorch's own copy, so that both share their threads.
            _run([*compiler, "-shared", str(path.with_suffix(".o")), "-o", str(path), "-lm"])
            return _declared(path)
        except (OSError, AttributeError, subprocess.CalledProcessError) as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _run(command: Sequence[str]) -> str:
    # No input, and messages of the compiler in English.
    environment = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=COMPILE_TIMEOUT,
        env=environment,
    )
    return done.stdout


def _declared(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [TYPES[letter] for letter in arguments], None
    return library
