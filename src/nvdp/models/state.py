"""What a task leaves behind: Σ h(x_i, y_i), the sum of its points' features, and their count n; r = Σ h / n (eq. 3).

A mean over points, plain or weighted, can take in a point, or give one back, without the others. So a state of a
few kilobytes stands for a context of any size: new points cost only themselves, and the points need not be kept.
Sums are in float64, in which adding and taking away features of float32 leaves nothing behind but rounding far below
that of the features.
"""

import hashlib
import struct
import zlib
from dataclasses import astuple, dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.errors import InputError, check_format
from nvdp.models.base import RegressionModel
from nvdp.posteriors.base import Posterior
from nvdp.tasks import PointSet, as_tensor

MAGIC, FORMAT_VERSION = b"NVDPtask", 2
_HEADER = struct.Struct("<8sHB8sII")  # magic, version, single, fingerprint, tasks, features
_CHECKSUM = struct.Struct("<I")  # crc32 of all before it


LARGEST_FEATURE = 1e6  # a float64 sum that has taken in such a number and given it back is right to 1e-10


class PointError(InputError):
    """A point that a state cannot remember; `place` is its task and its number there, from 0."""

    def __init__(self, x: list[float], y: list[float], place: tuple[int, int], where: str = "") -> None:
        shown = ", ".join(f"{name} = {' '.join(f'{value:g}' for value in part)}" for name, part in (("x", x), ("y", y)))
        super().__init__(f"{where}the point {shown} is too far from the data of training to be remembered")
        self.place = place


def encoder_fingerprint(model: RegressionModel) -> bytes:
    """Eight bytes that tell set encoders apart: features of one mean nothing to another."""
    digest = hashlib.blake2b(repr((model.config.x_dim, model.config.y_dim)).encode(), digest_size=8)
    for name, tensor in sorted(model.encoder.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for scale in (model.encoder.x_scale, model.encoder.y_scale):
        digest.update(repr(astuple(scale)).encode())
    return digest.digest()


def feature_sums(
    model: RegressionModel, points: PointSet
) -> tuple[Float[Tensor, "task feature"], Int[Tensor, " task"]]:
    """Σ h(x_i, y_i) over the real points of each task, in float64, and how many there are.

    A point whose features are not finite, or so large that the sum would never be rid of them, is refused.
    """
    model.check(points)
    given, points = points, points.like(next(model.parameters()))
    with torch.no_grad():
        features = model.encoder.encode(points).double()
    kept = (features.abs() <= LARGEST_FEATURE).all(-1)  # False for NaN too
    if not (kept | ~points.mask).all():
        task, point = (~kept & points.mask).nonzero()[0].tolist()
        raise PointError(given.x[task, point].tolist(), given.y[task, point].tolist(), (task, point))
    return (features * points.mask[..., None]).sum(1).cpu(), points.mask.sum(1).cpu()


@dataclass(frozen=True)
class TaskState:
    """The contexts of some tasks as a model remembers them; adding and taking away points gives a new state.

    >>> import nvdp
    >>> model = nvdp.load("gp-nvdp").model
    >>> state = TaskState.of(model, [-1.0, 0.0], [0.3, 0.9]).update([1.0], [0.1])
    >>> scratch = model.adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1])
    >>> torch.allclose(state.posterior().predict([0.5]).mean, scratch.predict([0.5]).mean, atol=1e-5)
    True
    >>> state.forget([1.0], [0.1]).counts, len(state.to_bytes())
    (tensor([2]), 4135)
    """

    model: RegressionModel
    sums: Float[Tensor, "task feature"]  # float64
    counts: Int[Tensor, " task"]
    single: bool = False  # one task given without a task axis; so are its predictions

    def __post_init__(self) -> None:
        if not self.model.remembers:
            name = self.model.config.name
            raise InputError(f"this {name} model needs the points themselves, not only the sum of their features")
        if self.model.training and (self.model.config.encoder.task_norm or self.model.config.rates.norm):
            raise InputError("the model is being trained: what it remembers would not last; call model.eval() first")

    @classmethod
    def empty(cls, model: RegressionModel, tasks: int | None = None) -> Self:
        """Tasks of which nothing has been seen; one without a task axis if their number is left out."""
        count = 1 if tasks is None else tasks
        sums = torch.zeros(count, model.encoder.point_features, dtype=torch.float64)
        return cls(model, sums, torch.zeros(count, dtype=torch.int64), tasks is None)

    @classmethod
    def of(cls, model: RegressionModel, x: Any, y: Any = None, mask: Tensor | None = None) -> Self:
        """The state after a context, given as ``model.adapt`` takes it."""
        points = x if isinstance(x, PointSet) else PointSet.of(x, y, mask)
        single = not isinstance(x, PointSet) and as_tensor(x, "x").dim() < 3
        return cls(model, *feature_sums(model, points), single)

    def update(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Self:
        """The state with more points; costs only these."""
        return self._moved(x, y, mask, 1)

    def forget(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Self:
        """The state without some points that it had taken in; it cannot always tell whether it had."""
        return self._moved(x, y, mask, -1)

    def _moved(self, x: Any, y: Any, mask: Tensor | None, sign: int) -> Self:
        other = TaskState.of(self.model, x, y, mask)
        if len(other.sums) != len(self.sums):
            raise InputError(f"the points are of {len(other.sums)} tasks; this state is of {len(self.sums)}")
        counts = self.counts + sign * other.counts
        if (counts < 0).any():
            task = int((counts < 0).nonzero()[0])
            raise InputError(
                f"cannot forget {int(other.counts[task])} points of a task that has seen {int(self.counts[task])}"
            )
        # With no points left there is nothing to remember, not even rounding.
        sums = (self.sums + sign * other.sums) * (counts > 0)[:, None]
        self.model.encoder.check_sums(sums)
        return replace(self, sums=sums, counts=counts)

    def representation(self) -> Float[Tensor, "task r"]:
        """r of every task, as the encoder and the model make it from the points themselves."""
        like = next(self.model.parameters())
        counts = self.counts.double()[:, None]
        r = self.model.encoder.of_sums(self.sums, counts).to(like)
        return self.model.normalised((r,), [(self.counts > 0).to(like.device)])[0]

    def posterior(self) -> Posterior:
        """The posterior that ``model.adapt`` gives for all the points together."""
        with torch.no_grad():
            posterior = self.model.posterior(self.representation())
        posterior.single, posterior.memory = self.single, self
        return posterior

    def to_bytes(self) -> bytes:
        """The state as bytes, with the encoder's fingerprint and a checksum."""
        tasks, features = self.sums.shape
        header = _HEADER.pack(MAGIC, FORMAT_VERSION, self.single, encoder_fingerprint(self.model), tasks, features)
        numbers = self.counts.numpy().astype("<i8").tobytes() + self.sums.numpy().astype("<f8").tobytes()
        body = header + numbers
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def from_bytes(cls, model: RegressionModel, data: bytes) -> Self:
        """What `to_bytes` wrote; bytes that are damaged or of another model are refused."""
        if len(data) < _HEADER.size + _CHECKSUM.size or not data.startswith(MAGIC):
            raise InputError(f"{len(data)} bytes are not a task's state, or were cut short")
        body, (expected,) = data[: -_CHECKSUM.size], _CHECKSUM.unpack(data[-_CHECKSUM.size :])
        _, version, single, fingerprint, tasks, features = _HEADER.unpack(body[: _HEADER.size])
        check_format("the state", version, FORMAT_VERSION, "adapt to the points again")
        if zlib.crc32(body) != expected or len(body) != _HEADER.size + 8 * tasks * (1 + features):
            raise InputError("the task's state is damaged: its checksum does not match")
        if fingerprint != (own := encoder_fingerprint(model)):
            raise InputError(f"the state is of the encoder {fingerprint.hex()}; this model's is {own.hex()}")
        counts = np.frombuffer(body, "<i8", tasks, _HEADER.size).astype(np.int64)
        sums = np.frombuffer(body, "<f8", tasks * features, _HEADER.size + 8 * tasks).astype(np.float64)
        return cls(model, torch.from_numpy(sums.reshape(tasks, features)), torch.from_numpy(counts), bool(single))


def posterior_from_bytes(model: RegressionModel, data: bytes) -> Posterior:
    """The posterior whose ``to_bytes`` gave these bytes, under the same model.

    >>> import nvdp
    >>> model = nvdp.load("gp-nvdp").model
    >>> data = TaskState.of(model, [0.0], [0.5]).posterior().to_bytes()
    >>> posterior_from_bytes(model, data).update([1.0], [0.2]).predict([0.5]).mean.shape
    torch.Size([1, 1])
    """
    return TaskState.from_bytes(model, data).posterior()
