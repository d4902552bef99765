"""Runs what README.md shows with a Python that has the wheel only, as a bare container would: `try_wheel.py PYTHON`.

There is no environment variable, so no HOME and no PATH; the folder of one program is read-only.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
READ_ONLY = Path("/proc")  # not even root can write there


def main(python: str) -> None:
    """Run the README's program twice, a program in a folder that cannot be written to, and the command's demo."""
    program, printed = re.findall(
        r"^```(?:python|text)\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL
    )[:2]
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.py")
        job.write_text(program)
        shown = run([python, "-W", "error", str(job)], folder)
        expected = printed.splitlines()
        same(shown.splitlines()[-len(expected) + 1 :], expected[1:])
        contains(shown, expected[0].partition(" in ")[0])
        contains(run([python, str(job)], folder), "nothing to do")
        contains(run([python, "-m", "headrace", "demo", "demo", "--rows", "20000"], folder), "demo")
        if READ_ONLY.is_dir():
            elsewhere = program.replace('"fares/"', f'"{folder}/elsewhere/"')
            shown = run([python, "-c", elsewhere], str(READ_ONLY))
            same(shown.splitlines()[-len(expected) + 1 :], expected[1:])
    print("The wheel runs README.md's program in a bare environment.")


def run(command: list[str], folder: str) -> str:
    """Run a command without any environment variable, and return all that it prints."""
    done = subprocess.run(
        command, cwd=folder, env={}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def same(shown: list[str], expected: list[str]) -> None:
    """End with an error if lines are not those that README.md shows."""
    if shown != expected:
        sys.exit(f"README.md shows {expected}, and the program printed {shown}.")


def contains(shown: str, expected: str) -> None:
    """End with an error if a text does not contain another."""
    if expected not in shown:
        sys.exit(f"{expected!r} was expected in:\n{shown}")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).absolute()))
