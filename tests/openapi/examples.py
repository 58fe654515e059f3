"""Checks every example of openapi.json in the working folder against its schema, and that each JSON answer has one."""

import json
import pathlib
import sys

from jsonschema import Draft202012Validator

document = json.loads(pathlib.Path("openapi.json").read_text())
faults, count = [], 0
# Documents of other texts, and the forms of pages.
without = {"Object", "Form", "Binary", "Html", "Text", "Lines"}

for path, operations in document["paths"].items():
    for method, operation in operations.items():
        bodies = [(status, answer.get("content", {})) for status, answer in operation["responses"].items()]
        bodies.append(("request", operation.get("requestBody", {}).get("content", {})))
        for status, content in bodies:
            for media_type, body in content.items():
                name = body["schema"].get("$ref", "").rpartition("/")[2]
                place = f"{method} {path}, {status}, {media_type}, {name}"
                if "example" not in body:
                    if media_type == "application/json" and name not in without:
                        faults.append(f"{place}: no example")
                    continue
                count += 1
                # References begin at the document's root.
                schema = {**document, **body["schema"]}
                errors = Draft202012Validator(schema).iter_errors(body["example"])
                faults.extend(f"{place}: {error.json_path}: {error.message}" for error in errors)

if faults:
    sys.exit("\n".join(faults))
print(f"{count} examples")
