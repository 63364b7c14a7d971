"""The suites prove their own power: their checks are run on every seeded fault, and who notices is kept."""
