"""Schedule families for GPUs: one file each, listed in `schedule/registry.py`."""
