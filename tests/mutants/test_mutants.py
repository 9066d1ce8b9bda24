"""The lists of mutants: each names one place of the source, and tests that exist."""

import ast
from pathlib import Path

import pytest

from mutants.run import ROOT, SOURCE, Mutant, load_mutants

MUTANTS = load_mutants()


def test_ids_are_unique() -> None:
    ids = [mutant.id for mutant in MUTANTS]
    assert sorted(set(ids)) == sorted(ids)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutant_changes_one_place_of_valid_source(mutant: Mutant) -> None:
    text = (SOURCE / "l2i" / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.file} has {text.count(mutant.old)} such places"
    changed = text.replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)), "it changes no code"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_the_tests_of_a_mutant_exist(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests + mutant.slow:
        path, *names = test.split("::")
        assert Path(ROOT, path).exists(), path
        text = Path(ROOT, path).read_text(encoding="utf-8") if names else ""
        assert all(f"{name.partition('[')[0]}(" in text for name in names), test
