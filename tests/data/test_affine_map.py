import torch

from l2i.data.batch import AffineMap
from problems import FLOAT64


def random_frame() -> AffineMap:
    return AffineMap(torch.rand(3, 2, dtype=FLOAT64) + 0.5, torch.randn(3, 2, dtype=FLOAT64))


def test_inverse_undoes_a_frame() -> None:
    frame, points = random_frame(), torch.randn(3, 10, dtype=FLOAT64)
    assert torch.allclose(frame.inverse().apply(frame.apply(points)), points)


def test_then_is_one_frame_after_the_other() -> None:
    first, second, points = random_frame(), random_frame(), torch.randn(3, 10, dtype=FLOAT64)
    assert torch.allclose(first.then(second).apply(points), second.apply(first.apply(points)))


def test_x_and_y_move_apart() -> None:
    frame = AffineMap(torch.tensor([[2.0, 1.0]]), torch.tensor([[0.0, 5.0]]))
    assert frame.apply(torch.tensor([[1.0, 1.0, 3.0, 4.0]])).tolist() == [[2.0, 6.0, 6.0, 9.0]]
