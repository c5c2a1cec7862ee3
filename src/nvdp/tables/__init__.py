"""scikit-learn's habits for models that learn from tasks: `meta_fit` once on many, then `fit` at once on a new one."""

from nvdp.tables.classifier import NVDPClassifier
from nvdp.tables.regressor import NVDPRegressor

__all__ = ["NVDPClassifier", "NVDPRegressor"]
