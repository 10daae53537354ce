"""The version of this package; the wheel's metadata is read from here."""

__version__ = "0.1.0"
