"""Schedule families: which groups one matches, its configurations, how it is applied to TIR."""

from autofuse.errors import AutofuseError


class ScheduleError(AutofuseError):
    """A family cannot schedule the TIR that it was given."""
