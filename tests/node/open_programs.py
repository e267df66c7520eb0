"""Programs that keep the file of their first argument open, each in its own way, until they are killed.

The one that forks ends when the file is removed.
"""

WRITE = "import os,sys,time; os.open(sys.argv[1], os.O_RDWR); print(1, flush=True); time.sleep(60)"
MAP = """
import ctypes, os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap(None, 4096, 3, {flags}, handle, 0) != ctypes.c_void_p(-1).value
os.close(handle)
print(1, flush=True)
time.sleep(60)
"""
IN_TRANSIT = """
import os, socket, sys, time
one, other = socket.socketpair()
handle = os.open(sys.argv[1], os.O_RDWR)
socket.send_fds(one, [b"x"], [handle])
os.close(handle)
print(1, flush=True)
time.sleep(60)
"""
RESTLESS = """
import os, sys
handle = os.open(sys.argv[1], os.O_RDWR)
print(1, flush=True)
while True:
    other = os.dup(handle)
    os.close(handle)
    handle = other
"""
FORKING = """
import os, sys, time
os.open(sys.argv[1], os.O_RDWR)
print(1, flush=True)
while os.path.exists(sys.argv[1]) and (os.fork() == 0 or os._exit(0)):
    time.sleep(0.001)
"""
