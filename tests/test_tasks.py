import math

import pytest
import torch

from l2i.data.batch import AffineMap
from l2i.errors import InputError
from l2i.tasks import Classification, Regression
from problems import FLOAT64


def regression() -> Regression:
    return Regression.from_targets(torch.randn(50, 4, dtype=FLOAT64) * 3 + 7, points=True)


def test_classification_distance_is_a_mean_over_classes() -> None:
    task, outputs = Classification(num_outputs=4), torch.randn(6, 4, dtype=FLOAT64)
    z = torch.rand(6, 4, dtype=FLOAT64).softmax(1)
    wanted = [
        sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) / 4
        for a, b in zip(outputs.softmax(1).tolist(), z.tolist(), strict=True)
    ]
    assert task.distance(outputs, z).tolist() == pytest.approx(wanted)


def test_cross_entropy_takes_classes_and_distributions_alike() -> None:
    task, outputs, y = Classification(num_outputs=4), torch.randn(6, 4), torch.randint(4, (6,))
    assert torch.allclose(
        task.sample_losses(outputs, y), task.sample_losses(outputs, task.to_target(y))
    )


def test_label_and_logits_are_inverse() -> None:
    task, outputs = Classification(num_outputs=4), torch.randn(6, 4)
    z = task.to_label(outputs)
    assert torch.allclose(task.to_label(task.to_logits(z)), z)


def test_commit_takes_the_argmax_where_it_is_confident() -> None:
    z = torch.tensor([[0.9, 0.05, 0.05], [0.4, 0.35, 0.25]])
    imputed = Classification(num_outputs=3).harden(z, 0.8)
    assert imputed.z.tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert imputed.weight.tolist() == [1.0, 0.0]


def test_classification_error_is_in_per_cent() -> None:
    outputs = torch.eye(4)
    assert float(Classification(num_outputs=4).metric(outputs, torch.tensor([0, 1, 2, 0]))) == 25.0


def test_targets_are_standardised_and_back() -> None:
    y = torch.randn(50, 4, dtype=FLOAT64) * 3 + 7
    task = Regression.from_targets(y)
    encoded = task.encode(y)
    assert torch.allclose(encoded.mean(0), torch.zeros(4, dtype=FLOAT64), atol=1e-12)
    assert torch.allclose(encoded.std(0, correction=0), torch.ones(4, dtype=FLOAT64))
    assert torch.allclose(task.decode(encoded), y)


def test_a_constant_target_is_not_divided_by_zero() -> None:
    task = Regression.from_targets(torch.full((5, 1), 3.0))
    assert task.encode(torch.tensor([[4.0]])).tolist() == [[1.0]]


def test_regression_metric_is_the_rmse_in_the_targets_units() -> None:
    task = regression()
    y = torch.randn(20, 4, dtype=FLOAT64)
    assert float(task.metric(task.encode(y + 2.0), y)) == pytest.approx(2.0)


def test_a_label_is_carried_to_another_crop_in_pixels() -> None:
    task, y = regression(), torch.rand(3, 4, dtype=FLOAT64)
    offset = torch.tensor([[1.0, -2.0]], dtype=FLOAT64).repeat(3, 1)
    moved = task.decode(task.transport_label(task.encode(y), AffineMap.from_offset(offset)))
    assert torch.allclose(moved, y + torch.tensor([1.0, -2.0, 1.0, -2.0], dtype=FLOAT64))


def test_targets_that_are_no_points_stay_when_the_image_moves() -> None:
    task, y = Regression.from_targets(torch.randn(9, 3)), torch.rand(3, 3)
    assert torch.equal(task.transport_label(y, AffineMap.from_offset(torch.ones(3, 2))), y)


@pytest.mark.parametrize(("shape", "points"), [((9,), False), ((9, 3), True)])
def test_targets_of_the_wrong_shape_are_named(shape: tuple[int, ...], points: bool) -> None:
    with pytest.raises(InputError, match=r"use \[N, D\]"):
        Regression.from_targets(torch.randn(shape), points=points)


def test_classes_have_no_geometry() -> None:
    z = torch.rand(3, 4)
    assert torch.equal(
        Classification(num_outputs=4).transport_label(z, AffineMap.from_offset(torch.ones(3, 2))), z
    )


def test_landmarks_are_measured_in_distances_between_the_eyes() -> None:
    """Eyes 10 apart; the first face is right, the second off by (3, 4), half an eye distance."""
    y = torch.tensor([[0.0, 0, 10, 0, 5, 5], [0.0, 0, 6, 8, 5, 5]], dtype=FLOAT64)
    task = Regression.from_targets(y + torch.randn_like(y), points=True, eyes=(0, 1))
    off = y + torch.tensor([[0.0] * 6, [3.0, 4.0] * 3], dtype=FLOAT64)
    actual = task.metrics(task.encode(off), y)
    assert {name: round(float(value), 9) for name, value in actual.items()} == {
        "error (%)": 25.0,
        "failure rate (%)": 50.0,
    }
    assert task.metric_name == "error (%)"


def test_top_5_counts_where_there_are_many_classes() -> None:
    outputs = torch.arange(12.0).repeat(4, 1)  # the last class first, then the one before it, …
    actual = Classification(num_outputs=12).metrics(outputs, torch.tensor([11, 7, 6, 0]))
    assert {name: float(value) for name, value in actual.items()} == {
        "error (%)": 75.0,
        "top-5 error (%)": 50.0,
    }
    assert list(Classification(num_outputs=10).metrics(torch.eye(10), torch.arange(10))) == [
        "error (%)"
    ]


def test_a_face_has_failed_above_ten_per_cent() -> None:
    y = torch.tensor([[0.0, 0, 10, 0, 5, 5]] * 2, dtype=FLOAT64)
    task = Regression.from_targets(y + torch.randn_like(y), points=True, eyes=(0, 1))
    off = y + torch.tensor([[0.9, 0.0] * 3, [1.1, 0.0] * 3], dtype=FLOAT64)
    assert float(task.metrics(task.encode(off), y)["failure rate (%)"]) == 50.0


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_a_label_as_confident_as_the_threshold_counts(threshold: float) -> None:
    below = threshold - 2**-30
    z = torch.tensor([[threshold, 1 - threshold], [1 - below, below]], dtype=FLOAT64)
    z[1, 0] = 0.0  # below the threshold in both classes
    imputed = Classification(num_outputs=2).harden(z, threshold)
    assert imputed.weight.tolist() == [1.0, 0.0]
    assert imputed.z.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_a_face_off_by_exactly_ten_per_cent_has_not_failed() -> None:
    y = torch.tensor([[0.0, 0, 10, 0, 5, 5]], dtype=FLOAT64)
    plain = {"mean": torch.zeros(6, dtype=FLOAT64), "std": torch.ones(6, dtype=FLOAT64)}
    task = Regression(num_outputs=6, points=True, eyes=(0, 1), **plain)
    off = torch.tensor([[0.0, 1.0] * 3], dtype=FLOAT64)
    assert {n: float(v) for n, v in task.metrics(y + off, y).items()} == {
        "error (%)": 10.0,
        "failure rate (%)": 0.0,
    }


def test_landmark_errors_are_means_over_the_points_of_a_face() -> None:
    """Only the nose is off, by an eye distance of the third and the second point."""
    y = torch.tensor([[7.0, 7, 0, 0, 3, 4]], dtype=FLOAT64)
    task = Regression.from_targets(torch.randn(9, 6, dtype=FLOAT64), points=True, eyes=(1, 2))
    off = y + torch.tensor([[3.0, -4, 0, 0, 0, 0]], dtype=FLOAT64)
    assert task.compute_landmark_errors(off, y).tolist() == pytest.approx([1 / 3])


def test_several_targets_are_measured_in_their_standard_deviations() -> None:
    y = torch.tensor([[0.0, 0.0], [2.0, 200.0]], dtype=FLOAT64)  # of standard deviations 1 and 100
    task = Regression.from_targets(y)
    off = y + torch.tensor([[3.0, 400.0]], dtype=FLOAT64)
    assert float(task.metric(task.encode(off), y)) == pytest.approx(math.sqrt((9 + 16) / 2))
    assert task.uses_std_units and "standard deviations" in task.metric_description
    one = Regression.from_targets(y[:, 1:])
    assert float(one.metric(one.encode(off[:, 1:]), y[:, 1:])) == pytest.approx(400.0)
    assert not one.uses_std_units and "the targets' units" in one.metric_description


def test_regression_losses_are_means_over_the_targets() -> None:
    task = Regression.from_targets(torch.randn(9, 3))
    outputs, target = torch.tensor([[1.0, 2.0, 3.0], [5.0] * 3]), torch.tensor([[0.0], [5.0]])
    target = target.repeat(1, 3)
    assert task.sample_losses(outputs, target).tolist() == pytest.approx([14 / 3, 0.0])
    assert float(task.loss(outputs, target)) == pytest.approx(7 / 3)


def test_chance_is_a_uniform_guess_or_the_mean() -> None:
    classes = Classification(num_outputs=7)
    uniform = torch.zeros(1, 7, dtype=FLOAT64)
    assert classes.chance_loss == pytest.approx(float(classes.loss(uniform, torch.tensor([3]))))
    y = torch.randn(40, 2, dtype=FLOAT64) * 5 + 3
    targets = Regression.from_targets(y)
    encoded = targets.encode(y)
    mean_loss = targets.loss(torch.zeros_like(encoded), encoded)
    assert targets.chance_loss == pytest.approx(float(mean_loss))


def test_a_regression_label_counts_whatever_the_threshold_and_keeps_its_gradient() -> None:
    z = torch.randn(4, 3, requires_grad=True)
    imputed = regression().harden(z, 2.0)
    assert imputed.z is z and imputed.weight.tolist() == [1.0] * 4


def test_losses_are_told_for_each_sample_and_costs_are_their_means() -> None:
    outputs = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]], dtype=FLOAT64)
    task, y = Classification(num_outputs=2), torch.tensor([0, 1])
    wanted = [math.log(2), math.log(4)]
    assert task.sample_losses(outputs, y).tolist() == pytest.approx(wanted)
    soft = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=FLOAT64)
    mixed = 0.25 * math.log(4 / 3) + 0.75 * math.log(4)
    assert task.sample_losses(outputs, soft).tolist() == pytest.approx([math.log(2), mixed])
    assert float(task.loss(outputs, y)) == pytest.approx(sum(wanted) / 2)


def test_a_coordinate_that_hardly_varies_is_standardised_all_the_same() -> None:
    y = torch.tensor([[0.0, 7.0], [0.5, 7.0]], dtype=FLOAT64)
    task = Regression.from_targets(y)
    assert task.std.tolist() == [0.25, 1.0] and task.mean.tolist() == [0.25, 7.0]
    assert task.encode(y).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert not task.points and task.eyes is None


def test_targets_are_points_or_faces_only_where_they_are_said_to_be() -> None:
    mean, std = torch.zeros(4), torch.ones(4)
    task = Regression(num_outputs=4, mean=mean, std=std)
    assert (task.points, task.eyes, task.metric_name) == (False, None, "RMSE")
    assert task.metric_description == (
        "root mean squared error, in standard deviations of the labelled targets"
    )
    faces = Regression(num_outputs=4, mean=mean, std=std, points=True, eyes=(0, 1))
    assert faces.metric_name == "error (%)"
    assert "distance between the eyes" in faces.metric_description


def test_targets_are_standardised_as_often_as_they_count() -> None:
    y = torch.tensor([[0.0, 5.0], [10.0, 5.0]], dtype=torch.float64)
    weighted = Regression.from_targets(y, weight=torch.tensor([1.0, 4.0]))
    repeated = Regression.from_targets(y[[0, 1, 1, 1, 1]])
    assert weighted.mean.tolist() == pytest.approx([8.0, 5.0])
    assert weighted.std.tolist() == pytest.approx([4.0, 1.0])
    assert repeated.mean.tolist() == pytest.approx(weighted.mean.tolist())
    assert repeated.std.tolist() == pytest.approx(weighted.std.tolist())
    constant = torch.full((7, 1), 0.1, dtype=torch.float64)
    for weight in (None, torch.rand(7, dtype=torch.float64)):
        assert Regression.from_targets(constant, weight=weight).std.item() == 1.0
    equal = Regression.from_targets(y, weight=torch.full((2,), 7.0))
    assert equal.std.tolist() == pytest.approx(Regression.from_targets(y).std.tolist())
