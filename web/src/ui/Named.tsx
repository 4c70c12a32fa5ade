// A link to the page of an object, if there is one.
import { Link } from "react-router";
import { pathOf } from "../shell/pages";

export function Named({ kind, name, withKind }: { kind: string; name: string; withKind?: boolean }) {
  const to = pathOf(kind, name);
  const text = withKind ? `${kind}/${name}` : name;
  return to ? (
    <Link className="name mono" to={to}>
      {text}
    </Link>
  ) : (
    <span className="mono">{text}</span>
  );
}
