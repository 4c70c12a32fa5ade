"""What schemathesis leaves out: answers that never end, as a watch and logs that are followed have tests of their own; and the end of its own token."""
import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    for name in ("watch", "follow"):
        if case.query and str(case.query.get(name, "no")).lower() in ("", "true"):
            case.query[name] = "false"
    if case.path.startswith("/v1/tokens/") and case.path_parameters.get("name") == "attacker":
        case.path_parameters["name"] = "another"
