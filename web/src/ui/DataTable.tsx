// A table that sorts, filters and exports what it shows.
import { Button, Menu, TextInput } from "@mantine/core";
import { IconArrowDown, IconArrowUp, IconDownload, IconFilter } from "@tabler/icons-react";
import { useMemo, useState, type ReactNode } from "react";
import { useSearchParams } from "react-router";
import { toCSV, toJSON, save, words, matches } from "./export";
import { plural } from "./format";

export type Value = string | number | boolean | undefined | null;

export interface Column<T> {
  key: string;
  title: string;
  /** What it is sorted, filtered and exported by. */
  value: (row: T) => Value;
  /** What is shown; default the value. */
  render?: (row: T) => ReactNode;
  align?: "right";
  /** Left out on narrow screens. */
  wide?: boolean;
}

interface Props<T> {
  /** Names the table for people, and the exported file. */
  name: string;
  rows: T[];
  columns: Column<T>[];
  rowKey: (row: T) => string;
  sort?: { key: string; down?: boolean };
  /** Shown when there are no rows at all. */
  empty: ReactNode;
  /** More tools beside the filter. */
  tools?: ReactNode;
  /** Under which name the filter stands in the URL. */
  param?: string;
  noFilter?: boolean;
}

const step = 200;

export function DataTable<T>({ name, rows, columns, rowKey, sort, empty, tools, param = "q", noFilter }: Props<T>) {
  const [query, setQuery] = useSearchParams();
  const filter = noFilter ? "" : (query.get(param) ?? "");
  const [order, setOrder] = useState(sort ?? { key: columns[0]!.key });
  const [most, setMost] = useState(step);

  const shown = useMemo(() => {
    const column = columns.find((c) => c.key === order.key) ?? columns[0]!;
    const wanted = words(filter);
    const kept = wanted.length ? rows.filter((r) => matches(wanted, columns.map((c) => c.value(r)))) : rows;
    const sign = order.down ? -1 : 1;
    return kept.map((r) => ({ r, v: column.value(r) })).sort((a, b) => sign * compare(a.v, b.v)).map((x) => x.r);
  }, [rows, columns, filter, order]);

  if (rows.length === 0 && !filter) return <>{tools && <div className="table-tools">{tools}</div>}{empty}</>;
  const setFilter = (text: string) =>
    setQuery(
      (q) => {
        if (text) q.set(param, text);
        else q.delete(param);
        return q;
      },
      { replace: true },
    );
  return (
    <>
      {!noFilter && (
        <div className="table-tools">
          <TextInput className="filter" size="xs" aria-label={`Filter ${name}`} placeholder="Filter: words, -without" leftSection={<IconFilter size={14} />} value={filter} onChange={(e) => setFilter(e.currentTarget.value)} data-filter />
          {tools}
          <Menu>
            <Menu.Target>
              <Button variant="default" leftSection={<IconDownload size={14} />} style={{ marginLeft: "auto" }}>
                Export
              </Button>
            </Menu.Target>
            <Menu.Dropdown>
              <Menu.Item onClick={() => save(`weir-${name}.csv`, "text/csv", toCSV(columns, shown))}>CSV, the {plural(shown.length, "row")} shown</Menu.Item>
              <Menu.Item onClick={() => save(`weir-${name}.json`, "application/json", toJSON(shown))}>JSON, whole objects</Menu.Item>
            </Menu.Dropdown>
          </Menu>
        </div>
      )}
      <div className="scroll-x" tabIndex={0} role="region" aria-label={name}>
        <table className="table">
          <thead>
            <tr>
              {columns.map((c) => (
                <th key={c.key} scope="col" className={[c.align, c.wide && "wide"].filter(Boolean).join(" ")} aria-sort={order.key === c.key ? (order.down ? "descending" : "ascending") : undefined}>
                  <button type="button" onClick={() => setOrder({ key: c.key, down: order.key === c.key && !order.down })}>
                    {c.title}
                    {order.key === c.key && (order.down ? <IconArrowDown size={12} aria-hidden /> : <IconArrowUp size={12} aria-hidden />)}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.slice(0, most).map((r) => (
              <tr key={rowKey(r)}>
                {columns.map((c) => (
                  <td key={c.key} className={[c.align, c.wide && "wide"].filter(Boolean).join(" ")}>
                    {c.render ? c.render(r) : String(c.value(r) ?? "")}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {(shown.length === 0 || shown.length > most || filter) && (
        <div className="table-foot">
          {shown.length === 0 ? "Nothing here has these words." : `${Math.min(most, shown.length)} of ${plural(rows.length, "row")}`}
          {shown.length > most && (
            <Button variant="default" onClick={() => setMost(most + step)}>
              Show {Math.min(step, shown.length - most)} more
            </Button>
          )}
          {filter && (
            <Button variant="default" onClick={() => setFilter("")}>
              Clear the filter
            </Button>
          )}
        </div>
      )}
    </>
  );
}

const collator = new Intl.Collator(undefined, { numeric: true });

function compare(a: Value, b: Value): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return collator.compare(String(a ?? ""), String(b ?? ""));
}
