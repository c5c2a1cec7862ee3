"""The recipe for labelled vectors: the few-shot models on features, standardised column by column."""

from nvdp.models.fewshot_config import FewShotConfig
from nvdp.models.registry import check_serves, model_spec
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig
from nvdp.training.fewshot_presets import NVDP_FEWSHOT_KL

WIDTH, META_WIDTH = 128, 64


def class_config(name: str, features: int, way: int, steps: int, seed: int) -> RunConfig:
    """The configuration of a fit of a classifier, which is a run on the task csv.

    >>> class_config("protonet", features=3, way=4, steps=10, seed=0).model.x_dim
    3
    """
    spec = model_spec(name)
    model = FewShotConfig(
        name,
        max(2, way),
        extractor="none",
        features=features,
        normalise=False,  # a vector of few numbers has little left after it
        width=WIDTH,
        meta_width=META_WIDTH,
        decoder_sees="x,r",
    )
    check_serves(model)
    assert spec.classifier is not None
    return RunConfig(
        task="csv",
        model=model,
        objective=spec.classifier.objective,
        kl=NVDP_FEWSHOT_KL if name == "nvdp" else KLScale("elbo", 1.0),
        steps=steps,
        tasks_per_step=8,
        learning_rate=2e-3,
        warmup_steps=min(50, steps // 10),
        gradient_clip=10.0,
        seed=seed,
    )
