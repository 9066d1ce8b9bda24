"""Your own data and network: few labels, many samples without, and whether those help, measured."""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from l2i import Augment, Data, Run, Splits, load_model, replace, train

x, y = load_breast_cancer(return_X_y=True)
x = (x - x.mean(0)) / x.std(0)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).numpy()
x, y = x[order], y[order]
splits = Splits.from_arrays(
    labeled=(x[:10], y[:10]),  # what you know
    unlabeled=x[10:300],  # what you do not
    validation=(x[300:350], y[300:350]),
    test=(x[350:], y[350:]),
    classes=2,
)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))


run = Run(steps=500, threads=1, data=Data(weak=Augment(noise=0.1), strong=Augment(noise=0.5)))
for method, update in (("supervised", "off"), ("fixmatch", "off"), ("fixmatch", "normalized")):
    name = f"cancer-{method}-{update}"
    result = train(
        replace(run, name=name, method=method, l2i={"update": update}),
        splits=splits,
        model=network(),
    )
    print(f"{name}: error {result.metric:.1f} %")

model = load_model("runs/cancer-fixmatch-normalized-seed0", splits=splits, model=network())
print("imputed:", model(splits.unlabeled.x[:8].float()).argmax(1).tolist())
