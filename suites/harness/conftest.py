"""What the tests of the machinery share: the suites' own checks, and one torch thread."""

import importlib.util
import sys
from pathlib import Path

import pytest

SUITES = Path(__file__).parent.parent


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
    found = []
    for path in sorted(SUITES.glob("test_*.py")):
        name = f"_suite_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        found += [v for n, v in vars(module).items() if n.startswith("test_") and hasattr(v, "requirement")]
    return found


@pytest.fixture(scope="session")
def checks(proofs):
    """The Check objects among them, which can be run without pytest."""
    return [proof.check for proof in proofs if hasattr(proof, "check")]
