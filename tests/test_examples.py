import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_own_loop_runs_and_is_short() -> None:
    script = EXAMPLES / "own_loop.py"
    assert len(script.read_text().splitlines()) <= 40
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[2]) < 25
