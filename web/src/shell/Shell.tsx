// The frame of all pages: navigation, search, the state of the connection, the account.
import { ActionIcon, Button, Menu, Modal, Tooltip, useMantineColorScheme, type MantineColorScheme } from "@mantine/core";
import { IconDeviceDesktop, IconLogout, IconMenu2, IconMoon, IconPrinter, IconQuestionMark, IconSearch, IconSun, IconUser } from "@tabler/icons-react";
import { useQueryClient } from "@tanstack/react-query";
import { Component, Suspense, useEffect, useState, type ReactNode } from "react";
import { Link, NavLink, useLocation, useNavigate } from "react-router";
import { liveOf, useConnection, useList, type Connection } from "../api/live";
import { readyOf } from "../api/ready";
import { signOut, useSession } from "../api/session";
import { Failure, Loading, Notice, Time, useNow } from "../ui/basic";
import { useKeys, type Keys } from "./keys";
import { pages } from "./pages";
import { Palette } from "./Palette";

export function Shell({ children }: { children: ReactNode }) {
  const queries = useQueryClient();
  const live = liveOf(queries);
  const connection = useConnection(live);
  const [nav, setNav] = useState(false);
  const [search, setSearch] = useState(false);
  const [help, setHelp] = useState(false);
  const go = useNavigate();
  const { pathname } = useLocation();
  useEffect(() => setNav(false), [pathname]);
  useEffect(() => {
    live.start();
    return () => live.stop();
  }, [live]);
  const keys: Keys = {
    "/": () => setSearch(true),
    "?": () => setHelp(true),
    f: () => document.querySelector<HTMLElement>("[data-filter]")?.focus(),
  };
  for (const p of pages) if (p.key) keys[`g ${p.key}`] = () => void go(p.path);
  useKeys(keys);
  return (
    <div className="frame">
      <a href="#page" className="sr">
        Skip to the page
      </a>
      {nav && <button type="button" className="veil only-narrow" aria-label="Close the navigation" onClick={() => setNav(false)} />}
      <aside className={nav ? "side open" : "side"} aria-label="Weir">
        <Link to="/" className="brand">
          <Mark /> Weir
        </Link>
        <Navigation />
        <Foot />
      </aside>
      <div>
        <div className="top" role="region" aria-label="Search and account">
          <ActionIcon className="only-narrow" size="lg" aria-label="Open the navigation" onClick={() => setNav(true)}>
            <IconMenu2 size={18} />
          </ActionIcon>
          <button type="button" className="search" onClick={() => setSearch(true)}>
            <IconSearch size={14} aria-hidden /> Search <kbd>/</kbd>
          </button>
          <span className="grow" />
          <LiveMark c={connection} />
          <Tooltip label="Keys (?)">
            <ActionIcon size="lg" aria-label="Keys" onClick={() => setHelp(true)}>
              <IconQuestionMark size={16} />
            </ActionIcon>
          </Tooltip>
          <Account />
        </div>
        <Lost c={connection} onRetry={() => live.retry()} />
        <main id="page" tabIndex={-1} data-path={pathname}>
          <Guard key={pathname}>
            <Suspense fallback={<Loading />}>{children}</Suspense>
          </Guard>
        </main>
      </div>
      <Palette opened={search} onClose={() => setSearch(false)} />
      <Help opened={help} onClose={() => setHelp(false)} />
    </div>
  );
}

export function Mark({ size = 20 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 24 24" fill="none" stroke="currentColor" strokeWidth="2" strokeLinecap="round" aria-hidden>
      <path d="M2 6h8c3 0 3 4 5.500 4H22M2 11h6c3 0 3 4 5.500 4H22M2 16h4c3 0 3 4 5.500 4H22" />
    </svg>
  );
}

function Navigation() {
  const functions = useList("function");
  const hosts = useList("host");
  const bad = {
    "/functions": functions?.filter((f) => ["bad"].includes(readyOf("function", f).level)).length,
    "/hosts": hosts?.filter((h) => readyOf("host", h).level === "bad").length,
  } as Record<string, number | undefined>;
  const groups = [undefined, "Network", "Machines", "Look"] as const;
  return (
    <nav aria-label="Pages">
      {groups.map((g) => (
        <ul key={g ?? ""} aria-label={g}>
          {pages
            .filter((p) => p.icon && p.group === g)
            .map((p) => (
              <li key={p.path}>
                <NavLink to={p.path} end={p.path === "/"}>
                  {p.icon && <p.icon size={16} />}
                  {p.title}
                  {!!bad[p.path] && (
                    <span className="count bad">
                      {bad[p.path]} <span className="sr">not well</span>
                    </span>
                  )}
                </NavLink>
              </li>
            ))}
        </ul>
      ))}
    </nav>
  );
}

function Foot() {
  const s = useSession().data;
  return <div className="foot break">{s?.version ? `Weir ${s.version}` : "Weir"}</div>;
}

function LiveMark({ c }: { c: Connection }) {
  const on = c.phase === "live";
  return (
    <span className={`live ${on ? "on" : c.phase === "lost" ? "off" : ""}`} role="status">
      <i aria-hidden /> <span className="wide">{on ? "live" : c.phase === "lost" ? "not connected" : "connecting"}</span>
    </span>
  );
}

const lostAfter = 700; // ms: a connection that is back by then was not lost for anybody

function Lost({ c, onRetry }: { c: Connection; onRetry: () => void }) {
  const now = useNow();
  const [late, setLate] = useState(false);
  useEffect(() => {
    setLate(false);
    if (c.phase !== "lost") return;
    const t = setTimeout(() => setLate(true), lostAfter);
    return () => clearTimeout(t);
  }, [c.phase]);
  if (c.phase !== "lost" || !late) return null;
  return (
    <div className="banner" role="alert">
      <span className="grow">
        The connection to Weir is lost since {Math.max(1, Math.round((now - c.since) / 1000))} s. Traffic goes on; this page shows what was known. It connects again by itself.
      </span>
      <Button variant="default" onClick={onRetry}>
        Try now
      </Button>
    </div>
  );
}

function Account() {
  const s = useSession().data;
  const queries = useQueryClient();
  const { colorScheme, setColorScheme } = useMantineColorScheme();
  const [error, setError] = useState<unknown>();
  const scheme = (to: MantineColorScheme, text: string, icon: ReactNode) => (
    <Menu.Item leftSection={icon} onClick={() => setColorScheme(to)} aria-current={colorScheme === to || undefined} fw={colorScheme === to ? 600 : undefined}>
      {text}
    </Menu.Item>
  );
  return (
    <>
      <Menu width={240}>
        <Menu.Target>
          <ActionIcon size="lg" aria-label="Account and colours">
            <IconUser size={16} />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          {s && (
            <Menu.Label className="break">
              {s.who}, role {s.role}
              {s.expires && (
                <>
                  <br />
                  signed in until <Time at={s.expires} />
                </>
              )}
            </Menu.Label>
          )}
          {scheme("light", "Light", <IconSun size={14} />)}
          {scheme("dark", "Dark", <IconMoon size={14} />)}
          {scheme("auto", "As the system", <IconDeviceDesktop size={14} />)}
          <Menu.Divider />
          <Menu.Item leftSection={<IconPrinter size={14} />} onClick={() => window.print()}>
            Print this page
          </Menu.Item>
          <Menu.Item
            leftSection={<IconLogout size={14} />}
            onClick={() =>
              void signOut()
                .then(() => {
                  liveOf(queries).stop();
                  queries.clear();
                })
                .catch(setError)
            }
          >
            Sign out
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      <Modal opened={!!error} onClose={() => setError(undefined)} title="Sign out">
        <Failure error={error} />
      </Modal>
    </>
  );
}

function Help({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  const rows: [string, string][] = [["/", "Search"], ["f", "Filter the table"], ["?", "These keys"], ...pages.filter((p) => p.key).map((p): [string, string] => [`g ${p.key}`, p.title]), ["Esc", "Close"]];
  return (
    <Modal opened={opened} onClose={onClose} title="Keys" size="sm">
      <dl className="kv">
        {rows.map(([key, what]) => (
          <div key={key} style={{ display: "contents" }}>
            <dt>
              {key.split(" ").map((k) => (
                <kbd key={k} style={{ marginRight: 4 }}>
                  {k}
                </kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Modal>
  );
}

/** Shows what broke in a page in place of the page. */
class Guard extends Component<{ children: ReactNode }, { error?: Error }> {
  override state: { error?: Error } = {};

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    const stale = /dynamically imported module|Importing a module script/.test(error.message);
    return (
      <Notice level="bad" role="alert">
        <strong>{stale ? "Weir was updated, or does not answer: this page could not be loaded." : "This page broke."}</strong>
        <p className="mono break">{error.message}</p>
        <Button variant="default" mt="xs" onClick={() => location.reload()}>
          Load it again
        </Button>
      </Notice>
    );
  }
}
