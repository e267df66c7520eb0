"""Whether gRPC may start its threads. If it may not, it ends the process with SIGSEGV or SIGABRT, without a word.

Service and plugin ask before their event loop runs, and a verb before it connects to the service. A client does not
ask: it would stop the event loop of the plugin, and an answer that has changed would end the plugin's work.
"""

from __future__ import annotations

import os
import threading

FEWEST, MOST = 4, 16  # threads of gRPC's pool: one for each processor, within these bounds
OTHERS = 3  # its timer, the guard of its pool, and the poller of its completion queue
SPARE = 2  # the kernel counts a thread for a moment after its end


def shortage() -> tuple[str, ...]:
    """Why gRPC could not start its threads now, and what to do. Empty if it can.

    Other programs may take the last ones meanwhile.
    """
    count = min(max(os.cpu_count() or 1, FEWEST), MOST) + OTHERS + SPARE
    enough = threading.Event()
    started: list[threading.Thread] = []
    try:
        while len(started) < count:
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:  # Python's word for EAGAIN
        return (
            f"the kernel starts only {len(started)} of {count} threads, because too many processes run",
            (
                "end processes, or raise the limit of this user (ulimit -u), of the control group (pids.max) or of the"
                " node (kernel.pid_max)"
            ),
        )
    finally:
        enough.set()
        for thread in started:
            thread.join()
    return ()
