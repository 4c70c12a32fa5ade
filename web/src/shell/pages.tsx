// The pages: their addresses, names, and keys. A page's code is loaded when it is opened.
import {
  IconAlarm,
  IconBox,
  IconFileCode,
  IconFlask,
  IconHome,
  IconLink,
  IconPackage,
  IconPlugConnected,
  IconRoute,
  IconServer,
  IconTopologyStar3,
  IconZoomScan,
} from "@tabler/icons-react";
import { lazy, type ComponentType } from "react";

export interface Page {
  path: string;
  title: string;
  /** In the navigation. */
  icon?: ComponentType<{ size?: number | string }>;
  group?: "Network" | "Machines" | "Look";
  /** After g. */
  key?: string;
  Element: ComponentType;
}

export const pages: Page[] = [
  { path: "/", title: "Overview", icon: IconHome, key: "o", Element: lazy(() => import("../pages/Overview")) },
  { path: "/topology", title: "Topology", icon: IconTopologyStar3, group: "Network", key: "t", Element: lazy(() => import("../pages/topology/Topology")) },
  { path: "/policies", title: "Policies", icon: IconRoute, group: "Network", key: "p", Element: lazy(() => import("../pages/policies/List")) },
  { path: "/policies/new", title: "New policy", Element: lazy(() => import("../pages/policies/Edit")) },
  { path: "/policies/:name", title: "Policy", Element: lazy(() => import("../pages/policies/Detail")) },
  { path: "/policies/:name/edit", title: "Change a policy", Element: lazy(() => import("../pages/policies/Edit")) },
  { path: "/chains", title: "Chains", icon: IconLink, group: "Network", key: "c", Element: lazy(() => import("../pages/chains/List")) },
  { path: "/chains/new", title: "New chain", Element: lazy(() => import("../pages/chains/Detail")) },
  { path: "/chains/:name", title: "Chain", Element: lazy(() => import("../pages/chains/Detail")) },
  { path: "/trace", title: "Trace", icon: IconZoomScan, group: "Look", key: "r", Element: lazy(() => import("../pages/Trace")) },
  { path: "/endpoints", title: "Endpoints", icon: IconPlugConnected, group: "Network", key: "n", Element: lazy(() => import("../pages/endpoints/List")) },
  { path: "/endpoints/new", title: "New endpoint", Element: lazy(() => import("../pages/endpoints/Detail")) },
  { path: "/endpoints/:name", title: "Endpoint", Element: lazy(() => import("../pages/endpoints/Detail")) },
  { path: "/start", title: "From nothing to a chain", Element: lazy(() => import("../pages/Start")) },
  { path: "/functions", title: "Functions", icon: IconBox, group: "Network", key: "f", Element: lazy(() => import("../pages/functions/List")) },
  { path: "/functions/new", title: "New function", Element: lazy(() => import("../pages/functions/Create")) },
  { path: "/functions/:name", title: "Function", Element: lazy(() => import("../pages/functions/Detail")) },
  { path: "/hosts", title: "Hosts", icon: IconServer, group: "Machines", key: "h", Element: lazy(() => import("../pages/hosts/List")) },
  { path: "/hosts/:name", title: "Host", Element: lazy(() => import("../pages/hosts/Detail")) },
  { path: "/images", title: "Images", icon: IconPackage, group: "Machines", key: "i", Element: lazy(() => import("../pages/images/List")) },
  { path: "/events", title: "Events", icon: IconAlarm, group: "Look", key: "e", Element: lazy(() => import("../pages/Events")) },
  { path: "/lab", title: "Lab", icon: IconFlask, group: "Look", key: "l", Element: lazy(() => import("../pages/lab/List")) },
  { path: "/lab/new", title: "New run of the lab", Element: lazy(() => import("../pages/lab/New")) },
  { path: "/lab/compare", title: "Compare runs of the lab", Element: lazy(() => import("../pages/lab/Compare")) },
  { path: "/lab/runs/:name", title: "Run of the lab", Element: lazy(() => import("../pages/lab/Run")) },
  { path: "/apply", title: "Apply a file", icon: IconFileCode, group: "Network", key: "a", Element: lazy(() => import("../pages/Apply")) },
];

/** Where an object is shown; undefined if there is no page of its kind. */
export function pathOf(kind: string, name: string): string | undefined {
  if (kind === "switch") return `/topology?node=switch/${encodeURIComponent(name)}`; // which shows its ports
  const plural = kind === "policy" ? "policies" : kind + "s";
  const base = "/" + plural;
  if (pages.some((p) => p.path === base + "/:name")) return `${base}/${encodeURIComponent(name)}`;
  if (pages.some((p) => p.path === base)) return `${base}?q=${encodeURIComponent(name)}`;
  return undefined;
}
