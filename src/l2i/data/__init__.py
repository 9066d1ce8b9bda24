"""The datasets, by name; each is one function from a folder to a DataSet."""

DATASETS: dict[str, str] = {
    "digits": "l2i.data.datasets.builtin:load_sklearn_digits",
    "breast-cancer": "l2i.data.datasets.builtin:load_sklearn_breast_cancer",
    "diabetes": "l2i.data.datasets.builtin:load_sklearn_diabetes",
    "friedman": "l2i.data.datasets.builtin:load_friedman",
    "mnist": "l2i.data.datasets.mnist:load_mnist",
    "fashion-mnist": "l2i.data.datasets.mnist:load_fashion_mnist",
    "cifar10": "l2i.data.datasets.cifar:load_cifar10",
    "cifar100": "l2i.data.datasets.cifar:load_cifar100",
    "landmarks": "l2i.data.datasets.faces:load_landmarks",
    "aflw": "l2i.data.datasets.faces:load_aflw",
    "mtfl": "l2i.data.datasets.faces:load_mtfl",
    "faces": "l2i.data.datasets.faces:load_faces",
    "small-faces": "l2i.data.datasets.faces:load_small_faces",
    "imagenet": "l2i.data.datasets.imagenet:load_imagenet",
    "imdb": "l2i.data.datasets.imdb:load_imdb",
}
BUILTIN_DATASETS = ("digits", "breast-cancer", "diabetes", "friedman")  # need no folder
STREAMED_DATASETS = ("imagenet",)  # too large for a device's memory
