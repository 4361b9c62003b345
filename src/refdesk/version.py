"""The version, read by the package, the wheel and the server."""

__version__ = "0.1.0"
