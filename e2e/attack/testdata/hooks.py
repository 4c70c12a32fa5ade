"""What schemathesis leaves out: answers that never end. A watch, and logs that are followed, have tests of their own; here they get a value that ends."""
import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    for name in ("watch", "follow"):
        if case.query and str(case.query.get(name, "no")).lower() in ("", "true"):
            case.query[name] = "false"
