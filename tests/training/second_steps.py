"""The paper's update again: an Adam that takes two steps per training step."""

from collections.abc import Callable

import torch

from l2i import Run, Trainer
from l2i.data.batch import Batch

STEPS = 3


def follow_second_step(
    run: Run, outer: Callable[[Trainer, Batch], list[torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parameters after steps of the paper's update, and by an Adam of two steps each."""
    trainer = Trainer(run)
    params = [p.detach().clone().requires_grad_() for p in trainer.model.parameters()]
    adam = torch.optim.Adam(params, lr=run.optim.lr)
    for t in range(STEPS):
        batch = trainer.loader.draw_batch(t)
        base = trainer.compute_base_gradient(batch, t)
        for p, g in zip(params, base.values(), strict=True):
            p.grad = g.clone()
        adam.step()
        ahead = Trainer(run)
        for p, q in zip(ahead.model.parameters(), params, strict=True):
            p.data.copy_(q.data)
        for p, g in zip(params, outer(ahead, batch), strict=True):
            p.grad = g
        adam.step()
        with torch.no_grad():
            for p in params:
                p *= 1 - run.optim.weight_decay
        trainer.step(t)
    ours = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    return ours, torch.cat([p.detach().flatten() for p in params])
