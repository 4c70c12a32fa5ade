// Sign in, by the code of a link (weir ui) or by a token.
import { Button, PasswordInput } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { useLocation, useNavigate } from "react-router";
import { signIn, tellOtherTabs } from "../api/session";
import { Command, Failure } from "../ui/basic";
import { Mark } from "./Shell";

export function SignIn({ ended }: { ended?: boolean }) {
  const queries = useQueryClient();
  const go = useNavigate();
  const { pathname, hash } = useLocation();
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const used = useRef(false);

  const enter = async (by: { code: string } | { token: string }) => {
    setBusy(true);
    setError(undefined);
    try {
      queries.setQueryData(["session"], await signIn(by));
      setToken("");
      tellOtherTabs();
      if (pathname === "/sign-in") void go("/", { replace: true });
    } catch (e) {
      setError(e);
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => {
    document.title = "Sign in · Weir";
    const code = pathname === "/sign-in" ? hash.slice(1) : "";
    if (!code || used.current) return;
    used.current = true; // it works once
    history.replaceState(null, "", "/sign-in"); // no code stays in the history
    void enter({ code });
  });
  return (
    <div className="sign-in">
      <main className="stack" style={{ padding: 0 }}>
        <div className="row" style={{ color: "var(--accent)" }}>
          <Mark size={26} />
          <h1 style={{ color: "var(--text)" }}>Weir</h1>
        </div>
        <section className="panel">
          <div className="body stack">
            <div>
              <h2>{ended ? "Your session has ended" : "Sign in"}</h2>
              <p className="dim">{ended ? "Sign in again; this page goes on where it was." : "On the machine where Weir runs, as root:"}</p>
            </div>
            <Command text="weir ui" />
            <p className="dim">It prints a link that opens this page signed in. Or paste a token of the API:</p>
            <form
              className="stack"
              onSubmit={(e) => {
                e.preventDefault();
                void enter({ token: token.trim() });
              }}
            >
              <PasswordInput label="Token" description="weir token create NAME --role viewer, operator or admin makes one" value={token} onChange={(e) => setToken(e.currentTarget.value)} autoComplete="off" data-autofocus />
              <Failure error={error} />
              <Button type="submit" size="sm" loading={busy} disabled={!token.trim()}>
                Sign in
              </Button>
            </form>
          </div>
        </section>
      </main>
    </div>
  );
}
