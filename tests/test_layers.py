"""The order of layers: a module imports only from its own package and from layers below it."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "l2i"
LAYERS = (  # lowest first; CONTRIBUTING.md says what each is for
    *("errors", "registry", "quantity", "files", "torchrun", "distributed"),
    *("bilevel", "kernels", "models", "data", "tasks", "methods"),
    *("config", "training", "recipes", "candidates", "fit", "estimators", "experiments", "cli"),
)
FACADE = ("__init__", "__main__")  # l2i itself: public names, imported when first asked for


def find_imports(path: Path) -> Iterator[str]:
    """Yield every l2i module that a file imports, at any depth, for types alone too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("l2i."))
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}: relative import")
        elif isinstance(node, ast.ImportFrom) and node.module == "l2i":
            yield from (f"l2i.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("l2i."):
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                is_module = module_path(module).is_file()
                yield module if is_module else str(node.module)


def module_path(module: str) -> Path:
    path = SOURCE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def layer_of(module: str) -> str:
    return module.split(".")[1]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): sorted(set(find_imports(path)))
    for path in SOURCE.rglob("*.py")
    if path.parent != SOURCE or path.stem not in FACADE
}


def test_every_package_has_a_layer() -> None:
    assert {layer_of(module) for module in MODULES} == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_from_layers_below_it(layer: str) -> None:
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    against = [
        f"{module} imports {imported}"
        for module, imports in MODULES.items()
        for imported in imports
        if layer_of(module) == layer and layer_of(imported) not in allowed
    ]
    assert not against, against


def test_bilevel_needs_nothing_but_torch_and_the_basics() -> None:
    ours = {
        layer_of(i)
        for module, imports in MODULES.items()
        for i in imports
        if layer_of(module) == "bilevel"
    }
    assert ours <= {"bilevel", "errors", "distributed"}


def test_no_module_imports_itself_through_others() -> None:
    graph = {
        module: [i for i in imports if i in MODULES and i != module]
        for module, imports in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
