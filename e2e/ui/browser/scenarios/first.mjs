// From an empty machine to a chain that carries traffic, and what one does with functions then: all of it in the browser.
import { ask, examine, open, say, settled, signedIn } from "../lib.mjs";

export default async function () {
  const page = await signedIn();
  const { document, alice } = await ask("document");
  const click = (name) => page.getByRole("button", { name, exact: true }).click();
  const seen = (text) => page.getByText(text, { exact: false }).first().waitFor();

  await seen("Nothing is here yet");
  await page.getByRole("link", { name: "Apply a file" }).first().click();

  // A mistake is refused with its line, and nothing is applied.
  page.strict = false; // a refusal is a status of 422
  await page.getByRole("textbox", { name: "The file" }).fill(document.replace("[tcp, icmp]", "[tcp, icmpx]"));
  await click("Plan");
  await seen("line");
  await page.locator(".notice.bad code", { hasText: "policies.guests.match" }).waitFor();
  page.strict = true;

  await page.getByRole("textbox", { name: "The file" }).fill(document);
  await click("Plan");
  await seen("The plan: nothing has changed yet");
  if ((await ask("count")).functions !== 0) throw new Error("a plan made functions");
  await click("Apply");
  await page.getByRole("heading", { name: "Applied" }).waitFor();
  await page.getByRole("link", { name: "Overview" }).click();
  await page.locator(".notice.ok", { hasText: "All well" }).waitFor();
  const { lost } = await ask("ping", { from: alice });
  if (lost) throw new Error(`${lost} pings were lost in the chain`);

  // Its packets are counted live.
  await open(page, "/functions/fw");
  await page.waitForFunction(() => [...document.querySelectorAll("td.right")].some((e) => /^[1-9]/.test(e.textContent)));
  await page.locator(".chart canvas").waitFor();

  // A function of the image's form.
  await open(page, "/functions");
  await page.getByRole("link", { name: "New function" }).click();
  await page.getByRole("combobox", { name: "Image" }).or(page.getByRole("textbox", { name: "Image" })).first().fill("firewall:1");
  await page.keyboard.press("Escape");
  await page.getByRole("textbox", { name: "Name" }).fill("fw2");
  const allow = page.getByRole("combobox", { name: "allow" }).or(page.getByRole("textbox", { name: "allow" })).first();
  await allow.fill("tcp/443");
  await page.keyboard.press("Enter");
  await page.getByText("weir function create fw2 --image firewall:1 --config 'allow=[\"tcp/443\"]' --start").waitFor();
  await examine(page, "/functions/new filled in");
  await click("Plan");
  await page.getByRole("link", { name: "function/fw2" }).waitFor();
  await click("Create");
  await page.waitForURL("**/functions/fw2");
  await page.locator(".page-head .state.ok", { hasText: "started" }).waitFor();
  const spec = (await ask("function", { name: "fw2" })).spec;
  if (JSON.stringify(spec.config) !== '{"allow":["tcp/443"]}') throw new Error(`config ${JSON.stringify(spec.config)}`);

  // Stop, start, restart.
  await page.getByRole("button", { name: "More actions" }).click();
  await page.getByRole("menuitem", { name: "Stop" }).click();
  await page.getByText("weir function stop fw2").waitFor();
  await settled(page);
  await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
  await page.locator(".page-head .state", { hasText: "stopped" }).waitFor();
  await click("Start");
  await page.getByRole("dialog").getByRole("button", { name: "Start" }).click();
  await page.locator(".page-head .state.ok", { hasText: "started" }).waitFor();

  // A change by the form: the plan says what changes.
  await page.getByRole("tab", { name: "Config" }).click();
  await allow.fill("udp/53");
  await page.keyboard.press("Enter");
  await click("Plan");
  await page.getByText("tcp/443", { exact: false }).first().waitFor();
  await click("Apply");
  for (;;) {
    if (JSON.stringify((await ask("function", { name: "fw2" })).spec.config) === '{"allow":["tcp/443","udp/53"]}') break;
    await page.waitForTimeout(100);
  }

  // A log as it comes, and a process in the function.
  await open(page, "/functions/mon?tab=logs");
  await page.locator(".log", { hasText: "icmp" }).waitFor();
  await page.getByRole("textbox", { name: "Search the log" }).fill("icmp");
  await page.locator(".log mark").first().waitFor();
  await open(page, "/functions/fw2?tab=shell");
  await page.getByRole("textbox", { name: "Program" }).fill("/bin/busybox sh");
  await page.getByRole("button", { name: "Start", exact: true }).last().click();
  await page.locator(".xterm").waitFor();
  await page.locator(".xterm-rows", { hasText: "#" }).or(page.locator(".xterm-rows", { hasText: "$" })).first().waitFor();
  await page.keyboard.type("echo $((40+2))th; exit 3\n");
  await page.locator(".xterm-rows", { hasText: "42th" }).waitFor();
  await page.getByText("The process ended with code 3.").waitFor();

  // Several alike, with the table's filter, export and deletion.
  await open(page, "/functions/new?image=wire:1");
  await page.getByText("Several alike", { exact: true }).click();
  await page.getByRole("textbox", { name: "Name" }).fill("many");
  await click("Plan");
  await click("Create");
  await page.waitForURL("**/functions?q=many");
  await page.locator("tbody tr", { hasText: "many-2" }).locator(".state.ok").waitFor();
  await click("Export");
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("menuitem", { name: "CSV" }).click()]);
  if (download.suggestedFilename() !== "weir-functions.csv") throw new Error(`saved ${download.suggestedFilename()}`);
  await open(page, "/functions/many-1");
  await page.getByRole("button", { name: "More actions" }).click();
  await page.getByRole("menuitem", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.waitForURL((u) => u.pathname === "/functions");
  await page.locator("tbody tr", { hasText: "many-2" }).waitFor(); // the list is there
  await page.locator("tbody tr", { hasText: "many-1" }).waitFor({ state: "detached" });
  await click("Undo");
  await page.getByRole("dialog").getByRole("button", { name: "Undo it" }).click();
  await page.locator("tbody tr", { hasText: "many-1" }).locator(".state.ok").waitFor();

  // An undo that comes before the end of the deletion waits for it: the function takes its time to end.
  await ask("stubborn");
  await open(page, "/functions/stubborn");
  await page.locator(".page-head .state.ok", { hasText: "started" }).waitFor();
  await page.getByRole("button", { name: "More actions" }).click();
  await page.getByRole("menuitem", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.waitForURL((u) => u.pathname === "/functions");
  page.strict = false; // 409
  await click("Undo");
  await page.getByRole("dialog").getByText("The deletion still goes on").waitFor();
  await examine(page, "an undo that waits");
  await page.getByRole("dialog").getByRole("button", { name: "Undo it" }).click(); // can be pressed when the plan is there
  await page.getByText("The last change is undone.").waitFor();
  page.strict = true;
  await page.locator("tbody tr", { hasText: "stubborn" }).locator(".state.ok", { hasText: "started" }).waitFor();

  // A function whose process dies is started again, and its page says when and why.
  await open(page, "/functions/many-2");
  await ask("crash", { name: "many-2" });
  const restarts = page.locator("section", { hasText: "1 restart since it was made" }).last();
  await restarts.locator("tr", { hasText: "its process ended" }).waitFor();
  await restarts.getByRole("img", { name: "It ended or hung once in the last 24 hours" }).waitFor();
  await page.locator(".page-head .state.ok", { hasText: "started" }).waitFor();
  await settled(page);
  await examine(page, "a function that was restarted");
  await page.setViewportSize({ width: 360, height: 740 });
  await examine(page, "a function that was restarted, narrow");
  await page.setViewportSize({ width: 1440, height: 900 });

  // What is in use cannot be deleted, and the page says why.
  await open(page, "/functions/fw");
  await page.getByRole("button", { name: "More actions" }).click();
  await page.getByRole("menuitem", { name: "Delete" }).click();
  page.strict = false; // 409
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("alert").waitFor();
  await page.keyboard.press("Escape");
  page.strict = true;

  // The host: closed, and open again; a token for another one.
  await open(page, "/hosts/local");
  await click("Close");
  await page.getByText("weir host close local").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Close", exact: true }).last().click();
  await page.locator(".page-head", { hasText: "closed" }).waitFor();
  await click("Open");
  await page.getByRole("dialog").getByRole("button", { name: "Open", exact: true }).click();
  await open(page, "/hosts");
  await click("Add a host");
  await page.getByRole("textbox", { name: "Address of this manager" }).fill("10.0.0.1:7412");
  await click("Make a token");
  await page.getByText("| weir agent --detach --manager https://10.0.0.1:7412 --token-file -").waitFor();
  await click("Done");

  // Keys.
  await page.keyboard.press("g");
  await page.keyboard.press("e");
  await page.waitForURL("**/events");
  await page.keyboard.press("/");
  await page.getByRole("combobox", { name: "Search" }).fill("function/mon");
  await page.keyboard.press("Enter");
  await page.waitForURL("**/functions/mon");
  say("from an empty machine to a chain, by the browser alone");
}
