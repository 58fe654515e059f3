"""Reads a feed's newest document with feed parsers that share nothing with towpath, nor with each other.

Usage: parsers.py FORMAT URL, with FORMAT `atom`, `rss` or `json`. Prints, for each parser, pairs of id and title as JSON.
"""

import json
import sys
import urllib.request

import atoma
import fastfeedparser
import feedparser

form, url = sys.argv[1:]
with urllib.request.urlopen(url) as response:
    body = response.read()
if form == "atom":
    found = [(entry.id_, entry.title.value) for entry in atoma.parse_atom_bytes(body).entries]
elif form == "rss":
    found = [(item.guid, item.title) for item in atoma.parse_rss_bytes(body).items]
else:
    found = [(item.id_, item.title) for item in atoma.parse_json_feed_bytes(body).items]
read = {"atoma": found}
read["fastfeedparser"] = [(entry.id, entry.title) for entry in fastfeedparser.parse(body).entries]
if form != "json":
    read["feedparser"] = [(entry.id, entry.title) for entry in feedparser.parse(body).entries]
print(json.dumps(read))
