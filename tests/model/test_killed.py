"""A tuning that is ended by kill -9 can be resumed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from tiny_models import residual_model

from stand_ins.verifying import verify
from stormdrop.model import load
from stormdrop.model.random_weights import seed_weights
from stormdrop.records import State, open_store

pytestmark = pytest.mark.compiles

TRIALS = 48
"""More than are measured before three kills."""

PATIENCE = 120.0


def measured(database: Path) -> list[tuple[str, str, str]]:
    """Workload, sketch and configuration of all stored trials, in the order of the sessions."""
    if not database.exists():
        return []
    with open_store(database) as store:
        return [
            (summary.workload_key, record.sketch, json.dumps(dict(record.config), sort_keys=True))
            for summary in reversed(store.sessions())
            for record in store.records(store.session(summary.id))
        ]


def wait(until: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while not until():
        assert process.poll() is None, "the tuning ended before it was killed"
        assert time.monotonic() < end, "nothing was measured"
        time.sleep(0.05)


def test_killed_three_times_and_resumed(tmp_path: Path) -> None:
    """Nothing is measured twice, what was recorded stays, and the model is right in the end."""
    source, database, artifact = tmp_path / "m.onnx", tmp_path / "records.db", tmp_path / "m.sd"
    model = seed_weights(residual_model(), seed=1)
    onnx.save(model, source)
    words = [
        "tune",
        source,
        "--search",
        "random",
        "--seed",
        1,
        "--db",
        database,
        "--out",
        artifact,
        "--resume",
        "--json",
    ]
    command = [sys.executable, "-m", "stormdrop", *map(str, words), "--trials"]
    rng, kept = random.Random(0), list[Any]()
    for _ in range(3):
        run = subprocess.Popen(
            [*command, str(TRIALS)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ,
            start_new_session=True,
        )
        more = len(kept) + rng.randint(1, 3)
        wait(lambda more=more: len(measured(database)) >= more, run)  # type: ignore[misc]
        time.sleep(0.3 * rng.random())
        run.send_signal(signal.SIGKILL)
        run.wait()
        time.sleep(0.2)  # a commit under way
        now = measured(database)
        assert set(kept) <= set(now)
        kept = now
        assert not artifact.exists()
    trials = len(kept) + 8
    done = subprocess.run([*command, str(trials)], stdout=subprocess.PIPE, check=True, env=os.environ)
    document = json.loads(done.stdout)
    everything = measured(database)
    assert set(kept) <= set(everything)
    assert len(set(everything)) == len(everything) == document["trials"] > len(kept)
    assert document["trials"] <= trials
    assert document["reused"] == len(kept)
    with open_store(database) as store:
        assert {summary.state for summary in store.sessions()} == {State.FINISHED}
    assert verify(load(artifact), model).max_error < 1e-4
