import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { Navigate, Route, Routes, useLocation } from "react-router";
import { onSignedOut } from "./api/client";
import { liveOf, useConnection } from "./api/live";
import { onOtherTab, useSession } from "./api/session";
import { Empty, Loading } from "./ui/basic";
import { pages } from "./shell/pages";
import { Shell } from "./shell/Shell";
import { isSignIn, SignIn } from "./shell/SignIn";

export function App() {
  const queries = useQueryClient();
  const { pathname, hash } = useLocation();
  const byLink = isSignIn(pathname) && hash.length > 1;
  const session = useSession(!byLink);
  const was = useRef(false);
  useConnection(liveOf(queries));
  useEffect(
    () =>
      onSignedOut(() => {
        if (queries.getQueryData(["session"])) void queries.resetQueries({ queryKey: ["session"] });
      }),
    [queries],
  );
  useEffect(() => onOtherTab(() => void queries.resetQueries({ queryKey: ["session"] })), [queries]);
  if (byLink) return <SignIn />;
  if (session.data) {
    was.current = true;
    return (
      <Shell>
        <Routes>
          {pages.map((p) => (
            <Route key={p.path} path={p.path} element={<p.Element />} />
          ))}
          <Route path="/sign-in/*" element={<Navigate to="/" replace />} />
          <Route path="*" element={<Empty page title="There is no such page">The address may be of another version of Weir.</Empty>} />
        </Routes>
      </Shell>
    );
  }
  if (session.isPending) return <Loading />;
  return <SignIn ended={was.current} />;
}
