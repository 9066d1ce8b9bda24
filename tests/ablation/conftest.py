"""The ablation by its command, with recipes of a few steps."""

from pathlib import Path

import pytest
from ablation_stores import Call, Said, shrink
from benchmarks.ablation_cpu.__main__ import run_command as run_ablation


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("digits", "friedman"):
        shrink(monkeypatch, name)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the command has filled, part after part."""
    folder = tmp_path_factory.mktemp("ablation")
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, "digits")
        for part, seeds in {
            "pace": (),
            "tuning": (),
            "arms": ("0:3",),
            "settings": ("0:1",),
            "dynamics": ("0:1",),
        }.items():
            chosen = [word for given in seeds for word in ("--seeds", given)]
            assert (
                run_ablation(
                    ["digits-fixmatch", "--save-results", str(folder), "--part", part, *chosen]
                )
                == 0
            )
    return folder


@pytest.fixture
def ablation(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: str | Path) -> Said:
        code = run_ablation([str(word) for word in arguments])
        return Said(code, *capsys.readouterr())

    return call
