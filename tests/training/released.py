"""The released code of the paper for CIFAR, in one function: train-L2I-O and train-L2I-L.

It shares nothing with the library but the network. Batches are tuples of labelled inputs and
classes, two views of the unlabelled inputs, and hold-out inputs and classes. The released code
interleaves labelled and unlabelled rows of a step; here they pass in one forward.
"""

import copy

import torch
from torch.autograd import grad
from torch.func import functional_call
from torch.nn.functional import cross_entropy, log_softmax, softmax

INNER_RATES = {"output": 0.1, "learnable": 0.2}  # 50 and 100 times the learning rate 0.002


def train_released(model, batches, *, learnable, lr, weights, decay, ema):
    """Train the model on the batches; return its parameters after each of them."""
    target, history = copy.deepcopy(model), []
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for t, (x, y, u, u2, x_val, y_val) in enumerate(batches):
        with torch.no_grad():
            targets_u = softmax(target(u2), dim=1)
        logits = model(torch.cat([x, u]))
        loss_x = cross_entropy(logits[: len(x)], y)
        loss_u = torch.mean((softmax(logits[len(x) :], dim=1) - targets_u) ** 2)
        optimizer.zero_grad()
        (loss_x + weights[t] * loss_u).backward()
        optimizer.step()

        imputing = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
        p_u = functional_call(model, imputing, (u2,))  # the labels' own parameters, equal to θ
        if learnable:
            p_u = p_u.detach().requires_grad_()
        targets_u, probs_u = softmax(p_u, dim=1), softmax(model(u), dim=1)
        inner = torch.sum((probs_u - targets_u) ** 2)
        slopes = grad(inner, list(model.parameters()), create_graph=True)
        rate = INNER_RATES["learnable" if learnable else "output"]
        adapted = {
            name: p.detach() - rate * slope
            for (name, p), slope in zip(model.named_parameters(), slopes, strict=True)
        }
        outs_val = functional_call(model, adapted, (x_val,))
        loss_val = -log_softmax(outs_val, dim=1)[torch.arange(len(y_val)), y_val].mean()
        optimizer.zero_grad()
        if learnable:
            moved = p_u.detach() - grad(loss_val, p_u)[0]
            torch.mean((softmax(model(u), dim=1) - softmax(moved, dim=1)) ** 2).backward()
        else:
            slopes = grad(loss_val, list(imputing.values()))
            for p, slope in zip(model.parameters(), slopes, strict=True):
                p.grad = slope
        optimizer.step()
        for p, q in zip(model.parameters(), target.parameters(), strict=True):
            p.data *= 1 - decay
            q.data.lerp_(p.data, 1 - min(1 - 1 / (t + 1), ema))
        history.append([p.detach().clone() for p in model.parameters()])
    return history
