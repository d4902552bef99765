"""The end of a process waits for threads that hold what was lent to them."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading
import time

from headrace.core.arrow.batch import lent

taken = threading.Event()

def read(holds):
    taken.set()
    time.sleep(0.1)
    print("let go", flush=True)
    holds.clear()

threading.Thread(target=read, args=([lent(b"lines")],), daemon=True).start()
taken.wait()
"""


def test_a_process_ends_after_what_it_has_lent_is_let_go() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "let go\n"), ended.stderr
