"""What the tests of the machinery share: the suites' own checks, and one torch thread."""

import pytest

from conformance import suites


@pytest.fixture
def one_thread():
    """Small tensors on one thread, as conformance runs have it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def proofs():
    """The tests of suites/test_*.py that prove a requirement."""
    return suites.proofs()


@pytest.fixture(scope="session")
def checks(proofs):
    """The Check objects among them, which can be run without pytest."""
    return [proof.check for proof in proofs if hasattr(proof, "check")]
