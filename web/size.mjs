// Fails if what the first page loads is more than 600 KB when compressed: the entry, all that it imports, its styles and fonts.
import { readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const most = 600 * 1024;
const app = new URL("dist/app/", import.meta.url).pathname;
const page = readFileSync(join(app, "index.html"), "utf8");
const first = new Set(["index.html", ...[...page.matchAll(/(?:src|href)="\/([^"]+)"/g)].map((m) => m[1])]);
for (const name of first) {
  if (!/\.(js|css)$/.test(name)) continue;
  const text = readFileSync(join(app, name), "utf8");
  const from = name.includes("/") ? "assets/" : "";
  for (const m of text.matchAll(/(?:import|from)\s*"\.\/([^"]+\.js)"/g)) first.add(from + m[1]);
  for (const m of text.matchAll(/url\((?:\/assets\/|\.\/)?([^)]*latin-wght[^)]*\.woff2)\)/g)) if (!m[1].includes("ext")) first.add("assets/" + m[1]);
}
const packed = (name) => (name.endsWith(".woff2") ? statSync(join(app, name)).size : gzipSync(readFileSync(join(app, name)), { level: 9 }).length);
const sum = [...first].reduce((n, name) => n + packed(name), 0);
const all = readdirSync(join(app, "assets")).reduce((n, name) => n + packed("assets/" + name), 0);
console.log(`first page: ${(sum / 1024).toFixed(0)} KB in ${first.size} files (at most ${most / 1024}); all: ${(all / 1024).toFixed(0)} KB`);
if (sum > most) {
  console.error("the first page is too large: load what it does not need lazily");
  process.exit(1);
}
