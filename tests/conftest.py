"""Settings for all tests.

No test touches the user's own records and caches. TVM uses all cores. No process outlives the tests. Only tests with
the mark `compiles` compile kernels. Tests run side by side in several processes (pytest-xdist), except that a test with
the mark `alone` runs while no other test does.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from stormdrop.errors import MeasureError, TargetError
from stormdrop.machine import fewer_units, threads
from stormdrop.machine.detect import cpu_model, host_features
from stormdrop.machine.process import fork_server
from stormdrop.machine.sharing.lock import MachineLock

# Before any test module loads TVM, which reads the number of threads once.
threads.configure()

# A shell that starts the tests in the background makes them ignore Ctrl-C, and so would every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

_FOLDER = "STORMDROP_TEST_FOLDER"
"""The environment variable that names the temporary folder which all processes of a test run share."""
if _FOLDER not in os.environ:
    os.environ[_FOLDER] = tempfile.mkdtemp(prefix="stormdrop-tests-")
_SHARED = Path(os.environ[_FOLDER])
_HOME = tempfile.TemporaryDirectory(prefix="process-", dir=_SHARED)
os.environ["XDG_DATA_HOME"] = str(Path(_HOME.name) / "data")
os.environ["XDG_CACHE_HOME"] = str(_SHARED / "cache")

_RUN = "STORMDROP_TEST_RUN"
"""The environment variable by which a process is known as one of this test run, even after its parent has ended."""
os.environ[_RUN] = _HOME.name

# Programs that tests start find what tests share.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))

_COMPILING = ("bench", "codegen")
"""Folders whose tests have the mark `compiles`. Elsewhere modules or single tests carry it."""

_ALONE = {
    "test_a_bench_reports_ratios_errors_and_skipped_peers",
    "test_a_session_full_of_faults",
    "test_bench_of_an_operator",
    "test_bench_of_a_model",
    "test_doctor",
    "test_run_shows_where_the_time_goes",
    "test_the_order_of_contenders_does_not_matter",
}
"""Tests that repeat what other load disturbs: `alone`. All other processes wait for each of them."""

_ANY_CPU = (
    *("codegen/test_cuda", "codegen/test_gpu_check", "codegen/test_opencl", "sketches/gpu", "sketches/rules/test_gpu"),
    *("codegen/test_other_units", "machine/test_child_process", "machine/test_core_shares", "machine/test_fork_server"),
    *("machine/test_gpu", "machine/test_kept_measurements", "machine/test_lock", "machine/test_memory.py"),
    *("machine/test_nvml", "machine/test_opencl", "machine/test_scratch", "model/importer/test_isolated"),
    *("sketches/test_meta_schedule", "sketches/test_fingerprint"),
)
"""How the paths of tests begin that do not depend on the units of the CPU: they are `any_cpu`."""

_PATIENCE = 20.0
"""Seconds that a process may take to end after the last test."""


_LONG = {
    "test_a_campaign_goes_on_where_it_was",
    "test_a_crash_is_one_line",
    "test_a_database_that_fails_until_the_end",
    "test_a_long_output_ends_with_its_reader",
    "test_a_reader_that_hangs_or_crashes_is_a_finding",
    "test_a_runner_that_is_stopped_is_not_waited_for",
    "test_a_search_of_a_large_space",
    "test_a_seed_decides_everything",
    "test_an_import_that_takes_too_long",
    "test_an_import_without_memory",
    "test_an_unsupported_operator_is_named_with_its_node",
    "test_any_results",
    "test_any_space_conforms",
    "test_bad_models",
    "test_ctrl_c_with_a_database_that_fails",
    "test_damaged_files_are_read_or_refused_in_one_line",
    "test_fingerprints_are_reproducible",
    "test_it_goes_on_if_most_candidates_fail",
    "test_it_is_near_the_optimum_of_two_thousand_points",
    "test_knobs_conform",
    "test_nothing_is_left_behind",
    "test_output_without_end_fills_no_disk",
    "test_points_are_what_brute_force_finds",
    "test_random_sessions_survive_lines_and_databases",
    "test_resume_at_every_prefix",
    "test_sizes_of_unused_inputs",
    "test_spaces_conform",
    "test_starts_come_before_anything_else",
    "test_the_child_brings_the_parts_back",
    "test_the_child_imports_what_this_process_would",
    "test_three_hundred_trials_of_a_large_space",
    "test_what_is_known_beforehand_is_taken",
    "test_while_nothing_works_all_sketches_are_tried_equally",
}
"""Tests of the conformance suites, and others, that compile nothing and still take seconds: they are `long`."""


def pytest_report_header() -> str:
    """Says as which CPU the tests run, or why they cannot run so (`make test AS=...`)."""
    try:
        cpu = cpu_model()
        if fewer_units.pretended_cpu():
            import tvm  # noqa: F401  whose LLVM knows what the real CPU has

            host_features()
    except TargetError as error:
        pytest.exit(str(error), pytest.ExitCode.USAGE_ERROR)
    return f"CPU: {cpu}"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Measures this machine once, before tests run side by side.

    The peak takes three seconds of CPU time, and tests need it only to order candidates. What the caches hold they need
    not know, but a tuning measures it if it is not known. They are measured here as if there were little cache: for
    hundreds of megabytes it would take arrays of a gigabyte.
    """
    if getattr(session.config.option, "numprocesses", None):
        from stormdrop.machine.cpu import Cpu
        from stormdrop.machine.limits import memory_rates
        from stormdrop.machine.limits.kept_measurements import keep
        from stormdrop.machine.limits.measuring import measured_in_child, shape_of
        from stormdrop.machine.limits.peak import peak

        target = Cpu.detect()
        shape = {**shape_of(target), "l2s": target.cores * target.l2, "l3s": min(target.l3s * target.l3, 32 << 20)}
        serve = "stormdrop.machine.limits.memory_loops:serve_caches"
        with suppress(MeasureError):  # on a very busy machine it takes too long; a test that needs it measures it
            peak(target)
            caches = measured_in_child(serve, shape, memory_rates.Caches, "measuring this machine's caches")
            keep(memory_rates._kept_caches(target).path, asdict(caches))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the shared folder in the process that has made it, which is the last to end."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(_SHARED, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keeps all other tests from running beside a test with the mark `alone`, in whichever process they are."""
    with (
        closing(MachineLock(_SHARED / "tests.lock")) as lock,
        lock.exclusive() if item.get_closest_marker("alone") else lock.shared(),
    ):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        parts = item.path.relative_to(folder).parts
        if parts[0] in _COMPILING:
            item.add_marker(pytest.mark.compiles)
        if item.name.partition("[")[0] in _ALONE:
            item.add_marker(pytest.mark.alone)
        if "/".join(parts).startswith(_ANY_CPU):
            item.add_marker(pytest.mark.any_cpu)
        if item.name.partition("[")[0] in _LONG:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def _only_marked_tests_compile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that compiles a kernel in this process without the mark, so that `make fast` stays fast."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("the test compiles a kernel: mark it with pytest.mark.compiles")

    if "tvm" in sys.modules and request.node.get_closest_marker("compiles") is None:
        monkeypatch.setattr("tvm.compile", refuse)
        monkeypatch.setattr("tvm.tirx.build", refuse)


@pytest.fixture(scope="session", autouse=True)
def _no_process_outlives_the_tests() -> Iterator[None]:
    """Fails after the last test if a process that a test started, directly or not, is still there; and ends it.

    The fixture is the first to be set up, so that it is the last to be torn down: pools that other fixtures hold are
    closed by then.
    """
    yield
    fork_server.stop()
    _, alive = psutil.wait_procs(_started_by_tests(), timeout=_PATIENCE)
    commands = [" ".join(_command(process)) for process in alive]
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _HOME.cleanup()
    if commands:
        pytest.fail("processes outlive the tests:\n" + "\n".join(commands), pytrace=False)


def _started_by_tests() -> list[psutil.Process]:
    """The descendants of this process, and what carries the mark of this run because its parent has ended before."""
    this = psutil.Process()
    marked = [process for process in psutil.process_iter() if process != this and _is_marked(process)]
    started = {*this.children(recursive=True), *marked}
    return [process for process in started if not (_is_zombie(process) or _is_resource_tracker(process))]


def _is_marked(process: psutil.Process) -> bool:
    try:
        return process.environ().get(_RUN) == _HOME.name
    except (psutil.Error, OSError):  # another user's, or it has just ended
        return False


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _is_resource_tracker(process: psutil.Process) -> bool:
    """Whether Python started it for `multiprocessing`; it ends with the process that it belongs to."""
    return any("multiprocessing.resource_tracker" in word for word in _command(process))


def _command(process: psutil.Process) -> list[str]:
    try:
        return [str(process.pid), *process.cmdline()]
    except psutil.Error:
        return [str(process.pid)]


@pytest.fixture(scope="module")
def rack() -> Iterator[Any]:
    """A rack of two boards on this machine. A module that wants another one has a fixture of this name itself."""
    from stand_ins.rack import Rack, missing

    if reason := missing():
        pytest.skip(f"no rack can be started: {reason}")
    with Rack(2) as started:
        yield started
