"""Failures inside the conformance suite show the values compared."""

import pytest

pytest.register_assert_rewrite("stormdrop.testing.stores")
