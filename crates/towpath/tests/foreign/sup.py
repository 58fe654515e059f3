"""Validates SUP documents by the rules of the validator that came with the protocol.

Usage: sup.py URL. Follows `available_periods` from there. Prints what is wrong and how much was checked; exits 1 if
anything is wrong.
"""

import datetime
import json
import re
import sys
import urllib.request

ID = re.compile(r"[A-Za-z0-9-]{1,128}")
wrong = []
checked = {"documents": 0, "updates": 0}


def moment(document, key):
    text = document[key]
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", text):
        wrong.append(f"{key} is {text!r}")
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def check(url):
    with urllib.request.urlopen(url) as response:
        kind = response.headers.get_content_type()
        document = json.loads(response.read())
    checked["documents"] += 1
    checked["updates"] += len(document["updates"])
    if kind != "application/json":
        wrong.append(f"{url}: section 3: the type is {kind}")
    for key in ("since_time", "updated_time", "period", "updates"):
        if key not in document:
            wrong.append(f"{url}: {key} is required")
    period = document["period"]
    if not isinstance(period, int) or period < 1:
        wrong.append(f"{url}: section 3.2: the period is {period!r}")
    window = (moment(document, "updated_time") - moment(document, "since_time")).total_seconds()
    if window < period:
        wrong.append(f"{url}: section 3.4: the window is {window} s, the period {period} s")
    if window == period:
        wrong.append(f"{url}: suggested: a window that is longer than its period")
    for update in document["updates"]:
        if not (isinstance(update, list) and len(update) == 2 and all(isinstance(part, str) for part in update)):
            wrong.append(f"{url}: section 3.1: {update!r} is no pair of texts")
        elif not all(ID.fullmatch(part) for part in update):
            wrong.append(f"{url}: sections 4 and 5: {update!r}")
    periods = document["available_periods"]
    for seconds, address in periods.items():
        if not (seconds.isdigit() and int(seconds) >= 1 and address.startswith(("http://", "https://"))):
            wrong.append(f"{url}: section 3.5: {seconds!r}: {address!r}")
    if len(periods) < 2:
        wrong.append(f"{url}: suggested: two or more periods")
    return document, periods


first, periods = check(sys.argv[1])
if not 10 <= first["period"] <= 120:
    wrong.append("suggested: a period of 10 to 120 seconds")
for seconds, address in periods.items():
    document, _ = check(address)
    if document["period"] != int(seconds):
        wrong.append(f"{address}: its period is {document['period']}, not {seconds}")
check(sys.argv[1] + "?seconds=77")
print(f"{checked['documents']} documents, {checked['updates']} updates")
for line in wrong:
    print(line)
sys.exit(1 if wrong else 0)
