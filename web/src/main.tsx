import "@fontsource-variable/inter/wght.css";
import "@fontsource-variable/jetbrains-mono/wght.css";
import "@mantine/core/styles.css";
import "@mantine/notifications/styles.css";
import "./app.css";
import { localStorageColorSchemeManager, MantineProvider } from "@mantine/core";
import { Notifications } from "@mantine/notifications";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { setNonce } from "get-nonce";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { BrowserRouter } from "react-router";
import { App } from "./App";
import { theme } from "./theme";

const queries = new QueryClient({ defaultOptions: { queries: { retry: false, refetchOnWindowFocus: false } } });
const nonce = document.querySelector<HTMLMetaElement>("meta[property=csp-nonce]")?.nonce ?? "";
setNonce(nonce); // dialogs stop the page behind them from scrolling, by a style element

// The UI has no service worker: one that is here is somebody else's, who had this address while Weir was down.
void navigator.serviceWorker?.getRegistrations().then((all) => all.forEach((r) => void r.unregister()));

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <MantineProvider theme={theme} defaultColorScheme="auto" colorSchemeManager={localStorageColorSchemeManager({ key: "weir-scheme" })} getStyleNonce={() => nonce}>
      <QueryClientProvider client={queries}>
        {/* Not as transitions: a key or a letter that comes before the address of the last one is drawn would count for what was there before it. */}
        <BrowserRouter useTransitions={false}>
          <App />
          <Notifications position="bottom-right" limit={4} />
        </BrowserRouter>
      </QueryClientProvider>
    </MantineProvider>
  </StrictMode>,
);
