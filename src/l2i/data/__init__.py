"""The data sets, by name; each is one function from a folder to a DataSet."""

DATASETS: dict[str, str] = {
    "digits": "l2i.data.digits:digits",
    "breast-cancer": "l2i.data.tables:breast_cancer",
    "diabetes": "l2i.data.tables:diabetes",
    "friedman": "l2i.data.tables:friedman",
    "mnist": "l2i.data.images:mnist",
    "fashion-mnist": "l2i.data.images:fashion_mnist",
    "cifar10": "l2i.data.images:cifar10",
    "cifar100": "l2i.data.images:cifar100",
    "landmarks": "l2i.data.images:landmarks",
    "aflw": "l2i.data.images:aflw",
    "mtfl": "l2i.data.images:mtfl",
    "faces": "l2i.data.images:faces",
    "small-faces": "l2i.data.images:small_faces",
    "imagenet": "l2i.data.images:imagenet",
    "imdb": "l2i.data.imdb:imdb",
}

EMBEDDED = ("digits", "breast-cancer", "diabetes", "friedman")  # those that need no folder
STREAMED = ("imagenet",)  # those too large to be held on a device
