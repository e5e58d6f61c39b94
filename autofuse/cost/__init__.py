"""Cost models: the interface, the analytical model, and the features that learned models use."""

from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.features import FEATURE_VERSION, FEATURES, extract
from autofuse.cost.group_features import Feature
from autofuse.cost.model import Candidate, CostModel

__all__ = ["FEATURES", "FEATURE_VERSION", "AnalyticalCostModel", "Candidate", "CostModel", "Feature", "extract"]
