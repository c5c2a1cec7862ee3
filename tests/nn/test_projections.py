"""Linear maps of features."""

import pytest
import torch
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.nn.projections import within_class_whitening


def test_whitening_makes_images_of_a_class_differ_alike_in_all_directions(generator):
    classes = torch.arange(40).repeat_interleave(30)
    centres = 20 * torch.randn(40, 6, generator=generator, dtype=torch.float64)
    spread = torch.tensor([3.0, 1.0, 0.5, 0.5, 0.3, 0.1], dtype=torch.float64)
    features = centres[classes] + spread * torch.randn(len(classes), 6, generator=generator, dtype=torch.float64)
    unit = F.normalize(features, dim=-1)

    def deviations(values):
        return torch.cat([values[classes == each] - values[classes == each].mean(0) for each in range(40)])

    whole = deviations(unit @ within_class_whitening(features, classes, 1.0))
    covariance = whole.mT @ whole
    torch.testing.assert_close(covariance, covariance.diagonal().mean() * torch.eye(6, dtype=torch.float64))
    half, none = (within_class_whitening(features, classes, power) for power in (0.5, 0.0))
    torch.testing.assert_close(none, torch.eye(6, dtype=torch.float64))
    product = half @ half
    twice = within_class_whitening(features, classes, 1.0)
    torch.testing.assert_close(product / product.diagonal().mean(), twice)
    with pytest.raises(InputError, match="3 images of 3 classes do not differ within a class"):
        within_class_whitening(torch.eye(3), torch.arange(3), 0.5)
