// Every page, light and dark, narrow and wide: nothing in the console, no failed request, nothing that axe-core finds, nothing wider than the window.
import { ask, examine, open, say, settled, signedIn } from "../lib.mjs";

const forms = [
  { colorScheme: "light", viewport: { width: 1440, height: 900 } },
  { colorScheme: "dark", viewport: { width: 1440, height: 900 } },
  { colorScheme: "light", viewport: { width: 360, height: 740 } },
  { colorScheme: "dark", viewport: { width: 360, height: 740 } },
];
const more = ["/functions/new?image=firewall:1", "/functions/fw", "/hosts/local", "/start", "/topology?policy=guests", "/policies/guests", "/policies/guests/edit", "/chains/new", "/endpoints/new", "/trace?from=alice&to=bob&match=tcp/80"];
const tabs = ["/functions/fw?tab=logs", "/functions/fw?tab=config", "/functions/fw?tab=shell", "/functions/fw?tab=events", "/no/such/page", "/functions/none", "/policies/none"]; // in half of the forms

export default async function () {
  const { pictures } = await ask("pictures");
  if (pictures) {
    await ask("traffic"); // so that there is something to see
    const page = await signedIn();
    await page.getByRole("img", { name: "Traffic of the last hour" }).locator("canvas").waitFor({ timeout: 90_000 }); // two points
    await page.close();
  }
  const seen = await Promise.all(
    forms.map(async (form) => {
      const page = await signedIn(form);
      const links = await page.locator("aside nav a").evaluateAll((all) => all.map((a) => a.getAttribute("href")));
      const details = [];
      for (const path of links) {
        await look(page, path, form, pictures);
        // The first object of each list has a page of its own, perhaps.
        details.push(...(await page.locator("main tbody a.name").evaluateAll((all) => all.slice(0, 1).map((a) => a.getAttribute("href")))));
      }
      const rest = [...new Set([...more, ...((form.colorScheme === "light") === (form.viewport.width > 360) ? tabs : []), ...details])].filter((p) => !links.includes(p));
      for (const path of rest) await look(page, path, form, pictures);
      if (form.viewport.width === 360) {
        await page.getByRole("button", { name: "Open the navigation" }).click();
        await page.getByRole("link", { name: "Functions", exact: true }).waitFor();
        await examine(page, "the navigation, narrow");
      } else {
        for (const [key, name] of [["/", "Search"], ["?", "Keys"]]) {
          await open(page, "/");
          await page.keyboard.press(key);
          await page.getByRole("dialog", { name }).waitFor();
          await settled(page);
          await examine(page, name);
          await page.keyboard.press("Escape");
        }
      }
      return links.length + rest.length;
    }),
  );
  say(`${seen[0]} pages in ${seen.length} forms`);
}

async function look(page, path, form, pictures) {
  await open(page, path);
  const what = `${path} (${form.colorScheme}, ${form.viewport.width} px)`;
  await examine(page, what);
  const name = path === "/" ? "overview" : { "/functions/fw": "function", "/functions/new?image=firewall:1": "new-function", "/hosts/local": "host", "/topology?policy=guests": "way", "/policies/guests": "policy", "/trace?from=alice&to=bob&match=tcp/80": "trace-of-a-packet" }[path] ?? (/^\/[a-z]+$/.test(path) ? path.slice(1) : undefined);
  if (!pictures || !name || form.colorScheme !== "dark" || form.viewport.width !== 1440) return;
  await page.waitForTimeout(4_000); // rates are of two readings
  await page.screenshot({ path: `${pictures}/${name}.png` });
}
