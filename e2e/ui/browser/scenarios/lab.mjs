// A quick run from the page with the keyboard, its progress, its report, another one that the manager's death cuts off and that goes on, and both side by side.
import { ask, examine, fail, open, settled, signedIn } from "../lib.mjs";

const until = 180_000;

/** Chooses one part and one pair of levels of the study generator: a run of some seconds. */
async function choose(page) {
  await open(page, "/lab/new?study=generator");
  await page.getByRole("checkbox", { name: /^ceiling / }).waitFor();
  for (const level of ["xdp-skb", "testpmd", "1514"]) {
    const box = page.getByRole("checkbox", { name: level, exact: true });
    await box.focus();
    await page.keyboard.press("Space");
  }
  await page.getByText("--only part=ceiling,generator=xdp-frame,generator=afpacket,size=64").waitFor();
  const start = page.getByRole("button", { name: "Start" });
  await start.focus();
  await page.keyboard.press("Enter");
  await page.waitForSelector('main[data-path^="/lab/runs/"]', { timeout: until });
  return page.url().split("/").pop();
}

export default async function () {
  const { pictures } = await ask("pictures");
  const page = await signedIn();
  await page.keyboard.press("g");
  await page.keyboard.press("l");
  await page.waitForSelector('main[data-path="/lab"]');
  await page.getByRole("heading", { name: "No run yet" }).waitFor();
  await examine(page, "the lab without a run");

  // What the machine can measure is said before anything is started.
  await open(page, "/lab/new?study=wires");
  await page.getByRole("heading", { name: "This machine" }).waitFor({ timeout: until });
  await page.getByText("cannot be measured here").first().waitFor();
  await examine(page, "a new run");

  // A run and its progress.
  const first = await choose(page);
  await page.getByRole("heading", { name: "Progress" }).waitFor();
  await page.locator("main tbody tr").first().waitFor({ timeout: until });
  await settled(page);
  await examine(page, "a run that goes on");
  if (pictures) await page.screenshot({ path: `${pictures}/lab-progress.png` });
  await open(page, "/lab/new");
  await page.getByText("No run can be started now").waitFor();
  if (!(await page.getByRole("button", { name: "Start" }).isDisabled())) fail("a second run can be started beside the first");

  // Its report, in a sandbox.
  await open(page, `/lab/runs/${first}`);
  const frame = page.frameLocator("iframe.report");
  await frame.locator("html[data-ready=yes]").waitFor({ timeout: until });
  await page.getByText(/24 trials: .* 0 left/).waitFor();
  if ((await frame.locator("#save button").count()) !== 4) fail("the report's own scripts do not run");
  const inside = page.frames().find((f) => f.url().endsWith("/report"));
  const origin = await inside.evaluate(() => globalThis.origin);
  if (origin !== "null") fail(`the report is of the origin ${origin}`);
  page.strict = false; // the console says that the frame's policy refuses it
  const reached = await inside.evaluate((to) => fetch(to).then(() => true, () => false), new URL("/v1/session", page.url()).href).catch(() => false);
  page.strict = true;
  if (reached) fail("the report reaches the API");
  await settled(page);
  await examine(page, "a report");
  if (pictures) {
    await page.evaluate(() => document.querySelector("iframe.report").scrollIntoView());
    await page.screenshot({ path: `${pictures}/lab-report.png` });
  }

  // The manager is killed while a run goes on and the page is open: the run ends, leaves nothing, and goes on from where it was.
  const second = await choose(page);
  await page.getByRole("heading", { name: "Progress" }).waitFor();
  await page.locator("main tbody tr").first().waitFor({ timeout: until });
  page.strict = false; // requests fail while nobody answers
  await ask("kill");
  await page.getByText("Weir does not answer").first().waitFor();
  await ask("nothing is left");
  await ask("start");
  await page.getByText("Weir does not answer").first().waitFor({ state: "hidden", timeout: until });
  await page.getByRole("button", { name: "Continue" }).waitFor({ timeout: until });
  page.strict = true;
  await page.getByRole("button", { name: "Continue" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Continue" }).click();
  await page.getByRole("heading", { name: "Progress" }).waitFor({ timeout: until });
  await page.getByText(/24 trials: .* 0 left/).waitFor({ timeout: until });
  await page.frameLocator("iframe.report").locator("html[data-ready=yes]").waitFor({ timeout: until });

  // Both side by side, by the API and on the page alike.
  await open(page, `/lab/compare?a=${first}&b=${second}`);
  await page.locator("main tbody tr").first().waitFor({ timeout: until });
  const { rows } = await ask("compare", { name: first, from: second });
  const shown = await page.locator("main tbody tr").count();
  if (shown !== rows) fail(`the page compares ${shown} levels, the API ${rows}`);
  await page.getByText("baseline").first().waitFor();
  await examine(page, "a comparison");
  if (pictures) await page.screenshot({ path: `${pictures}/lab-compare.png` });
  await open(page, "/lab");
  await page.getByRole("link", { name: second }).waitFor();
  if (pictures) await page.screenshot({ path: `${pictures}/lab.png` });

  // Every page of the lab in all forms.
  const paths = ["/lab", "/lab/new?study=wires", `/lab/runs/${first}`, `/lab/compare?a=${first}&b=${second}`];
  for (const form of [
    { colorScheme: "dark", viewport: { width: 1440, height: 900 } },
    { colorScheme: "light", viewport: { width: 360, height: 740 } },
    { colorScheme: "dark", viewport: { width: 360, height: 740 } },
  ]) {
    const other = await signedIn(form);
    for (const path of paths) {
      await open(other, path);
      if (path.includes("/runs/")) await other.frameLocator("iframe.report").locator("html[data-ready=yes]").waitFor();
      await settled(other);
      await examine(other, `${path} (${form.colorScheme}, ${form.viewport.width} px)`);
      if (pictures && form.colorScheme === "dark") await other.screenshot({ path: `${pictures}/${form.viewport.width}-${paths.indexOf(path)}.png` });
    }
    await other.context().close();
  }

  // Away with it.
  await open(page, `/lab/runs/${first}`);
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.waitForSelector('main[data-path="/lab"]');
  await page.getByRole("link", { name: first }).waitFor({ state: "detached" });
}
