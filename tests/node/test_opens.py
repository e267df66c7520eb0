"""Who opens a file, as the kernel reports it."""

import os
import subprocess
from contextlib import closing

import pytest

from scrubber.node import opens
from tests.patience import WITHIN


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root: the kernel reports opens to nobody else")
def test_a_process_that_opens_a_file_briefly_is_named(tmp_path):
    file = tmp_path / "memory"
    file.touch()
    script = 'while :; do : < "$0"; done'
    with subprocess.Popen(["sh", "-c", script, file]) as process, closing(opens.pids([str(file)], WITHIN)) as opened:
        try:
            assert next(opened) == process.pid
        finally:
            process.kill()


def test_a_file_without_opens_names_no_process(tmp_path):
    (tmp_path / "memory").touch()
    assert list(opens.pids([str(tmp_path / "memory"), str(tmp_path / "missing")], 0.01)) == []
