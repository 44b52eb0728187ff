"""Makes the folder of an emulated ARM board: what `stand_ins.arm_board` starts under QEMU on an x86-64 machine.

    sudo apt-get install qemu-user g++-aarch64-linux-gnu gcc
    make_arm_board.py [FOLDER]

The folder gets Debian's C library and Python for arm64, TVM for aarch64 in the version that is installed here, and two
small programs that count executed instructions. They are 0.6 GB. The machine's own package manager is not changed: apt
works in the folder, with a state and an architecture of its own. A step that is done is not repeated, so that a run
which was interrupted goes on when it is started again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
DEFAULT = HERE.parent / "out" / "arm_board"

TOOLS = ("qemu-aarch64", "aarch64-linux-gnu-g++", "gcc", "apt-get", "dpkg")
PACKAGES = (
    *("libc6", "libstdc++6", "libgcc-s1", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"),
    *("libexpat1", "zlib1g", "libssl3", "libbz2-1.0", "liblzma5", "libffi8", "libuuid1", "libsqlite3-0", "libcrypt1"),
)
"""Debian 12's packages that Python needs on the board."""

WHEELS = ("numpy", "ml_dtypes", "psutil", "tornado", "cloudpickle", "typing_extensions")
"""What TVM's RPC server imports beside TVM."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT, help="where to make it (%(default)s)")
    folder: Path = parser.parse_args().folder.resolve()
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        sys.exit(f"{missing[0]} is missing: sudo apt-get install qemu-user g++-aarch64-linux-gnu gcc")
    folder.mkdir(parents=True, exist_ok=True)
    for name, step in {"root": debian, "site": wheels, "programs": programs}.items():
        done = folder / f"{name}.done"
        if done.exists():
            print(f"{name}: was done before")
            continue
        step(folder)
        done.touch()
        print(f"{name}: done")
    print(f"the board is in {folder}")


def debian(folder: Path) -> None:
    """Unpacks Debian's packages for arm64 into `root`."""
    state, packages, root = folder / "apt", folder / "packages", folder / "root"
    for path in (state / "lists", state / "archives" / "partial", packages, root):
        path.mkdir(parents=True, exist_ok=True)
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": state,
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *PACKAGES], check=True, cwd=packages)
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, root], check=True)
    shutil.rmtree(state)
    shutil.rmtree(packages)


def wheels(folder: Path) -> None:
    """Installs TVM and what it needs, for aarch64, into `site`."""
    shutil.rmtree(folder / "site", ignore_errors=True)
    tvm = [f"{name}=={metadata.version(name)}" for name in ("apache-tvm", "apache-tvm-ffi")]
    abis = [word for abi in ("cp311", "abi3", "none") for word in ("--abi", abi)]
    platforms = [word for age in ("2_28", "2_17", "2014") for word in ("--platform", f"manylinux{_tag(age)}_aarch64")]
    command: list[str | Path]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "site", "--no-deps"]
    only = ["--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp"]
    subprocess.run([*command, *only, *abis, *platforms, *tvm, *WHEELS], check=True)
    # TVM's server starts itself once more by `sys.executable`. The kernel cannot execute a program for ARM, so it has
    # to be the script that calls QEMU. What was preloaded for Python is not meant for the linker.
    (folder / "site" / "sitecustomize.py").write_text(
        'import os\nimport sys\n\nsys.executable = os.environ["BOARD_PYTHON"]\nos.environ.pop("LD_PRELOAD", None)\n'
    )


def programs(folder: Path) -> None:
    """Compiles QEMU's plugin for this machine, and the clock for the board; writes the script that calls QEMU."""
    shared = ["-O2", "-Wall", "-shared", "-fPIC"]
    subprocess.run(["gcc", *shared, "-o", folder / "count.so", HERE / "count.c"], check=True)
    subprocess.run(["aarch64-linux-gnu-gcc", *shared, "-o", folder / "clock.so", HERE / "clock.c"], check=True)
    script = folder / "python"
    script.write_text(
        "#!/bin/sh\n# Python of the board, executed by QEMU. The variables are set by whoever starts the board.\n"
        'exec qemu-aarch64 $BOARD_OPTIONS -L "$BOARD/root" -cpu "$BOARD_CPU" "$BOARD/root/usr/bin/python3.11" "$@"\n'
    )
    script.chmod(0o755)


def _tag(age: str) -> str:
    return age if age == "2014" else f"_{age}"


if __name__ == "__main__":
    main()
