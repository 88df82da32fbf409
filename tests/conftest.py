"""What the tests share."""

from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
"""The checkout, or the folder that the tests were copied to."""

SHARED = ROOT.parent / "shared" / "data"
"""Measurements by others; not part of the project."""

# A first call compiles, so the time of one example says nothing.
hypothesis.settings.register_profile("jaxscale", parent=hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("jaxscale")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of measured data; a test that needs it is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the measured data (../shared/data) is not here")
    return SHARED


@pytest.fixture
def strict_ranks():
    """Inside the test, arrays of unlike rank do not broadcast unless it is written out."""
    import jax

    with jax.numpy_rank_promotion("raise"):
        yield
