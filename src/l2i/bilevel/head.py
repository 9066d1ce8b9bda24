"""Φ as a feature encoder and a linear classifier (section 4, «Learning to impute efficiently»)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from l2i.bilevel.functional import Net, Params
from l2i.bilevel.problem import Activations
from l2i.errors import InputError


@dataclass(frozen=True)
class Head:
    """The classifier of a model: a module, and the names of its parameters among the model's."""

    module: nn.Linear
    weight: str
    bias: str | None

    @staticmethod
    def from_model(model: nn.Module, head: nn.Linear | str | None = None) -> Head:
        """Return the head given or named, or the model's last nn.Linear."""
        module = _find_linear(model, head)
        named_params = model.named_parameters(remove_duplicate=False)
        named_ids = [(id(p), name) for name, p in named_params if p.requires_grad]
        names = dict(named_ids)
        head_params = [p for p in (module.weight, module.bias) if p is not None]
        if any(sum(key == id(p) for key, _ in named_ids) != 1 for p in head_params):
            raise InputError(
                f"the head {module} is frozen or shares its weights; use hypergradient='exact'"
            )
        bias_name = None if module.bias is None else names[id(module.bias)]
        return Head(module, names[id(module.weight)], bias_name)

    @property
    def names(self) -> list[str]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def apply(self, features: Tensor, params: Params) -> Tensor:
        """Return the head's outputs at `params`; linear, so a direction gives a tangent."""
        bias = None if self.bias is None else params[self.bias]
        return F.linear(features, params[self.weight], bias)

    def forward_with_features(self, net: Net, x: Tensor) -> Activations:
        """Return Φ^f(x) and Φ(x), for a net whose output is its head's output."""
        recorded: list[Activations] = []
        dtype = self.module.weight.dtype

        def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            recorded.append(Activations(inputs[0].to(dtype), output.to(dtype)))
            return recorded[-1].outputs

        handle = self.module.register_forward_hook(record)
        try:
            outputs = net(x)
        finally:
            handle.remove()
        if len(recorded) != 1 or outputs is not recorded[0].outputs:
            raise InputError(
                f"'last_layer' needs a model whose output is that of its head {self.module}; "
                "remove what follows the head, name another head, or use hypergradient='exact'"
            )
        return recorded[0]


def _find_linear(model: nn.Module, head: nn.Linear | str | None) -> nn.Linear:
    if isinstance(head, nn.Linear):
        return head
    if head is not None:
        candidate = dict(model.named_modules()).get(head)
        if isinstance(candidate, nn.Linear):
            return candidate
        raise InputError(
            f"head='{head}' is not an nn.Linear of {type(model).__name__}; name one that is"
        )
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linears:
        raise InputError(
            f"{type(model).__name__} has no nn.Linear to serve as its head; "
            "use hypergradient='exact'"
        )
    return linears[-1]
