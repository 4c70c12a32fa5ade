// What the manager's store has and no image uses: what would go, and why the rest stays, before anything goes.
import { useQuery } from "@tanstack/react-query";
import { collectImages, type GCItem } from "../../api/images";
import { Failure, Loading, State } from "../../ui/basic";
import { Confirm } from "../../ui/Confirm";
import { bytes } from "../../ui/format";

export function CollectDialog({ onClose }: { onClose: () => void }) {
  const plan = useQuery({ queryKey: ["image-gc"], queryFn: () => collectImages(true), gcTime: 0, staleTime: 0, retry: false });
  const p = plan.data;
  return (
    <Confirm opened dangerous onClose={onClose} title="Remove what no image uses" verb="Remove" command="weir image gc" action={() => collectImages(false)} done="What no image used is removed.">
      <div className="stack">
        <p>What interrupted pulls and imports left in the store of the manager. Images stay, and what functions run. A pull that was interrupted begins anew.</p>
        {plan.isPending && <Loading />}
        <Failure error={plan.error} />
        {p && (
          <>
            <p role="status">{p.removed?.length ? `${bytes(p.freed_bytes ?? 0)} would be freed.` : "Nothing would go."}</p>
            <Items label="What would go" items={p.removed ?? []} more={p.removed_more} />
            <Items label="What stays" items={p.kept ?? []} more={p.kept_more} kept />
          </>
        )}
      </div>
    </Confirm>
  );
}

function Items({ label, items, more, kept }: { label: string; items: GCItem[]; more?: number; kept?: boolean }) {
  if (!items.length) return null;
  return (
    <div className="scroll-x" tabIndex={0} role="region" aria-label={label}>
      <table className="table">
        <thead>
          <tr>
            <th scope="col">Action</th>
            <th scope="col">Name</th>
            <th scope="col" className="right">
              Size
            </th>
            <th scope="col">Why</th>
          </tr>
        </thead>
        <tbody>
          {items.map((i) => (
            <tr key={i.name}>
              <td>
                <State level={kept ? "ok" : "bad"}>{kept ? "keep" : "remove"}</State>
              </td>
              <td className="mono break">{i.name?.startsWith("sha256:") ? i.name.slice(0, 19) : i.name}</td>
              <td className="right nowrap">{bytes(i.size_bytes ?? 0)}</td>
              <td className="break">{i.why}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {!!more && <p className="dim">and {more} more</p>}
    </div>
  );
}
