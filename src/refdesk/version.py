"""The version, in the one place that the package, the wheel and the server read it from."""

__version__ = "0.1.0"
