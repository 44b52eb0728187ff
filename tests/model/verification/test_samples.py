from __future__ import annotations

import numpy as np

from stormdrop.model.metadata import TensorInfo
from stormdrop.model.verification.samples import random_feeds, samples


def test_feeds_follow_the_seed_and_the_type() -> None:
    inputs = (TensorInfo("x", (2, 3), "float32"), TensorInfo("mask", (4,), "int64"))
    feeds, again, other = random_feeds(inputs, 1), random_feeds(inputs, 1), random_feeds(inputs, 2)
    assert feeds["x"].dtype == np.float32 and feeds["mask"].dtype == np.int64
    assert np.array_equal(feeds["x"], again["x"]) and not np.array_equal(feeds["x"], other["x"])


def test_samples_are_of_different_scales() -> None:
    inputs = (TensorInfo("x", (64, 64), "float32"), TensorInfo("ids", (256,), "int64"), TensorInfo("m", (9,), "bool"))
    given = [sample.feeds for sample in samples(inputs, {"ids": 50})]
    largest = [float(np.abs(feeds["x"]).max()) for feeds in given]
    assert 2 < largest[0] < 10 and 200 < largest[1] <= 255 and 500 < largest[2] <= 1000
    assert (given[1]["x"] >= 0).all() and 0 < np.abs(given[2]["x"]).min() < 1e-5
    assert all(feeds["ids"].min() == 0 and 40 < feeds["ids"].max() < 50 for feeds in given)
    assert all(feeds["m"].dtype == bool for feeds in given)
