"""What a compiled model says of itself, whatever it was compiled for: from the description that it was built with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.codegen.inputs import Inputs

if TYPE_CHECKING:
    from autofuse.search.plan import Plan


class Described:
    """A compiled model's name, plan, inputs and outputs.

    `description` says what was compiled and how: what `autofuse compile --json` prints, and the kernels.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        self.description = description
        self._inputs = Inputs(self.name, description["inputs"])

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.description["model"])

    @property
    def plan(self) -> Plan:
        """The fusion plan that it was built from."""
        from autofuse.search.plan import Plan

        return Plan.from_json(self.description["plan"])

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names in the order of positional arguments."""
        return self._inputs.names

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names in the order of the results."""
        return tuple(self.description["outputs"])

    @property
    def kernels(self) -> int:
        """Kernels that one call launches."""
        return int(self.description["kernels"])

    def check(self, /, *arrays: Any, **named: Any) -> None:
        """Raises InputError if a call with these inputs would."""
        self._inputs.arrange(arrays, named)
