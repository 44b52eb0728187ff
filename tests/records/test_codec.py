"""Which values a record may hold."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from stormdrop.records import Outcome, Record, open_store
from stormdrop.records.contract import LONGEST_NAME
from stormdrop.testing.stores import PROBLEM, SETTING, timed
from stormdrop.trial import Measurement, Status


def test_numpy_numbers_become_plain_ones() -> None:
    setting = dataclasses.replace(SETTING, seed=np.int64(3), options={"n": np.int64(4), "x": np.float32(0.5)})
    config = {"tile": (np.int64(4), 2), "scale": np.float64(0.1)}
    with open_store("sqlite://") as store:
        session = store.open(PROBLEM, setting)
        assert (session.setting.seed, session.setting.options) == (3, {"n": 4, "x": 0.5})
        assert store.session(session.id) == session
        store.append(session, 0, [Record("packed", config, Measurement(Status.OK, (np.float64(0.25),)))])
        (trial,) = store.records(session)
    assert trial.config == {"tile": (4, 2), "scale": 0.1}
    assert type(trial.config["tile"][0]) is int
    assert trial.measurement.seconds == (0.25,)


def test_the_order_of_sketches_and_knobs_is_kept() -> None:
    setting = dataclasses.replace(SETTING, sketches={"z": "1", "a": "2"})
    with open_store("sqlite://") as store:
        session = store.open(PROBLEM, setting)
        assert list(store.session(session.id).setting.sketches) == ["z", "a"]
        store.append(session, 0, [Record("z", {"k": 1, "b": 2}, Measurement(Status.UNKNOWN))])
        assert list(store.records(session)[0].config) == ["k", "b"]


def test_what_cannot_be_recorded_is_said() -> None:
    with open_store("sqlite://") as store:
        session = store.open(PROBLEM, SETTING)
        with pytest.raises(TypeError, match="object cannot be recorded"):
            store.append(session, 0, [Record("packed", {"x": object()}, Measurement(Status.UNKNOWN))])
        with pytest.raises(ValueError, match="not finite"):
            store.append(session, 0, [timed("packed", (1,), float("inf"))])
        assert store.records(session) == []
        assert store.sessions()[0].trials == 0


def test_an_outcome_is_whole() -> None:
    with pytest.raises(ValueError, match="none of the three"):
        Outcome(sketch="packed")


def test_a_kernel_may_be_named_after_a_hundred_operators() -> None:
    name = "fused" + "_add" * 400
    with open_store("sqlite://") as here, open_store("sqlite://") as there:
        session = here.open(dataclasses.replace(PROBLEM, workload_name=name), SETTING)
        assert session.problem.workload_name == name[:LONGEST_NAME] != name
        here.append(session, 0, [timed("packed", (1,), 0.5)])
        assert there.absorb(here.dump()).added == 1
