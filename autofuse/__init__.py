"""autofuse: operator fusion by measuring, learning and searching, on top of Apache TVM (Relax)."""

__version__ = "0.1.0"
