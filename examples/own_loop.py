"""L2I in a plain PyTorch loop: `last_layer` and the line after it are all that is added to a consistency method."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from l2i.bilevel import Imputed, Student, last_layer, normalized_sum, trainable

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
order = torch.randperm(len(x))
labeled, unlabeled, test = order[:40], order[40:1200], order[1200:]

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
params = trainable(model)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for _ in range(500):
    u = x[unlabeled[torch.randint(len(unlabeled), (64,))]]
    z = model(u + 0.1 * torch.randn_like(u)).softmax(1)
    student = Student(u + 0.3 * torch.randn_like(u), lambda f, imputed: F.mse_loss(f.softmax(1), imputed.z))
    imputed = Imputed(z, torch.ones(64))
    cost = F.cross_entropy(model(x[labeled]), y[labeled]) + 10 * student.cost_of(model, imputed.detach())
    base = dict(zip(params, torch.autograd.grad(cost, params.values()), strict=True))

    d_z = last_layer(
        model, params, student, imputed, lambda net: F.cross_entropy(net(x[labeled]), y[labeled]), eta=None
    )
    outer = dict(zip(params, torch.autograd.grad(z, params.values(), d_z), strict=True))

    for name, gradient in normalized_sum(base, outer, rho=0.3).items():
        params[name].grad = gradient
    optimizer.step()

with torch.no_grad():
    error = (model(x[test]).argmax(1) != y[test]).float().mean()
print(f"test error {100 * error:.1f} %")
