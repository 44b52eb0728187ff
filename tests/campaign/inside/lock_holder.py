"""Holds a lock file exclusively for so many seconds: python lock_holder.py LOCK SECONDS"""

from __future__ import annotations

import fcntl
import os
import sys
import time

descriptor = os.open(sys.argv[1], os.O_RDONLY | os.O_CREAT, 0o666)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
