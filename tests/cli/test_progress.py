"""Progress while a command runs."""

from __future__ import annotations

import pytest

from stormdrop.cli.progress import Reporter


def test_progress_in_plain_lines(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from stormdrop.tuning.tune import Progress

    now = [100.0]
    monkeypatch.setattr("stormdrop.cli.progress.time.monotonic", lambda: now[0])
    with Reporter(None, "tuning a nap") as report:
        for trials, best in ((1, None), (2, 1e-3), (3, 5e-4)):
            report(Progress(trials, 1, best, elapsed=trials * 1.0, budget_seconds=60.0))
            now[0] += 3.0
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "tuning a nap\n3 trials (1 failed), best 500 us, 3 s, 57 s left\n"
