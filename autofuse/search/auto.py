"""`auto`: picks a strategy by properties of the hardware and the graph, and says why."""

from __future__ import annotations

from dataclasses import replace

from autofuse.search.baselines import GreedyStrategy
from autofuse.search.dp import DPStrategy
from autofuse.search.hybrid import HybridStrategy
from autofuse.search.problem import SearchProblem, SearchResult, SearchStrategy
from autofuse.target import Hardware

#: Below this bandwidth (bytes/second) kernels wait for memory, and every tensor kept out of it counts.
SLOW_MEMORY = 100e9
#: Above this many operators the greedy partition leaves something on the table even on fast memory.
MANY_OPERATORS = 50
#: Compile time over greedy's, in percent, that a full search is granted when it has to fit an allowance.
FULL_SEARCH_PERCENT = 35.0
#: The same for a search on the hottest operators.
PART_SEARCH_PERCENT = 5.0


class AutoStrategy(SearchStrategy):
    """dp, hybrid or greedy. `compile_allowance`: percent of compile time over greedy's that may be spent."""

    name = "auto"

    def __init__(self, hardware: Hardware, compile_allowance: float | None = None) -> None:
        self.hardware = hardware
        self.compile_allowance = compile_allowance

    def pick(self, problem: SearchProblem) -> tuple[SearchStrategy, str]:
        """The strategy and the reason as a sentence."""
        bandwidth = self.hardware.memory_bandwidth
        count = len(problem.graph.operators)
        memory = f"memory at {bandwidth / 1e9:.0f} GB/s"
        slow = bandwidth < SLOW_MEMORY
        allowance = self.compile_allowance
        if problem.max_memory:
            return DPStrategy(), "dp: only it plans within a memory limit"
        if allowance is not None and allowance < PART_SEARCH_PERCENT:
            return GreedyStrategy(), f"greedy: a compile-time allowance of {allowance:g} % leaves no time to search"
        if not slow and count <= MANY_OPERATORS:
            return GreedyStrategy(), f"greedy: {memory} and only {count} operators leave little to gain"
        if allowance is not None and allowance < FULL_SEARCH_PERCENT:
            return HybridStrategy(), f"hybrid: a compile-time allowance of {allowance:g} % is too short for dp"
        if slow:
            return DPStrategy(), f"dp: {memory} makes kernels wait for it (limit {SLOW_MEMORY / 1e9:.0f} GB/s)"
        return HybridStrategy(), f"hybrid: {count} operators (over {MANY_OPERATORS}), but {memory} is fast"

    def search(self, problem: SearchProblem) -> SearchResult:
        chosen, reason = self.pick(problem)
        result = chosen.search(problem)
        return replace(result, reason="; ".join(filter(None, (reason, result.reason))))
