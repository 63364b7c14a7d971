"""Known wrong ways, seeded on purpose: the proof that the suites would notice."""

from conformance.faults.catalogue import Fault, catalogue, implementation, named

__all__ = ["Fault", "catalogue", "implementation", "named"]
