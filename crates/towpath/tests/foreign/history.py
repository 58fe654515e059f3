"""Follows a feed's past with feedparser, which shares nothing with towpath.

Usage: history.py URL. Goes from the newest document back along `prev-archive`. Prints one JSON object: the documents,
oldest first, each with its address, version, links, entries and what is wrong with it.
"""

import json
import sys
import urllib.request

import feedparser

FH = "{http://purl.org/syndication/history/1.0}"


def fetch(url):
    with urllib.request.urlopen(url) as response:
        return response.read(), response.headers["Content-Type"]


def shown(url):
    body, kind = fetch(url)
    parsed = feedparser.parse(body, response_headers={"content-type": kind})
    links = {link["rel"]: link["href"] for link in parsed.feed.get("links", [])}
    entries = [
        {
            "id": entry.get("id"),
            "title": entry.get("title"),
            "link": entry.get("link"),
            "updated": entry.get("updated"),
            "tags": [tag["term"] for tag in entry.get("tags", [])],
            "content": entry["content"][0]["value"] if "content" in entry else entry.get("summary"),
        }
        for entry in parsed.entries
    ]
    return {
        "url": url,
        "version": parsed.version,
        "wrong": str(parsed.get("bozo_exception", "")) if parsed.bozo else "",
        "title": parsed.feed.get("title"),
        "stateful": parsed.feed.get("fh_stateful"),
        "is_archive": "fh_archive" in parsed.feed,
        "is_complete": "fh_complete" in parsed.feed,
        "links": links,
        "entries": entries,
    }


documents = []
url = sys.argv[1]
while url:
    document = shown(url)
    documents.insert(0, document)
    url = document["links"].get("prev-archive")
print(json.dumps(documents))
