"""Programs as shared libraries: the C interface, what it refuses, what it needs."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import native_models
from native_models import chain, kernels_object, write_model
from stormdrop.errors import ArtifactError
from stormdrop.machine import cpu_flags
from stormdrop.machine.threads import usable_cores
from stormdrop.model.native.link import INTERFACE, link_model
from stormdrop.model.native.source import PIECE
from stormdrop.runtime.library import INTERFACE as RUNTIME_INTERFACE
from stormdrop.runtime.library import Library, PartFunction, _Options

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(native_models.compiler() is None, reason="there is no C compiler"),
]

X = np.arange(16, dtype=np.float32).reshape(1, 16)
C = np.arange(16, dtype=np.float32)
CHAIN = ("twice", "add", "copy", "spacious", "twice")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kernels_object(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> Path:
    """y = 2 (2 x + c)"""
    return write_model(tmp_path_factory.mktemp("models") / "m", chain(CHAIN, constant=True), [kernels], C)


def opened(folder: Path, path: bytes | None = None, **options: object) -> tuple[Library, int | None]:
    """A model that was opened from a path, or with some options."""
    library = Library(os.open(folder / "model.so", os.O_RDONLY))
    given = _Options(interface=1, **options)
    return library, library._open(path, ctypes.byref(given))


def run(library: Library, handle: int | None, x: np.ndarray, size: int = 0) -> np.ndarray:
    y = np.empty_like(x)
    inputs, outputs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
    assert library._run(handle, size, inputs, outputs, None) == 0, library.error()
    return y


def test_the_interface_has_one_version() -> None:
    assert f"#define STORMDROP_INTERFACE {RUNTIME_INTERFACE} " in INTERFACE.read_text()


def test_the_library_needs_the_c_library_only(model: Path) -> None:
    lines = subprocess.run(["ldd", model / "model.so"], capture_output=True, text=True, check=True).stdout.splitlines()
    names = {Path(line.split()[0]).name.split(".so")[0].split("-")[0] for line in lines}
    assert names <= {"linux", "libc", "libm", "libpthread", "ld"}
    assert "libc" in names


def test_the_library_shows_its_interface_and_its_kernels_only(model: Path) -> None:
    command = ["nm", "-D", "--defined-only", str(model / "model.so")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {line.split()[-1] for line in lines}
    # The kernels, and what they ask for, as TVM loads them where it is there, too.
    shown = {name for name in names if not name.startswith(("__tvm_ffi_", "__TVM"))}
    assert shown and all(name.startswith("stormdrop_") and f"{name}(" in INTERFACE.read_text() for name in shown)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_model_is_opened_from_a_path(model: Path, what: str) -> None:
    library, handle = opened(model, str(model if what == "folder" else model / "weights.bin").encode())
    np.testing.assert_array_equal(run(library, handle, X), 2 * (2 * X + C))
    library._close(handle)


def test_a_model_is_opened_from_memory(model: Path) -> None:
    memory = np.empty(64 + C.nbytes, np.uint8)
    begin = -memory.ctypes.data % 64
    memory[begin : begin + C.nbytes] = C.view(np.uint8)
    address = memory.ctypes.data + begin
    library, handle = opened(model, None, constants=address, constants_bytes=C.nbytes)
    np.testing.assert_array_equal(run(library, handle, X), 2 * (2 * X + C))
    library._close(handle)
    memory[begin + 3] ^= 1
    assert opened(model, None, constants=address, constants_bytes=C.nbytes)[1] is None
    library, handle = opened(model, None, constants=address, constants_bytes=C.nbytes, unchecked=1)
    assert handle
    library._close(handle)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(constants=64, constants_bytes=3), "have 3 bytes, not 64"),
        (dict(constants=4, constants_bytes=64), "do not begin at a multiple of 64 bytes"),
        (dict(), "needs the path of its folder"),
    ],
)
def test_constants_in_memory_are_checked(model: Path, options: dict[str, object], message: str) -> None:
    library, handle = opened(model, None, **options)
    assert handle is None
    assert message in library.error()


def test_another_interface_is_refused(model: Path) -> None:
    library = Library(os.open(model / "model.so", os.O_RDONLY))
    assert library._open(str(model).encode(), ctypes.byref(_Options(interface=2))) is None
    assert library.error() == "by hand: has the interface 1, and is called with 2"


@pytest.mark.parametrize("change", ["shorter", "longer", "altered", "missing", "folder"])
def test_damaged_constants_are_refused_in_one_line(model: Path, tmp_path: Path, change: str) -> None:
    data = bytearray((model / "weights.bin").read_bytes())
    file = tmp_path / "weights.bin"
    data[5] ^= change == "altered"
    data = data[:-1] if change == "shorter" else data + b"x" if change == "longer" else data
    if change == "folder":
        file.mkdir()
    elif change != "missing":
        file.write_bytes(data)
    library, handle = opened(model, str(file).encode())
    assert handle is None
    assert str(file) in library.error()
    assert "\n" not in library.error()


def test_every_byte_of_the_constants_counts(tmp_path: Path, kernels: Path) -> None:
    for count in (1, 13, 14, 15, 16, 29, 30, 31, 100):
        constants = np.random.default_rng(count).random((1, count), np.float32)
        folder = write_model(tmp_path / str(count), chain(["add"], width=count, constant=True), [kernels], constants)
        library, handle = opened(folder, str(folder).encode())
        assert handle, library.error()
        library._close(handle)


@pytest.mark.parametrize("threads", [1, 0])
def test_each_piece_of_the_constants_is_checked(tmp_path: Path, kernels: Path, threads: int) -> None:
    width = 3 * PIECE // 4 + 5
    constants = np.random.default_rng(0).random((1, width), np.float32)
    folder = write_model(tmp_path / "m", chain(["add"], width=width, constant=True), [kernels], constants)
    data = constants.view(np.uint8)[0]
    for place in (0, PIECE - 1, PIECE, 3 * PIECE - 1, 3 * PIECE, data.size - 1):
        library, handle = opened(folder, str(folder).encode(), threads=threads)
        assert handle, library.error()
        library._close(handle)
        data[place] ^= 1
        (folder / "weights.bin").write_bytes(data.tobytes())
        data[place] ^= 1
        library, handle = opened(folder, str(folder).encode(), threads=threads)
        assert handle is None and "weights.bin: is damaged: its checksum differs" in library.error()
        (folder / "weights.bin").write_bytes(data.tobytes())


def test_the_plain_sha256_is_that_of_the_instructions(tmp_path: Path) -> None:
    library = built(
        tmp_path,
        '#include "checks.c"\nconst sd_program sd_the_program;\nvoid sd_fail(const char *f, ...) { (void)f; }\n'
        "void plain(const void *d, uint64_t n, uint32_t *s) { add_blocks(s, d, n); }\n",
    )
    rng = np.random.default_rng(1)
    for count in [*range(0, 200, 7), 55, 56, 63, 64, 119, 120, 128, 4096, 100_001]:
        data = rng.bytes(count)
        digest = ctypes.create_string_buffer(65)
        library.sd_sha256(data, ctypes.c_uint64(count), digest)
        assert digest.value.decode() == hashlib.sha256(data).hexdigest()
    padded = b"abc\x80" + bytes(59) + b"\x18"
    state = (ctypes.c_uint32 * 8)(
        0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19
    )  # fmt: skip
    library.plain(padded, ctypes.c_uint64(1), state)
    assert "".join(f"{word:08x}" for word in state) == hashlib.sha256(b"abc").hexdigest()


def test_the_cpu_has_the_features_that_the_system_names(tmp_path: Path) -> None:
    library = built(
        tmp_path,
        '#include "checks.c"\nconst sd_program sd_the_program = {.name = "m"};\n'
        "void sd_fail(const char *f, ...) { (void)f; }\n",
    )
    library.sd_check_features.restype = ctypes.c_bool
    differing, arm = [], {"neon", "fullfp16", "dotprod", "lse", "sve", "sve2", "i8mm", "bf16"}
    for feature in cpu_flags.FLAGS.keys() - arm if platform.machine() == "x86_64" else arm:
        names = (ctypes.c_char_p * 2)(feature.encode(), None)
        if os.environ.get("STORMDROP_CPU"):
            pytest.skip("this machine passes for another one")
        if library.sd_check_features(names) != (cpu_flags.missing_features([feature]) == []):
            differing.append(feature)
    assert set(differing) <= {"xsave", "adx"}  # which hypervisors hide from one of the two


def test_a_cpu_without_the_instructions_is_refused(tmp_path: Path, kernels: Path) -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    lacking = sorted(
        name for name in ("amx-fp16", "avx512fp16", "sha") if cpu_flags.FLAGS.get(name, "amx_fp16") not in flags
    )
    if not lacking or platform.machine() != "x86_64":
        pytest.skip("this CPU has all that the kernels of any model need")
    folder = write_model(tmp_path / "m", chain(["twice"]), [kernels], features=["sse2", *lacking, "no-feature"])
    library, handle = opened(folder)
    assert handle is None
    assert library.error() == f"by hand: this CPU lacks {', '.join(lacking)}"


def test_as_many_cores_are_used_as_in_python(tmp_path: Path, model: Path) -> None:
    library, handle = opened(model, str(model).encode())
    assert library._threads(handle) == usable_cores()
    library._close(handle)
    library, handle = opened(model, str(model).encode(), threads=usable_cores() + 1)
    assert handle is None
    assert f"a whole number from 1 to {usable_cores()}, the cores of this process" in library.error()


GROUPS: dict[str, dict[str, str]] = {
    "none": {"proc/self/cgroup": "0::/\n"},
    "v2": {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"},
    "v2 leaf": {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n"},
    "v2 max": {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"},
    "v1": {
        "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/7\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/7/cpu.cfs_quota_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/7/cpu.cfs_period_us": "100000\n",
    },
    "v1 unbounded": {
        "proc/self/cgroup": "3:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    },
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_quota_of_control_groups_is_honoured(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    for file, text in GROUPS[name].items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    library = built(
        tmp_path,
        "#include <stdio.h>\n"
        "static FILE *below(const char *path, const char *mode) {\n"
        f'  char all[8192];\n  snprintf(all, sizeof all, "{root}%s", path);\n  return fopen(all, mode);\n}}\n'
        '#define fopen below\n#include "cores.c"\n',
    )
    assert library.sd_usable_cores() == usable_cores(root)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("fail", "ValueError: this kernel fails always"),
        ("fail_inside", "ValueError: a task has failed"),
        ("calls_tvm", "it calls a function of TVM, and there is none"),
    ],
)
def test_what_a_kernel_says_is_the_error(tmp_path: Path, kernels: Path, kernel: str, reason: str) -> None:
    folder = write_model(tmp_path / "m", chain(["twice", kernel]), [kernels])
    library, handle = opened(folder)
    y = np.empty_like(X)
    addresses = [(ctypes.c_void_p * 1)(each.ctypes.data) for each in (X, y)]
    for _ in range(3):  # nothing is left of a call that failed
        assert library._run(handle, 0, *addresses, None) == -1
        assert library.error() == f"by hand: {kernel} fails: {reason}"
    assert library._run(handle, 1, *addresses, None) == -1
    assert library.error() == "by hand: has no size 1; it has 1"
    assert library._run(handle, 0, (ctypes.c_void_p * 1)(None), addresses[1], None) == -1
    assert library.error() == "by hand: the array of 'x' is NULL"
    library._close(handle)


@pytest.mark.parametrize("keep", [False, True])
def test_denormals_are_kept_if_the_model_keeps_them(tmp_path: Path, kernels: Path, keep: bool) -> None:
    folder = write_model(tmp_path / "m", chain(["halve"]), [kernels], keep_denormals=keep)
    library, handle = opened(folder)
    smallest = np.full((1, 16), np.finfo(np.float32).tiny, np.float32)
    assert bool(run(library, handle, smallest).any()) == keep
    assert (smallest / np.float32(2)).any(), "the caller's mode is its own again"
    library._close(handle)


def test_steps_are_named_and_timed(model: Path) -> None:
    library, handle = opened(model, str(model).encode())
    names = [library._step(handle, 0, step).decode() for step in range(library._steps(handle, 0))]
    assert names == list(CHAIN)
    assert library._step(handle, 0, 5) is None
    seconds = (ctypes.c_double * 5)(*[-1] * 5)
    y = np.empty_like(X)
    addresses = [(ctypes.c_void_p * 1)(each.ctypes.data) for each in (X, y)]
    assert library._profile(handle, 0, *addresses, None, seconds) == 0
    assert all(0 <= each < 10 for each in seconds)
    library._close(handle)


def test_a_part_is_run_by_the_host(tmp_path: Path, kernels: Path) -> None:
    folder = write_model(tmp_path / "m", chain(["twice", "part", "twice"]), [kernels])
    library, handle = opened(folder)
    assert handle is None
    assert "onnxruntime has to run a part of it" in library.error()
    seen: list[Any] = []

    def add_one(call: int, part: int, inputs: int, read, given, outputs: int, written, made) -> int:  # type: ignore[no-untyped-def]
        x, y = read[0].contents, written[0].contents
        seen.append((call, part, inputs, outputs, tuple(x.shape[: x.rank]), y.type, y.bytes))
        source = (ctypes.c_float * 16).from_address(given[0])
        target = (ctypes.c_float * 16).from_address(made[0])
        target[:] = [each + 1 for each in source]
        return 0

    function: Callable[..., int] = PartFunction(add_one)
    library, handle = opened(folder, part=function)
    np.testing.assert_array_equal(run(library, handle, X), 2 * (2 * X + 1))
    assert seen == [(None, 0, 1, 1, (1, 16), b"float32", 64)]
    library._close(handle)
    function = PartFunction(lambda *_: 7)
    library, handle = opened(folder, part=function)
    y = np.empty_like(X)
    addresses = [(ctypes.c_void_p * 1)(each.ctypes.data) for each in (X, y)]
    assert library._run(handle, 0, *addresses, None) == -1
    assert library.error() == "by hand: stormdrop.onnxruntime.0 fails: it gives no reason"
    library._close(handle)


def test_opened_and_closed_a_thousand_times_memory_is_flat(model: Path) -> None:
    library = Library(os.open(model / "model.so", os.O_RDONLY))
    options = _Options(interface=1)

    def once() -> None:
        handle = library._open(str(model).encode(), ctypes.byref(options))
        run(library, handle, X)
        library._close(handle)

    for _ in range(100):
        once()
    before, threads = resident_kilobytes(), len(os.listdir("/proc/self/task"))  # noqa: PTH208
    for _ in range(1000):
        once()
    assert resident_kilobytes() - before < 500
    assert len(os.listdir("/proc/self/task")) == threads  # noqa: PTH208


def test_tile_registers_are_asked_for(tmp_path: Path, kernels: Path) -> None:
    if "amx_tile" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this CPU has no tile registers")
    folder = write_model(tmp_path / "m", chain(["nothing"]), [kernels], units=["amx-tile"])
    program = (
        "import ctypes\n"
        "def permitted():\n    mask = ctypes.c_uint64()\n"
        "    ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(mask))\n    return mask.value >> 18 & 1\n"
        f"before = permitted()\nlibrary = ctypes.CDLL({str(folder / 'model.so')!r})\n"
        "library.stormdrop_open.restype = ctypes.c_void_p\n"
        "print(before, bool(library.stormdrop_open(None, None)), permitted())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "1"]


def test_a_compiler_that_fails_is_refused_in_one_line(tmp_path: Path) -> None:
    missing = chain(["not_there"])
    settings = dict(name="m", features=(), units=(), constants=None, keep_denormals=False)
    with pytest.raises(ArtifactError, match=r"m: cc does not link it: .*undefined.*not_there") as caught:
        link_model(missing, [], tmp_path / "model.so", compiler="cc", **settings)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    with pytest.raises(ArtifactError, match="no-such-compiler cannot be run"):
        link_model(missing, [], tmp_path / "model.so", compiler="no-such-compiler", **settings)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="is no name of a kernel"):
        link_model(chain(["not; a name"]), [], tmp_path / "model.so", **settings)  # type: ignore[arg-type]


def test_names_are_written_as_they_are(tmp_path: Path, kernels: Path) -> None:
    name = 'a "name" \\ of %s ünd\n7'
    folder = write_model(tmp_path / "m", chain(["nothing"]), [kernels], name=name)
    library, handle = opened(folder)
    library._library.stormdrop_name.restype = ctypes.c_char_p
    library._library.stormdrop_name.argtypes = [ctypes.c_void_p]
    assert library._library.stormdrop_name(handle).decode() == name
    library._close(handle)


def built(folder: Path, source: str) -> ctypes.CDLL:
    """Functions in C that include a file of the runtime."""
    (folder / "test.c").write_text("#define _GNU_SOURCE\n" + source)
    command = ["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", f"-I{INTERFACE.parent}", "-o", str(folder / "test.so")]
    subprocess.run([*command, str(folder / "test.c")], check=True)
    return ctypes.CDLL(str(folder / "test.so"))


def resident_kilobytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
