package ui

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"weir.dev/weir/api"
)

// checkOrigin refuses what another site makes a browser send. The Host header has to be an address of loopback: a name that somebody made to lead here
// (DNS rebinding) is none. What changes something, and what opens a stream both ways, has to come from a page of this very address.
func checkOrigin(r *http.Request) error {
	if !loopback(r.Host) {
		return api.Refuse(http.StatusForbidden, fmt.Sprintf("the Host header is %q: want localhost or an address of loopback, such as 127.0.0.1", clip(r.Host)))
	}
	origins, site := r.Header["Origin"], r.Header.Get("Sec-Fetch-Site")
	own := len(origins) == 1 && origins[0] == "http://"+r.Host
	if len(origins) > 0 && !own {
		return api.Refuse(http.StatusForbidden, fmt.Sprintf("the request comes from a page of %q: want http://%s", clip(strings.Join(origins, ", ")), r.Host))
	}
	reads := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""
	page := reads && !ofAPI(r.URL.Path) // a page may be opened from anywhere; frames are refused by its own headers
	switch {
	case page, site == "same-origin":
	case site == "none" && reads: // typed by the user
	case site != "":
		return api.Refuse(http.StatusForbidden, fmt.Sprintf("the request comes from another site (Sec-Fetch-Site: %s)", clip(site)))
	case !reads && !own:
		return api.Refuse(http.StatusForbidden, "the request has neither an Origin nor a Sec-Fetch-Site header: the web UI is for browsers, others bear a token at the API's address")
	}
	return nil
}

func clip(s string) string { return s[:min(len(s), 100)] }

// loopback tells whether a Host header names this machine only, with any port: there may be a tunnel (ssh -L).
func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.IsLoopback() && ip.Zone() == ""
}

// guardHeaders are those of every answer. A page's Content-Security-Policy is in files.
func guardHeaders(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
}

// pagePolicy lets a page load from its own address only, run no inline script, and have style elements with the nonce. Mantine needs those.
func pagePolicy(nonce, host string) string {
	return "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-" + nonce + "'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' ws://" + host +
		"; manifest-src 'self'; worker-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}

// cookieName has the port of the manager's listener: browsers send cookies of one port to all of an address, and each instance has its own.
func cookieName(r *http.Request) string {
	port := "0"
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		if _, p, err := net.SplitHostPort(at.String()); err == nil {
			port = p
		}
	}
	return "weir-session-" + port
}

func cookieOf(r *http.Request) (string, bool) {
	c, err := r.Cookie(cookieName(r))
	if err != nil || c.Value == "" {
		return "", false
	}
	return c.Value, true
}

// setCookie sets the session's secret, or with a negative age removes it. It is not Secure: on loopback there is no TLS.
func setCookie(w http.ResponseWriter, r *http.Request, secret string, age int) {
	http.SetCookie(w, &http.Cookie{Name: cookieName(r), Value: secret, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

// lastWorker is a service worker that ends itself, and loads the pages anew that it has.
const lastWorker = `addEventListener("install", () => skipWaiting());
addEventListener("activate", (e) => e.waitUntil(registration.unregister().then(() => clients.matchAll({ type: "window" })).then((all) => Promise.all(all.map((c) => c.navigate(c.url))))));
`

// endWorker answers the request for a service worker's script. The UI has none: somebody else served it at this address while Weir was down, and it answers for Weir in the
// browser until it gets a new script.
func endWorker(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "text/javascript; charset=utf-8")
	h.Set("Connection", "close")
	_, _ = io.WriteString(w, lastWorker) // the client is gone, if that fails
}

// clearCache has the browser forget what it keeps of this address: others may have served it, under the names of our files, too. Cookies and settings stay.
func clearCache(h http.Header) { h.Set("Clear-Site-Data", `"cache"`) }
