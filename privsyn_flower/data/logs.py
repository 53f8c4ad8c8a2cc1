"""The node's local log, for everything that is derived from private text (rule 7).

Nothing said here reaches stderr or Flower's log, which a server may read: without a handler it
is dropped. A node attaches the file handler of its own log (`node.log`, mode 0600).
"""

from __future__ import annotations

import logging

NODE_LOG = logging.getLogger("privsyn_flower.node")
NODE_LOG.propagate = False
NODE_LOG.addHandler(logging.NullHandler())  # else Python's last resort prints to stderr
