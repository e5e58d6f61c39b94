"""Operators, tensors and groups; mapping types; legality (every refusal is a reason)."""

from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor, Work, bits

__all__ = ["Access", "Graph", "Group", "MappingType", "Operator", "Role", "Tensor", "Work", "bits"]
