"""Polls a DiffDelta source and the global feed once with the public client, as its `watch` does.

Usage: reference_client.py BASE CURSORS SOURCE. CURSORS is the client's file. Prints the ids of both as JSON.
"""

import json
import sys

from diffdelta import DiffDelta

base, cursors, source = sys.argv[1:]
client = DiffDelta(base_url=base, cursor_path=cursors)
buckets = ["new", "updated", "removed"]
print(json.dumps({
    "source": [item.id for item in client.poll_source(source, buckets=buckets)],
    "global": [item.id for item in client.poll(buckets=buckets)],
}))
