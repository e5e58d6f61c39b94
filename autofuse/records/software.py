"""What made a record: versions of TVM and autofuse, read from their metadata (nothing is imported)."""

from __future__ import annotations

from importlib import metadata


def software_versions() -> dict[str, str]:
    """{"tvm": ..., "autofuse": ...}; "unknown" for what is not installed."""
    found = {}
    for name, distribution in (("tvm", "apache-tvm"), ("autofuse", "autofuse")):
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
