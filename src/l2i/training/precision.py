"""Mixed precision: bf16 inside forwards; parameters, costs and look-ahead steps stay in float32."""

import torch
from torch import Tensor, nn


class Autocast(nn.Module):
    """`model` with its forward in bf16 and its output in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        # no cache: the look-ahead calls one module at several parameters
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            outputs: Tensor = self.model(x)
        return outputs.float()
