"""Choosing a plan: candidate groups and their costs, search strategies, plans as files.

`candidates.search_problem` makes a SearchProblem, `strategy(name).search(problem)` a SearchResult, `plan_of` a Plan.
"""

from autofuse.search.plan import Plan, PlannedGroup, adapt, plan_of, validate
from autofuse.search.problem import Choice, SearchProblem, SearchResult, SearchStrategy, Thresholds
from autofuse.search.strategies import strategy

__all__ = [
    "Choice",
    "Plan",
    "PlannedGroup",
    "SearchProblem",
    "SearchResult",
    "SearchStrategy",
    "Thresholds",
    "adapt",
    "plan_of",
    "strategy",
    "validate",
]
