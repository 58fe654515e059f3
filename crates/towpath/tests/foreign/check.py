"""Checks documents of a DiffDelta server with libraries that share nothing with it.

Usage: check.py CRAWL SCHEMAS. CRAWL holds crawl.json, a list of {"path", "file"}, and the files as they were served.
SCHEMAS holds the public schemas. Prints what is wrong and how much was checked; exits 1 if anything is wrong.
"""

import hashlib
import json
import pathlib
import sys

import rfc8785
from jsonschema import Draft202012Validator

# Section 3.1, step 2.
VOLATILE = ("generated_at", "hash", "prev_hash", "cursor", "prev_cursor", "cursor_basis")
ZERO = "sha256:" + "0" * 64
FORMATS = Draft202012Validator.FORMAT_CHECKER

wrong = []
counted = {"cursors": 0, "snapshots": 0, "carried": 0, "validated": 0}


def digest(data):
    return hashlib.sha256(data).hexdigest()


def cursors(document):
    """The cursor by Python's own JSON and by RFC 8785."""
    kept = {name: value for name, value in document.items() if name not in VOLATILE}
    plain = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {"sha256:" + digest(plain.encode()), "sha256:" + digest(rfc8785.dumps(kept))}


def validate(path, document, schema, which):
    counted["validated"] += 1
    for error in list(Draft202012Validator(schema, format_checker=FORMATS).iter_errors(document))[:5]:
        template = "diff_by_source_template" in error.absolute_path
        if template and error.validator == "format":
            # The public schema calls the template a URI, section 8 wants {source} in it.
            continue
        wrong.append(f"{path}: {which} schema: {error.json_path}: {error.message[:300]}")


def main(crawl, schemas):
    assert {"date-time", "uri"} <= set(FORMATS.checkers), "the formats are checked"
    served = {}
    for entry in json.loads((crawl / "crawl.json").read_text()):
        served[entry["path"]] = (crawl / entry["file"]).read_bytes()
    documents = {path: json.loads(data) for path, data in served.items()}
    public = {name: json.loads((schemas / f"{name}.schema.json").read_text()) for name in ("diff", "wellknown")}
    own = {name: documents[f"/schema/v1/{name}.schema.json"] for name in ("diff", "wellknown", "known_issues")}
    for name, schema in own.items():
        Draft202012Validator.check_schema(schema)

    minted = {ZERO}
    for path, index in documents.items():
        if path.startswith("/archive/") and path.endswith("/index.json"):
            minted |= check_archive(index, served, documents)

    for path, document in documents.items():
        feed = path.endswith("/latest.json") or (path.startswith("/archive/") and not path.endswith("/index.json"))
        if feed:
            check_feed(path, document, minted)
            validate(path, document, public["diff"], "public")
            validate(path, document, own["diff"], "own")
    for path, name in (("/.well-known/diffdelta.json", "wellknown"), ("/diff/known_issues.json", "known_issues")):
        if name in public:
            validate(path, documents[path], public[name], "public")
        validate(path, documents[path], own[name], "own")


def check_archive(index, served, documents):
    """Sections 1.3 and 2.2: every snapshot is what its index says, and follows on the one before."""
    last = ZERO
    cursors_of = set()
    for entry in index["snapshots"]:
        path = entry["url"][entry["url"].index("/archive/"):]
        snapshot = documents[path]
        counted["snapshots"] += 1
        if digest(served[path]) != entry["sha256"]:
            wrong.append(f"{path}: its SHA-256 is not the index's")
        if snapshot["prev_cursor"] != last:
            wrong.append(f"{path}: follows on {snapshot['prev_cursor']}, not on {last}")
        last = snapshot["cursor"]
        cursors_of.add(last)
    head = "/diff/head.json" if index["source_id"] == "_global" else f"/diff/{index['source_id']}/head.json"
    if documents[head]["cursor"] != last:
        wrong.append(f"{head}: stands at {documents[head]['cursor']}, the archive ends at {last}")
    return cursors_of


def check_feed(path, document, minted):
    if document["changed"]:
        counted["cursors"] += 1
        if cursors(document) != {document["cursor"]}:
            wrong.append(f"{path}: cursor {document['cursor']}, recomputed {cursors(document)}")
    else:
        counted["carried"] += 1
        if document["cursor"] != document["prev_cursor"] or document["cursor"] not in minted:
            wrong.append(f"{path}: carries {document['cursor']}, which no snapshot minted")
    # Section 4.
    for bucket, items in document["buckets"].items():
        order = [(item["published_at"], item["source"], item["id"]) for item in items]
        if order != sorted(order):
            wrong.append(f"{path}: {bucket} is not in order")
        flagged = [item["risk"]["score"] >= 0.4 for item in items]
        if any(flag != (bucket == "flagged") for flag in flagged):
            wrong.append(f"{path}: {bucket} holds items of another risk")
    if document["sources_included"] != sorted(document["sources_included"]):
        wrong.append(f"{path}: sources_included is not in order")


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
print(json.dumps(counted))
for line in wrong[:50]:
    print(line)
sys.exit(1 if wrong else 0)
