"""The example of the README, in a fresh folder and twice, as a stranger would."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_five_lines_run_twice(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) == 5
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", "-c", code],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert "accuracy" in done.stdout
        said.append(done.stdout.splitlines()[-1])  # what stands above has seconds in it
    assert said[0] == said[1]
    assert re.fullmatch(r"\['\d', '\d', '\d'\]", said[0])
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
