// Sign in, by the code of a link (weir ui) or by a token.
import { Button, PasswordInput } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { useLocation, useNavigate } from "react-router";
import { asApiError } from "../api/client";
import { readSession, type Session, signIn, tellOtherTabs } from "../api/session";
import { Command, Failure } from "../ui/basic";
import { Mark } from "./Shell";

/** Where links lead: what follows is random, and means nothing. */
export const isSignIn = (pathname: string) => pathname === "/sign-in" || pathname.startsWith("/sign-in/");

export function SignIn({ ended }: { ended?: boolean }) {
  const queries = useQueryClient();
  const go = useNavigate();
  const { pathname, hash } = useLocation();
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const [other, setOther] = useState<{ code: string; session: Session }>(); // who is signed in while a link wants to
  const used = useRef(false);

  const enter = async (by: { code: string } | { token: string }) => {
    setBusy(true);
    setError(undefined);
    try {
      queries.setQueryData(["session"], await signIn(by));
      setToken("");
      tellOtherTabs();
      if (isSignIn(pathname)) void go("/", { replace: true });
    } catch (e) {
      setError(e);
      setOther(undefined);
    } finally {
      setBusy(false);
    }
  };
  /** Somebody else's link may not take a session's place unasked. */
  const follow = async (code: string) => {
    setBusy(true);
    try {
      const session = await readSession();
      setOther({ code, session });
      setBusy(false);
    } catch (e) {
      if (asApiError(e).status === 401) return enter({ code });
      setError(e);
      setBusy(false);
    }
  };
  useEffect(() => {
    document.title = "Sign in · Weir";
    const code = isSignIn(pathname) ? hash.slice(1) : "";
    if (!code || used.current) return;
    used.current = true; // it works once
    history.replaceState(null, "", "/sign-in"); // no code stays in the history
    void follow(code);
  });
  const stay = (session: Session) => {
    queries.setQueryData(["session"], session);
    void go("/", { replace: true });
  };
  return (
    <div className="sign-in">
      <main className="stack" style={{ padding: 0 }}>
        <div className="row" style={{ color: "var(--accent)" }}>
          <Mark size={26} />
          <h1 style={{ color: "var(--text)" }}>Weir</h1>
        </div>
        {other ? (
          <section className="panel">
            <div className="body stack">
              <h2>You are signed in as {other.session.who}</h2>
              <p className="dim">The link signs you in as whoever made it, and signs {other.session.who} out in this browser. Use it only if you have asked for it.</p>
              <div className="row">
                <Button size="sm" variant="default" onClick={() => stay(other.session)} disabled={busy} data-autofocus>
                  Stay signed in
                </Button>
                <Button size="sm" onClick={() => void enter({ code: other.code })} loading={busy}>
                  Use this link and sign out {other.session.who}
                </Button>
              </div>
            </div>
          </section>
        ) : (
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
        )}
      </main>
    </div>
  );
}
