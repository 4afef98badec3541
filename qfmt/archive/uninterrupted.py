"""What a worker of a cluster of this machine loads first: it ignores Ctrl-C, which a terminal sends to all processes.

The command that started it is interrupted, and ends it.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
