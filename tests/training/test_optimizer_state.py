"""An optimizer's moments, read from a file, lie in memory as its parameters do, for one kernel."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from l2i.config import Optim
from l2i.training.optimizer import Stepper


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_moments_from_a_file_lie_as_the_parameters_do(name: str, tmp_path: Path) -> None:
    def made() -> Stepper:
        kernel = torch.arange(24.0).view(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        return Stepper(
            {"kernel": kernel.requires_grad_(), "bias": torch.zeros(2, requires_grad=True)},
            Optim(name=name),
        )

    first, second, rate = made(), made(), torch.ones(())
    gradient = {"kernel": torch.randn(2, 3, 2, 2), "bias": torch.randn(2)}
    first(gradient, rate)
    save_file(
        {key: value.contiguous() for key, value in first.state_dict().items()},
        tmp_path / "moments.safetensors",
    )
    second.load_state_dict(load_file(tmp_path / "moments.safetensors"))
    for key, value in second.state_dict().items():
        assert torch.equal(value, first.state_dict()[key])
        if value.ndim == 4:
            assert value.stride() == second.params["kernel"].stride() != value.contiguous().stride()
