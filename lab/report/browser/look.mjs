// Opens a report in Chromium without a network, in several forms, and prints what it saw as JSON. print.pdf is
// left in a directory and, with the word pictures, a picture of each form.
//   node look.mjs CHROMIUM REPORT DIRECTORY [pictures]
import { chromium } from "playwright-core";
import { mkdirSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [browserPath, report, directory, pictures] = process.argv.slice(2);
mkdirSync(directory, { recursive: true });
const forms = [
  { name: "light", colorScheme: "light", viewport: { width: 1200, height: 900 } },
  { name: "dark", colorScheme: "dark", viewport: { width: 1200, height: 900 } },
  { name: "telephone", colorScheme: "light", viewport: { width: 360, height: 740 } },
  { name: "without-script", colorScheme: "light", viewport: { width: 900, height: 900 }, javaScriptEnabled: false },
];

// examine runs in the page.
function examine() {
  const shown = (e) => e.getClientRects().length > 0;
  const luminance = (c) => {
    const [r, g, b] = c.match(/[\d.]+/g).slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (c && c !== "transparent" && !c.endsWith(", 0)")) return c;
    }
    return "rgb(255, 255, 255)";
  };
  const small = [], pale = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    const text = walk.currentNode.textContent.trim();
    if (!text || !shown(e) || ["SCRIPT", "STYLE", "TITLE"].includes(e.tagName) || e.tagName === "title") continue;
    const s = getComputedStyle(e);
    const scaled = e.ownerSVGElement ? e.ownerSVGElement.getBoundingClientRect().width / e.ownerSVGElement.viewBox.baseVal.width : 1;
    if (parseFloat(s.fontSize) * scaled < 11.99) small.push(text + " " + s.fontSize);
    const a = luminance(e.ownerSVGElement ? s.fill : s.color), b = luminance(ground(e));
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) pale.push(text + " " + contrast.toFixed(1));
  }
  const canvases = [...document.querySelectorAll(".chart canvas")].filter(shown).map((c) => {
    const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
    const colours = new Set();
    let ink = 0;
    for (let i = 0; i < d.length; i += 4) {
      if (d[i + 3] > 200) { ink++; colours.add((d[i] >> 4) << 8 | (d[i + 1] >> 4) << 4 | d[i + 2] >> 4); }
    }
    return { id: c.closest("[data-chart]").dataset.chart, ink, colours: colours.size };
  });
  const outside = [];
  for (const svg of document.querySelectorAll("svg.figure")) {
    if (!shown(svg)) continue;
    const box = svg.getBoundingClientRect();
    for (const t of svg.querySelectorAll("text")) {
      const r = t.getBoundingClientRect();
      if (r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1) {
        outside.push(svg.closest("figure").id + ": " + t.textContent);
      }
    }
  }
  return {
    width: document.documentElement.clientWidth, scrollWidth: document.documentElement.scrollWidth,
    background: getComputedStyle(document.body).backgroundColor,
    figures: [...document.querySelectorAll("figure")].map((f) => ({
      id: f.id, tables: f.querySelectorAll("table tbody tr").length,
      svg: [...f.querySelectorAll("svg.figure")].filter(shown).reduce((n, s) => n + s.querySelectorAll("line,circle,polygon,polyline,rect,text").length, 0),
      canvas: [...f.querySelectorAll("canvas")].filter(shown).length,
    })),
    canvases, small, pale, outside, findings: document.querySelectorAll(".finding").length,
    nameless: [...document.querySelectorAll("button, a, [role=img], [role=region]")].filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label"))).length,
  };
}

const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
const seen = {};
try {
  for (const { name, ...options } of forms) {
    const context = await browser.newContext({ ...options, offline: true });
    const page = await context.newPage();
    const errors = [], requests = [];
    page.on("console", (m) => { if (["error", "warning"].includes(m.type())) errors.push(m.text()); });
    page.on("pageerror", (e) => errors.push(String(e)));
    page.on("request", (r) => { if (!r.url().startsWith("data:") && !r.url().startsWith("blob:")) requests.push(r.url()); });
    await page.goto(pathToFileURL(report).href);
    if (options.javaScriptEnabled !== false) {
      await page.waitForSelector("html[data-ready=yes]", { timeout: 20000, state: "attached" });
      await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))); // uPlot draws in a microtask of the next frame
    }
    if (pictures) await page.screenshot({ path: `${directory}/${name}.png`, fullPage: true });
    seen[name] = { ...(await page.evaluate(examine)), errors, requests: requests.length };
    if (name === "light") {
      const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save button >> nth=1")]);
      seen[name].saved = download.suggestedFilename();
      await page.emulateMedia({ media: "print" });
      seen.print = { ...(await page.evaluate(examine)), errors, requests: 0 };
      await page.pdf({ path: `${directory}/print.pdf`, format: "A4", printBackground: true, margin: { top: "15mm", bottom: "15mm", left: "15mm", right: "15mm" } });
      await page.emulateMedia({ media: "screen", colorScheme: "dark" }); // the charts follow
      await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
      seen.turned = { ...(await page.evaluate(examine)), errors, requests: 0 };
    }
    await context.close();
  }
} finally {
  await browser.close();
}
console.log(JSON.stringify(seen));
