// Two more hosts join by what the UI says; one is drained, the drain is taken back, and a host that has gone is deleted: all of it in the browser but for the
// command that the other machines run.
import { ask, examine, open, say, settled, signedIn } from "../lib.mjs";

export default async function () {
  const page = await signedIn();
  const click = (name) => page.getByRole("button", { name, exact: true }).click();
  const confirm = (name) => page.getByRole("dialog").getByRole("button", { name, exact: true }).click();
  const here = (name) => page.locator("section", { hasText: "Functions here" }).locator("tbody tr", { hasText: name });
  const row = (name) => page.locator("tbody tr", { hasText: name });

  // Before any host has joined there are the manager's images, from where hosts will fetch them.
  await open(page, "/images");
  await row("wire:1").getByText("manager").waitFor();
  await page.getByRole("button", { name: "wire:1", exact: true }).click();
  await page.getByRole("dialog").getByText("The manager has it: hosts fetch it from there").waitFor();
  await page.keyboard.press("Escape");

  for (const name of ["h1", "h2"]) {
    await open(page, "/hosts");
    await page.getByRole("button", { name: "Add a host", exact: true }).first().click(); // an empty list has one, too
    await page.getByRole("textbox", { name: "Address of this manager" }).fill((await ask("manager")).address);
    await page.getByRole("textbox", { name: "Name of the host" }).fill(name);
    await page.getByText(`weir token create --host ${name} --ttl 1h`).waitFor();
    await click("Make a token");
    const line = page.getByRole("dialog").getByText("| weir agent --detach");
    await line.waitFor();
    await settled(page);
    await examine(page, "a token for another host");
    const command = (await line.innerText()).trim();
    if (command.includes("\n")) throw new Error(`not one command: ${command}`);
    await ask("run", { name, command });
    await click("Done");
    await row(name).locator(".state.ok", { hasText: "ready" }).waitFor(); // without a reload
  }

  // Functions are placed on a host; the drain says who moves before it begins.
  await ask("apply");
  await open(page, "/hosts/h1");
  await here("movable").locator(".state.ok").waitFor();
  await click("Drain");
  const dialog = page.getByRole("dialog");
  await dialog.getByText("weir host drain h1").waitFor();
  await dialog.locator("li", { hasText: "movable moves to h2" }).waitFor();
  await dialog.locator("li", { hasText: "fixed stays: h1 is being drained; pinned by spec.host" }).waitFor();
  await settled(page);
  await examine(page, "the plan of a drain");
  if ((await ask("host", { name: "h1" })).spec.drain) throw new Error("a plan has begun the drain");
  await confirm("Drain");
  await page.locator(".page-head", { hasText: "draining, 1 stay" }).waitFor();
  await here("fixed").getByText("pinned by spec.host").waitFor();
  await here("movable").waitFor({ state: "detached" });
  await open(page, "/hosts");
  await row("h1").getByText("draining, 1 stay").waitFor();

  // Taken back.
  await open(page, "/hosts/h1");
  await click("End the drain");
  await page.getByText("weir host undrain h1").waitFor();
  await confirm("End the drain");
  await page.getByRole("button", { name: "Drain", exact: true }).waitFor();
  if ((await ask("host", { name: "h1" })).spec.drain) throw new Error("the drain goes on");

  // A host that runs is not deleted, and the page says what to do; one that is lost is.
  const remove = async (name) => {
    await open(page, `/hosts/${name}`);
    await page.getByRole("button", { name: "More actions" }).click();
    await page.getByRole("menuitem", { name: "Delete" }).click();
    await page.getByText(`weir delete host ${name}`).waitFor();
    await confirm("Delete");
  };
  page.strict = false; // 409
  await remove("h1");
  await dialog.getByRole("alert").getByText("stop its agent first").waitFor();
  await page.keyboard.press("Escape");
  page.strict = true;
  await ask("stop", { name: "h1" });
  await page.locator(".page-head .state", { hasText: "lost" }).waitFor();
  await remove("h1");
  await page.getByText("h1 is deleted").waitFor();
  await open(page, "/hosts");
  await row("h1").waitFor({ state: "detached" });
  await row("h2").waitFor();
  say("two hosts joined, one drained and deleted, in the browser");
}
