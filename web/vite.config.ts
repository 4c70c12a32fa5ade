import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// For `npm run dev`: the web UI's address of a running Weir (weir up --ui ...), which has the API, too.
const backend = process.env.WEIR_UI ?? "http://127.0.0.1:7410";

export default defineConfig({
  plugins: [react()],
  html: { cspNonce: "__CSP_NONCE__" }, // the server puts a new nonce there with each answer
  build: {
    outDir: "dist/app",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // no data: URLs
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 900, // size.mjs decides
    license: { fileName: "licenses.md" },
  },
  server: { proxy: { "/v1": { target: backend, ws: true }, "/healthz": backend } },
  test: { environment: "jsdom", include: ["src/**/*.test.{ts,tsx}"] },
});
