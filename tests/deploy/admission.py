"""Evaluates the expressions of admission policies."""

import json

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

ANY = {
    "event": cel.Type.DYN,
    "object": cel.Type.DYN,
    "oldObject": cel.Type.DYN,
    "request": cel.Type.DYN,
    "variables": cel.Type.DYN,
}
ENV = cel.NewEnv(variables=ANY, extensions=[ext_strings.ExtStrings()])


def value(expression, data):
    """What an expression comes to: JSON in, JSON out."""
    filled = {name: {} for name in ANY} | data
    return json.loads(str(ENV.compile(expression).eval(data=filled)))


def refusals(policy, **data):
    """The messages of the validations that do not hold."""
    spec = policy["spec"]
    data["variables"] = {}
    for it in spec.get("variables", ()):  # a variable may use those before it
        data["variables"][it["name"]] = value(it["expression"], data)
    return [it["message"] for it in spec["validations"] if value(it["expression"], data) is not True]
