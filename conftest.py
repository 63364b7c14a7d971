"""The door: loads the plugin with its options and built-in variants, and nothing else."""

pytest_plugins = ["conformance.plugin"]
