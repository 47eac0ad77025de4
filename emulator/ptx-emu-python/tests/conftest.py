"""Fixtures of the tests."""

import numpy
import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def random():
    """Random numbers, the same in each test."""
    return numpy.random.default_rng(7)
