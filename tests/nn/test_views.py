import torch

from nvdp.nn.views import image_views


def test_warped_views_turn_scale_and_shear_in_both_directions():
    bar = torch.zeros(1, 1, 28, 28)
    bar[..., 4:24, 13:15] = 1  # upright
    views = image_views(bar, "warped")
    assert torch.equal(views[0], bar)
    rows, columns = torch.meshgrid(torch.arange(28.0) - 13.5, torch.arange(28.0) - 13.5, indexing="ij")

    def moments(image):
        share = image[0, 0] / image.sum()
        return (share * rows * columns).sum(), (share * rows**2).sum()

    slants, heights = zip(*map(moments, views[5:]), strict=True)
    assert slants[0] * slants[3] < 0  # turned to either side
    assert heights[1] < heights[4]  # scaled down and up
    assert slants[2] * slants[5] < 0  # sheared to either side
    assert abs(slants[1]) < 0.1 * abs(slants[0])
