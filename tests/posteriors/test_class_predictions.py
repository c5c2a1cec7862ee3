import math

import pytest
import torch
from torch.distributions import Categorical

from nvdp.errors import InputError
from nvdp.posteriors.prediction import ClassPrediction


@pytest.fixture
def prediction(generator):
    return ClassPrediction(torch.randn(6, 3, 4, 5, generator=generator).log_softmax(-1))


def test_probabilities_are_averaged_and_sum_to_one(prediction):
    torch.testing.assert_close(prediction.probabilities, prediction.by_sample.exp().mean(0))
    torch.testing.assert_close(prediction.probabilities.sum(-1), torch.ones(3, 4))
    assert torch.equal(prediction.top_class, prediction.probabilities.argmax(-1))
    torch.testing.assert_close(prediction.confidence, prediction.probabilities.max(-1).values)


def test_entropy_is_that_of_every_classifier_plus_their_disagreement(prediction):
    torch.testing.assert_close(prediction.entropy, Categorical(prediction.probabilities).entropy())
    torch.testing.assert_close(prediction.entropy, prediction.expected_entropy + prediction.disagreement)
    assert (prediction.disagreement > 0).all()


def test_one_classifier_does_not_disagree_with_itself(prediction):
    alone = ClassPrediction(prediction.by_sample[:1])
    assert alone.disagreement.abs().max() < 1e-6


def test_certain_classifiers_that_contradict_each_other_disagree_by_one_bit():
    certain = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).log()
    opposed = ClassPrediction(certain)
    assert opposed.expected_entropy.item() == 0
    assert opposed.disagreement.item() == pytest.approx(math.log(2))


def test_log_prob_takes_numbers_of_classes_or_one_hot_labels(prediction, generator):
    classes = torch.randint(5, (3, 4), generator=generator)
    expected = prediction.probabilities.gather(-1, classes[..., None])[..., 0].log()
    torch.testing.assert_close(prediction.log_prob(classes), expected)
    torch.testing.assert_close(prediction.log_prob(torch.eye(5)[classes]), expected)


def test_components_have_their_own_log_prob_whose_mean_is_below_that_of_the_mixture(prediction, generator):
    classes = torch.randint(5, (3, 4), generator=generator)
    components = prediction.component_log_prob(classes)
    expected = Categorical(logits=prediction.by_sample).log_prob(classes)
    torch.testing.assert_close(components, expected)
    assert (components.mean(0) < prediction.log_prob(classes)).all()


def test_as_a_mixture_it_has_the_moments_of_the_one_hot_label(prediction):
    p = prediction.probabilities
    torch.testing.assert_close(prediction.mean, p)
    torch.testing.assert_close(prediction.std.square(), p * (1 - p))
    torch.testing.assert_close(prediction.spread, prediction.by_sample.exp().std(0, correction=0))


def test_labels_that_do_not_fit_are_refused(prediction):
    with pytest.raises(InputError, match=r"from 0 to 5; expected 0 to 4"):
        prediction.log_prob(torch.tensor([[0, 5, 1, 1]]).expand(3, 4))
    with pytest.raises(InputError, match=r"y has shape \(3, 4, 2\)"):
        prediction.log_prob(torch.zeros(3, 4, 2))
