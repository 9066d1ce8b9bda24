"""The parts of the study, in the order in which they need each other: pace, tuning, arms; settings, course."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean

from l2i.config import Run, replace
from l2i.errors import InputError
from l2i.study.book import Book
from l2i.study.problems import ARMS, TRIALS, TUNING, Arm, Problem
from l2i.study.settings import fitting
from l2i.study.trial import Line, paced, tried

Say = Callable[[str], object]


class Study:
    """One problem: what is to be trained for it, and where it is kept."""

    def __init__(self, problem: Problem, book: Book, root: str | None, say: Say) -> None:
        self.problem, self.book, self.root, self.say = problem, book, root, say

    def placed(self, run: Run, seed: int) -> Run:
        root = run.data.root if self.root is None else self.root
        return replace(run, seed=seed, device="cpu", data={"root": root})

    def pace(self) -> float:
        """How many steps the method alone can take in the time of one with L2I; measured once."""
        known = self.book.find(part="pace")
        if not known:
            ratio = paced(*(self.placed(self.problem.run(arm), TUNING[0]) for arm in ("baseline", "l2i")))
            self.book.add({"part": "pace", "ratio": round(ratio, 2)})
            self.say(f"{self.problem.name}: a step takes {ratio:.2f} times as long with L2I")
            known = self.book.find(part="pace")
        return float(known[0]["ratio"])

    def arm(self, part: str, arm: Arm, seed: int, lr: float, weight: float) -> Line:
        """A run of an arm, unless it is kept already."""
        about: Line = {"part": part, "arm": arm, "seed": seed, "lr": lr, "weight": weight}
        known = self.book.find(**about)
        if known:
            return known[0]
        run = self.problem.run(arm, lr=lr, weight=weight, pace=self.pace() if arm == "longer" else 1.0)
        return self.kept(about, run)

    def kept(self, about: Line, run: Run) -> Line:
        """Train, keep and tell."""
        line = {**about, **tried(self.placed(run, about["seed"]))}
        self.book.add(line)
        words = " ".join(str(value) for name, value in about.items() if name != "part")
        self.say(f"{self.problem.name}, {about['part']}: {words}: {line['figure']} in {line['seconds']} s")
        return line

    def tuning(self) -> None:
        """Each arm with each pair of a rate and a λ, on seeds that are not those of the comparison."""
        for lr, weight in TRIALS:
            for seed in TUNING:
                for arm in ARMS:
                    self.arm("tuning", arm, seed, lr, weight)

    def chosen(self, arm: Arm) -> tuple[float, float]:
        """The rate and λ with the best mean validation figure; of equal ones the lowest rate, then the lowest λ.

        Of two lines of one run the first counts.
        """
        found = {trial: dict[int, float]() for trial in TRIALS}
        for line in self.book.find(part="tuning", arm=arm):
            figure = float("inf") if line["validation"] is None else line["validation"]
            found.get((line["lr"], line["weight"]), {}).setdefault(line["seed"], figure)
        if not all(figures.keys() >= set(TUNING) for figures in found.values()):
            raise InputError(f"{self.problem.name}: the arm '{arm}' is not tuned yet; run --part tuning first")
        return min(found, key=lambda pair: (mean(found[pair][seed] for seed in TUNING), pair))

    def arms(self, seeds: Iterable[int]) -> None:
        """Each arm, as it was tuned, on fresh seeds."""
        chosen = {arm: self.chosen(arm) for arm in ARMS}
        for seed in seeds:
            for arm in ARMS:
                self.arm("arms", arm, seed, *chosen[arm])

    def settings(self, seeds: Iterable[int]) -> None:
        """The recipe without L2I, with it, and with each setting changed."""
        base = self.problem.run("l2i")
        for seed in seeds:
            for name, changed in fitting(base):
                about: Line = {"part": "settings", "arm": name, "seed": seed}
                if not self.book.find(**about):
                    self.kept(about, changed)
