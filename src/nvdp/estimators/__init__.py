"""scikit-learn's habits for models that learn from tasks: `meta_fit` once on many, then `fit` at once on a new one."""

from nvdp.estimators.classifier import NVDPClassifier
from nvdp.estimators.regressor import NVDPRegressor

__all__ = ["NVDPClassifier", "NVDPRegressor"]
