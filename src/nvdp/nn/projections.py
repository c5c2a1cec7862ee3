"""Linear maps of an extractor's features, found from those of training images: fewer numbers, and their scales."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from nvdp.errors import InputError

SMALLEST_VARIANCE = 1e-4  # floor of a variance within classes, relative to the largest one


def principal_projection(
    features: Float[Tensor, "image feature"], components: int
) -> Float[Tensor, "feature component"]:
    """The orthonormal projection that keeps most of the squares of features at unit length.

    This is principal component analysis without centring, as cosines are to be kept. The largest entry of every column
    is positive, so that the result does not depend on the signs of an eigensolver.

    >>> principal_projection(torch.tensor([[3.0, 0.1], [-2.0, 0.0], [0.0, 1.0]]), 1).round()
    tensor([[1.],
            [0.]])
    """
    unit = F.normalize(features.double(), dim=-1)
    projection = torch.linalg.eigh(unit.mT @ unit).eigenvectors.flip(-1)[:, :components]
    largest = projection.gather(0, projection.abs().argmax(0, keepdim=True))
    return (projection * largest.sign()).to(features.dtype)


def within_class_whitening(
    features: Float[Tensor, "image feature"], classes: Int[Tensor, " image"], power: float
) -> Float[Tensor, "feature feature"]:
    """The map W^(−power/2) of features at unit length, W their covariance within classes; of mean diagonal 1.

    Directions in which images of one class differ count for less. With a power of 1 images of a class differ alike in
    all directions whose variance is above the floor.

    >>> features = torch.tensor([[1.0, 0.5], [1.0, -0.5], [0.8, 1.0], [1.2, -1.0]])
    >>> within_class_whitening(features, torch.tensor([0, 0, 1, 1]), 1.0).diagonal() > 1
    tensor([ True, False])
    """
    unit = F.normalize(features.double(), dim=-1)
    present, classes = classes.unique(return_inverse=True)
    sums = unit.new_zeros(len(present), unit.shape[1]).index_add_(0, classes, unit)
    within = unit - (sums / torch.bincount(classes)[:, None])[classes]
    variances, directions = torch.linalg.eigh(within.mT @ within)
    if not variances[-1] > 0:
        raise InputError(f"{len(unit)} images of {len(present)} classes do not differ within a class; expected some to")
    scales = variances.clamp(min=SMALLEST_VARIANCE * variances[-1].item()) ** (-power / 2)
    whitening = (directions * scales) @ directions.mT
    return (whitening / whitening.diagonal().mean()).to(features.dtype)
