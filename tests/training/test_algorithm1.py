"""Algorithm 1 again, plainly, by create_graph: the trainer's parameters agree after three steps."""

import pytest
import torch
from torch.autograd import grad
from torch.nn import functional as F

from l2i import Trainer, recipes, replace


@pytest.mark.parametrize("rule", ["exact", "last_layer"])
@pytest.mark.parametrize("update", ["l2i", "l2i-paper", "l2i-paper, the text's inner cost"])
@pytest.mark.parametrize("labels", ["output", "learnable"])
@pytest.mark.parametrize("method", ["mean-teacher", "mixmatch"])
def test_trainer_follows_algorithm_1(method, labels, update, rule):
    cell, _, text = update.partition(",")
    paper, mm = cell == "l2i-paper", method == "mixmatch"
    eta = 0.5 if paper else None
    inner = {"inner_supervised": True, "supervised_eta": eta} if text else {"eta": eta}
    l2i = {"labels": labels, "hypergradient": rule, "paper": {**inner, "label_lr": 0.1}}
    sections = {
        "l2i": l2i,
        "method": {"weight": 2.0, "rampup": 2},
        "optim": {"weight_decay": 0.01, "ema_decay": 0.6},
    }
    run = replace(
        recipes.get(f"digits/{method}-{cell}-40"), device="cpu", precision="float64", **sections
    )
    trainer, model = Trainer(run), Trainer(run).model
    trainer.gradients.outer_method = run.method  # the method's own labels in the outer step too
    shapes = dict(trainer.model.named_parameters())
    theta, teacher = (torch.cat([p.detach().flatten() for p in shapes.values()]) for _ in range(2))
    adam = torch.optim.Adam([theta.requires_grad_()], lr=run.optim.lr)
    moved = torch.cat(
        [p.new_full((p.numel(),), rule == "exact" or n[:4] == "head") for n, p in shapes.items()]
    )

    def net(w, x):
        pieces = zip(shapes.items(), w.split([p.numel() for p in shapes.values()]), strict=True)
        return torch.func.functional_call(
            model, {n: piece.view_as(p) for (n, p), piece in pieces}, (x,)
        )

    def impute(w, u):  # MixMatch: two views, temperature 1/2
        return F.normalize(
            sum(net(w, x).softmax(1) for x in [u.weak, *[u.weak2] * mm]) ** (1 + mm), p=1
        )

    def costs(b, z, joint=False):  # C^T and C^U; MixMatch's inner step takes both in one forward
        y, n = torch.cat([F.one_hot(b.labeled.y, 10).to(z), *[z] * mm, z]), len(b.labeled.x)
        x = torch.cat([b.labeled.x, *[b.unlabeled.weak] * mm, b.unlabeled.weak2])
        if mm:
            shape, share = (-1, 1, 1, 1), torch.maximum(b.mix.ratio, 1 - b.mix.ratio)
            x, y = (
                torch.lerp(r[b.mix.permutation], r, share.view(shape[: r.ndim])) for r in (x, y)
            )
        f = net(theta, x) if joint else torch.cat([net(theta, x[:n]), net(theta, x[n:])])
        return F.cross_entropy(f[:n], y[:n]), F.mse_loss(f[n:].softmax(1), y[n:])

    def outer(b):  # lines 7 to 10; the normalized rule takes the slope of C^H(θ*) in η at 0
        z, rate = impute(theta, b.unlabeled), theta.new_tensor(eta or 0.0, requires_grad=True)
        leaf = (p := z.detach().log().requires_grad_()).softmax(1)
        inner = grad(sum(costs(b, leaf, joint=mm and text)[not text :]), theta, create_graph=True)[
            0
        ]
        c_h = F.cross_entropy(net(theta - rate * moved * inner, b.holdout.x), b.holdout.y)
        d_z, d_p = grad(c_h if paper else grad(c_h, rate, create_graph=True)[0], (leaf, p))
        new = (p - 0.1 * d_p * (1 if paper else len(d_p) / d_p.norm())).softmax(1).detach()
        return grad(z, theta, d_z)[0] if labels == "output" else grad(costs(b, new)[1], theta)[0]

    for t, b in enumerate(map(trainer.loader.draw_batch, range(3))):  # 3
        c_t, c_u = costs(b, impute(theta if mm else teacher, b.unlabeled).detach())  # 4, 5
        base = grad(c_t + min(2, t) * c_u, theta)[0]  # λ grows to 2 in 2 steps
        for line in (6, 11)[: 1 + paper]:
            g = base if paper and line == 6 else outer(b)
            theta.grad = g if paper else base + 0.3 * base.norm() / g.norm() * g
            adam.step()
        teacher.lerp_(theta.data.mul_(0.99), 1 - min(1 - 1 / (t + 1), 0.6))
        trainer.step(t)
    assert (
        torch.cat([p.flatten() for p in shapes.values()]) - theta
    ).norm() <= 1e-10 * theta.norm()
