"""A model that `nvdp fit` has left, shared by the tests that ask it."""

import pytest
from growth import fitted, growth


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a fit to growing trees."""
    folder = tmp_path_factory.mktemp("fit")
    result = fitted(growth(), folder)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return folder / "model"
