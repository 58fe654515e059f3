"""Reads a JUnit and a SARIF report with libraries that refuse what their formats do not have."""

import json
import sys

from junitparser import Failure, JUnitXml
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

junit, sarif = sys.argv[1:]
cases = [case for suite in JUnitXml.fromfile(junit) for case in suite]
failed = [c for c in cases if any(isinstance(r, Failure) for r in c.result)]


def result(found):
    place = found["locations"][0]["physicalLocation"]
    return {
        "rule": found["ruleId"],
        "level": found["level"],
        "url": place["artifactLocation"]["uri"],
        "line": place.get("region", {}).get("startLine"),
    }


text = open(sarif, encoding="utf-8").read()
Sarif.model_validate_json(text)
print(json.dumps({
    "junit": {"tests": len(cases), "failed": [f"{c.classname}: {c.name}" for c in failed]},
    "sarif": [result(found) for found in json.loads(text)["runs"][0]["results"]],
}))
