"""Where the time of a compiled model goes, kernel by kernel, beside what was predicted and what the machine allows."""

from __future__ import annotations

from autofuse.profile.result import KernelProfile, Profile
from autofuse.profile.run import profile

__all__ = ["KernelProfile", "Profile", "profile"]
