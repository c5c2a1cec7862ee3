"""Views of an image: copies that are moved, mirrored, turned, scaled or sheared, over which features are averaged."""

import math

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

VIEWS = ("image", "moved", "mirrored", "warped")
# A moved copy moves by 1/MOVE of the image's size; a turn in radians, a change of scale, a shear. Other numbers need
# other names of views.
MOVE, TURN, SCALE, SHEAR = 20, 0.2, 0.2, 0.2


def affine(
    images: Float[Tensor, "image channel row column"], maps: Float[Tensor, "image 2 3"]
) -> Float[Tensor, "image channel row column"]:
    """Images under affine maps of their own; what comes in is 0."""
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def image_views(images: Float[Tensor, "image channel row column"], views: str) -> list[Tensor]:
    """The views of images whose features are averaged.

    ``image``: the image as it is. ``moved``: moved to four corners too; what comes in repeats the edge. ``mirrored``:
    these and the mirror image. ``warped``: ``moved`` and six copies that are turned, scaled or sheared; what comes in
    is 0.

    >>> import torch
    >>> [len(image_views(torch.zeros(2, 1, 28, 28), views)) for views in VIEWS]
    [1, 5, 6, 11]
    """
    if views == "image":
        return [images]
    size = images.shape[-1]
    far = max(1, size // MOVE)
    padded = F.pad(images, (far,) * 4, mode="replicate")
    corners = [(row, column) for row in (0, 2 * far) for column in (0, 2 * far)]
    moved = [images, *(padded[..., row : row + size, column : column + size] for row, column in corners)]
    if views == "mirrored":
        return [*moved, images.flip(-1)]
    return [*moved, *_warped(images)] if views == "warped" else moved


def _warped(images: Float[Tensor, "image channel row column"]) -> list[Tensor]:
    maps = []
    for sign in (1, -1):
        cos, sin = math.cos(TURN), math.sin(sign * TURN)
        scale, shear = 1 + sign * SCALE, sign * SHEAR
        maps += [[[cos, -sin, 0], [sin, cos, 0]], [[scale, 0, 0], [0, scale, 0]], [[1, shear, 0], [0, 1, 0]]]
    return [affine(images, images.new_tensor(each).expand(len(images), 2, 3)) for each in maps]
