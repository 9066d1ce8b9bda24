"""L2I in a plain PyTorch loop; to see whether it helps, compare with rho=0 over several seeds."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from l2i.bilevel import Imputed, Problem, Student, last_layer, normalized_sum, trainable

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
labeled, unlabeled, test = torch.randperm(len(x)).split([40, 1160, len(x) - 1200])

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
params = trainable(model)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)


def c_h(net):
    return cross_entropy(net(x[labeled]), y[labeled])


for _ in range(500):
    u = x[unlabeled[torch.randint(len(unlabeled), (64,))]]
    imputed = Imputed.unmasked(model(u + 0.1 * torch.randn_like(u)).softmax(1))
    student = Student(u + 0.3 * torch.randn_like(u), lambda f, i: mse_loss(f.softmax(1), i.z))
    cost = c_h(model) + 10 * student.cost_of(model, imputed.detach())  # joint hold-out: C^T is C^H
    base = dict(zip(params, torch.autograd.grad(cost, params.values()), strict=True))
    d_z = last_layer(Problem(model, params, student, imputed, c_h, eta=None))
    outer = dict(zip(params, torch.autograd.grad(imputed.z, params.values(), d_z), strict=True))

    for name, gradient in normalized_sum(base, outer, rho=0.3).items():
        params[name].grad = gradient
    optimizer.step()

with torch.no_grad():
    error = (model(x[test]).argmax(1) != y[test]).float().mean()
print(f"test error {100 * error:.1f} %")
