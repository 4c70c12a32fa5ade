package manager_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/gorilla/websocket"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/manager/managertest"
	"weir.dev/weir/store/mem"
)

// page is a UI as it is built.
func page() fstest.MapFS {
	return fstest.MapFS{
		"placeholder.html":       {Data: []byte("not built")},
		"app/index.html":         {Data: []byte(`<html><style nonce="__CSP_NONCE__"></style><script src="/assets/a-1.js"></script></html>`)},
		"app/assets/a-1.js":      {Data: bytes.Repeat([]byte("let a = 1;\n"), 1000)},
		"app/assets/a-1.js.map":  {Data: []byte("{}")},
		"app/favicon.svg":        {Data: []byte("<svg/>")},
		"app/assets/b-2.woff2":   {Data: bytes.Repeat([]byte{1}, 5000)},
		"app/assets/sub/c-3.css": {Data: []byte("a{}")},
	}
}

// site is a manager with a web UI.
type site struct{ *bench }

func startSite(t testing.TB, o manager.Options) *site {
	t.Helper()
	if o.UI == nil {
		o.UI = page()
	}
	return &site{start(t, o)}
}

// ask sends a request as a browser's script does, but for what header changes; "" leaves one out.
func (s *site) ask(t testing.TB, method, path, cookie, body string, header map[string]string) (*http.Response, []byte) {
	t.Helper()
	r := must(http.NewRequestWithContext(ctx(t), method, s.ui+path, strings.NewReader(body)))(t)
	r.Header.Set("Origin", s.ui)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if cookie != "" {
		r.Header.Set("Cookie", cookie)
	}
	for name, value := range header {
		switch {
		case name == "Host":
			r.Host = value
		case value == "":
			r.Header.Del(name)
		default:
			r.Header.Set(name, value)
		}
	}
	tr := &http.Transport{DisableCompression: true}
	defer tr.CloseIdleConnections()
	resp := must(tr.RoundTrip(r))(t)
	defer resp.Body.Close()
	return resp, must(io.ReadAll(resp.Body))(t)
}

// signIn exchanges a code or a token for a cookie.
func (s *site) signIn(t testing.TB, req api.SessionRequest) (cookie string, status int) {
	t.Helper()
	resp, _ := s.ask(t, "POST", "/v1/session", "", string(must(json.Marshal(req))(t)), nil)
	if resp.StatusCode != http.StatusOK {
		return "", resp.StatusCode
	}
	for _, c := range resp.Cookies() {
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.MaxAge <= 0 || c.MaxAge > 24*3600 {
			t.Errorf("cookie %v: want HttpOnly, SameSite=Strict, path / and a bounded life", c)
		}
		cookie = c.Name + "=" + c.Value
	}
	return cookie, resp.StatusCode
}

// codeOf makes a link and takes its code out.
func codeOf(t testing.TB, c *api.Client) string {
	t.Helper()
	link := must(c.SessionLink(ctx(t)))(t)
	at, code, ok := strings.Cut(link.URL, "#")
	if !ok || !strings.HasPrefix(at, link.Address+"sign-in/") || len(at) < len(link.Address+"sign-in/")+22 || len(code) < 43 {
		t.Fatalf("link %+v", link)
	}
	return code
}

func TestALinkOpensTheUIOnceWithTheRightsOfWhoMadeIt(t *testing.T) {
	s := startSite(t, manager.Options{})
	code := codeOf(t, s.Client)
	cookie, status := s.signIn(t, api.SessionRequest{Code: code})
	if status != http.StatusOK {
		t.Fatalf("sign in: %d", status)
	}
	if _, status := s.signIn(t, api.SessionRequest{Code: code}); status != http.StatusUnauthorized {
		t.Errorf("the same code again: %d, want 401", status)
	}
	resp, body := s.ask(t, "GET", "/v1/session", cookie, "", nil)
	var who api.Session
	if err := json.Unmarshal(body, &who); err != nil || who.Role != api.RoleAdmin || !strings.HasPrefix(who.Who, "user ") || who.Expires.IsZero() || who.UI != s.ui+"/" {
		t.Errorf("session %d %s", resp.StatusCode, body)
	}
	for path, body := range map[string]string{"/v1/functions/f": `{"spec":{"image":"wire"}}`} {
		if resp, text := s.ask(t, "PUT", path, cookie, body, nil); resp.StatusCode != http.StatusAccepted && resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusOK {
			t.Errorf("PUT %s: %d %s", path, resp.StatusCode, text)
		}
	}
	// The audit log says who and by what.
	audit := must(s.Audit().List(ctx(t), api.ListOptions{}))(t)
	var seen []string
	for _, a := range audit.Items {
		seen = append(seen, a.Who+" "+a.Verb+" "+string(a.Kind)+" "+a.From)
	}
	for _, want := range []string{who.Who + " link session", who.Who + " sign-in session", who.Who + " put function 127.0.0.1, web UI"} {
		if !strings.Contains(strings.Join(seen, "\n"), want) {
			t.Errorf("audit log lacks %q:\n%s", want, strings.Join(seen, "\n"))
		}
	}
	// Signed out, the cookie is worth nothing.
	if resp, _ := s.ask(t, "DELETE", "/v1/session", cookie, "", nil); resp.StatusCode != http.StatusNoContent || resp.Header.Get("Set-Cookie") == "" {
		t.Errorf("sign out: %d %v", resp.StatusCode, resp.Header)
	}
	if resp, _ := s.ask(t, "GET", "/v1/session", cookie, "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("after signing out: %d, want 401", resp.StatusCode)
	}
}

// Another user of the machine may have served the UI's address while Weir was down.
func TestWhatOthersServedHereGoes(t *testing.T) {
	s := startSite(t, manager.Options{})
	one, other := must(s.SessionLink(ctx(t)))(t), must(s.SessionLink(ctx(t)))(t)
	at, _, _ := strings.Cut(one.URL, "#")
	if again, _, _ := strings.Cut(other.URL, "#"); at == again {
		t.Errorf("two links have the path %s", at)
	}
	resp, body := s.ask(t, "GET", "/"+strings.TrimPrefix(at, one.Address), "", "", nil)
	if resp.StatusCode != 200 || !strings.Contains(string(body), "<html") || resp.Header.Get("Clear-Site-Data") != `"cache"` {
		t.Errorf("the page of a link: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	cookie, _ := s.signIn(t, api.SessionRequest{Code: codeOf(t, s.Client)})
	for _, x := range []struct {
		path, cookie string
		clears       bool
	}{{"/", "", true}, {"/", strings.SplitN(cookie, "=", 2)[0] + "=another", true}, {"/", cookie, true}, {"/", cookie, false}, {"/sign-in/x", cookie, true}, {"/assets/a-1.js", "", false}} {
		if resp, _ := s.ask(t, "GET", x.path, x.cookie, "", nil); (resp.Header.Get("Clear-Site-Data") != "") != x.clears {
			t.Errorf("%+v: %v", x, resp.Header)
		}
	}
	resp, _ = s.ask(t, "POST", "/v1/session", "", `{"token":"`+s.token+`"}`, nil)
	if resp.StatusCode != 200 || resp.Header.Get("Clear-Site-Data") != `"cache"` {
		t.Errorf("sign in by a token: %d %v", resp.StatusCode, resp.Header)
	}
	for _, path := range []string{"/worker.js", "/", "/assets/a-1.js", "/v1/functions", "/sign-in/x"} {
		resp, body := s.ask(t, "GET", path, "", "", map[string]string{"Service-Worker": "script"})
		if resp.StatusCode != 200 || !strings.Contains(string(body), "registration.unregister()") || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/javascript") || resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("a service worker from %s: %d %v %s", path, resp.StatusCode, resp.Header, body)
		}
	}
}

func TestCodesAndSessionsEnd(t *testing.T) {
	var skew atomic.Int64
	s := startSite(t, manager.Options{Now: func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }})
	code := codeOf(t, s.Client)
	skew.Store(int64(6 * time.Minute))
	if _, status := s.signIn(t, api.SessionRequest{Code: code}); status != http.StatusUnauthorized {
		t.Errorf("a code of six minutes: %d, want 401", status)
	}
	cookie, _ := s.signIn(t, api.SessionRequest{Code: codeOf(t, s.Client)})
	skew.Store(int64(11 * time.Hour))
	if resp, _ := s.ask(t, "GET", "/v1/session", cookie, "", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("after 11 hours: %d", resp.StatusCode)
	}
	skew.Store(int64(13 * time.Hour))
	if resp, _ := s.ask(t, "GET", "/v1/session", cookie, "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("after 13 hours: %d, want 401", resp.StatusCode)
	}
}

// A session may what its token may, no longer than the token is worth something. Its streams end with it.
func TestASessionStandsForItsToken(t *testing.T) {
	s := startSite(t, manager.Options{})
	must(s.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t)
	for name, end := range map[string]func(token string) error{
		"deleted":         func(name string) error { return s.DeleteToken(ctx(t), name) },
		"rotated":         func(name string) error { _, err := s.RotateToken(ctx(t), name); return err },
		"signed out, all": func(string) error { return s.EndSessions(ctx(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			token := must(s.NewToken(ctx(t), api.TokenRequest{Name: strings.NewReplacer(" ", "-", ",", "").Replace(name), Role: api.RoleViewer}))(t)
			byToken, _ := s.signIn(t, api.SessionRequest{Token: token.Token})
			byLink, _ := s.signIn(t, api.SessionRequest{Code: codeOf(t, s.bearer(t, token.Token))})
			if byToken == "" || byLink == "" || byToken == byLink {
				t.Fatalf("cookies %q, %q", byToken, byLink)
			}
			unused := codeOf(t, s.bearer(t, token.Token))
			for _, cookie := range []string{byToken, byLink} {
				for request, want := range map[string]int{
					"GET /v1/functions/f": 200, "GET /metrics": 200, "GET /v1/tokens": 403, "GET /v1/audit": 403, "DELETE /v1/functions/f": 403, "POST /v1/functions/f/restart": 403,
					"GET /v1/functions/f/logs": 403, "POST /v1/session/links": 409,
				} {
					method, path, _ := strings.Cut(request, " ")
					if resp, body := s.ask(t, method, path, cookie, "", nil); resp.StatusCode != want {
						t.Errorf("%s: %d, want %d: %s", request, resp.StatusCode, want, body)
					}
				}
			}
			// A stream that is open ends, too.
			r := must(http.NewRequestWithContext(ctx(t), "GET", s.ui+"/v1/functions?watch", nil))(t)
			r.Header.Set("Cookie", byToken)
			tr := &http.Transport{}
			defer tr.CloseIdleConnections()
			stream := must(tr.RoundTrip(r))(t)
			defer stream.Body.Close()
			if err := end(token.ID); err != nil {
				t.Fatal(err)
			}
			for _, cookie := range []string{byToken, byLink} {
				if resp, _ := s.ask(t, "GET", "/v1/functions/f", cookie, "", nil); resp.StatusCode != http.StatusUnauthorized {
					t.Errorf("afterwards: %d, want 401", resp.StatusCode)
				}
			}
			if _, status := s.signIn(t, api.SessionRequest{Code: unused}); status != http.StatusUnauthorized {
				t.Errorf("a code of before: %d, want 401", status)
			}
			if _, err := io.Copy(io.Discard, stream.Body); ctx(t).Err() != nil {
				t.Errorf("the stream goes on: %v", err)
			}
		})
	}
}

func TestOnlyTheOwnPageMayAsk(t *testing.T) {
	s := startSite(t, manager.Options{})
	must(s.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t)
	cookie, _ := s.signIn(t, api.SessionRequest{Code: codeOf(t, s.Client)})
	port := s.ui[strings.LastIndex(s.ui, ":")+1:]
	type header = map[string]string
	const get, restart = "GET /v1/functions/f", "POST /v1/functions/f/restart"
	for name, x := range map[string]struct {
		request, cookie string
		header          header
		want            int
	}{
		"the page reads":                      {get, cookie, nil, 200},
		"the page writes":                     {restart, cookie, nil, 202},
		"no cookie":                           {get, "", nil, 401},
		"another cookie":                      {get, strings.SplitN(cookie, "=", 2)[0] + "=" + strings.Repeat("x", 43), nil, 401},
		"a token is none here":                {get, "", header{"Authorization": "Bearer " + s.token}, 401},
		"by a tunnel":                         {get, cookie, header{"Host": "127.0.0.1:9999", "Origin": "http://127.0.0.1:9999"}, 200},
		"localhost":                           {get, cookie, header{"Host": "localhost:" + port, "Origin": "http://localhost:" + port}, 200},
		"a name that leads here":              {get, cookie, header{"Host": "evil.example:" + port, "Origin": "http://evil.example:" + port}, 403},
		"such a name, and no Origin":          {get, cookie, header{"Host": "evil.example", "Origin": ""}, 403},
		"a name that ends so":                 {get, cookie, header{"Host": "127.0.0.1.evil.example", "Origin": ""}, 403},
		"all addresses":                       {get, cookie, header{"Host": "0.0.0.0:" + port, "Origin": ""}, 403},
		"the page of a name is no page":       {"GET /", "", header{"Host": "evil.example"}, 403},
		"another site":                        {restart, cookie, header{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403},
		"another site, an old browser":        {restart, cookie, header{"Origin": "https://evil.example", "Sec-Fetch-Site": ""}, 403},
		"another port":                        {restart, cookie, header{"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, 403},
		"another port reads":                  {get, cookie, header{"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, 403},
		"another port reads without Origin":   {get, cookie, header{"Origin": "", "Sec-Fetch-Site": "same-site"}, 403},
		"a sandboxed frame":                   {restart, cookie, header{"Origin": "null", "Sec-Fetch-Site": ""}, 403},
		"https is another":                    {restart, cookie, header{"Origin": "https" + strings.TrimPrefix(s.ui, "http")}, 403},
		"a form without any of the headers":   {restart, cookie, header{"Origin": "", "Sec-Fetch-Site": ""}, 403},
		"typed by the user":                   {get, cookie, header{"Origin": "", "Sec-Fetch-Site": "none"}, 200},
		"typed by the user does not write":    {restart, cookie, header{"Origin": "", "Sec-Fetch-Site": "none"}, 403},
		"no browser that writes":              {"POST /v1/session", "", header{"Origin": "", "Sec-Fetch-Site": ""}, 403},
		"another site opens the page":         {"GET /policies/p", "", header{"Origin": "", "Sec-Fetch-Site": "cross-site"}, 200},
		"another site takes a file as script": {"GET /assets/a-1.js", "", header{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403},
		"health":                              {"GET /healthz", "", nil, 200},
	} {
		method, path, _ := strings.Cut(x.request, " ")
		resp, body := s.ask(t, method, path, x.cookie, "", x.header)
		if resp.StatusCode != x.want {
			t.Errorf("%s: %d, want %d: %s", name, resp.StatusCode, x.want, body)
		}
		if csp := resp.Header.Get("Content-Security-Policy"); resp.StatusCode < 400 && !strings.Contains(csp, "frame-ancestors 'none'") {
			t.Errorf("%s: Content-Security-Policy %q", name, csp)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s: %s", name, got)
			}
		}
	}
	// A cookie is worth nothing at the API's address.
	r := must(http.NewRequestWithContext(ctx(t), "GET", s.url+"/v1/functions/f", nil))(t)
	r.Header.Set("Cookie", cookie)
	resp := must(http.DefaultTransport.RoundTrip(r))(t)
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a cookie at the API's address: %d, want 401", resp.StatusCode)
	}
	// And nobody signs in there.
	if code, _, body := request(t, s.bench, "POST", "/v1/session", map[string]string{"Authorization": "Bearer " + s.token}, `{"token":"`+s.token+`"}`); code != http.StatusConflict {
		t.Errorf("sign in at the API's address: %d %s", code, body)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestFilesOfTheUI(t *testing.T) {
	s := startSite(t, manager.Options{})
	get := func(path string, header map[string]string) (*http.Response, []byte) {
		return s.ask(t, "GET", path, "", "", header)
	}
	// Every path of the UI's own is its page, with a nonce of its own.
	nonces := map[string]bool{}
	for _, path := range []string{"/", "/policies/guests", "/sign-in", "/no/such/page", "/v1nope", "/..%2f..%2fetc/passwd"} {
		resp, body := get(path, nil)
		_, nonce, _ := strings.Cut(string(body), `nonce="`)
		nonce, _, _ = strings.Cut(nonce, `"`)
		csp := resp.Header.Get("Content-Security-Policy")
		if resp.StatusCode != 200 || len(nonce) < 22 || nonces[nonce] || !strings.Contains(csp, "style-src 'self' 'nonce-"+nonce+"'") || !strings.Contains(csp, "script-src 'self';") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %d %s %s", path, resp.StatusCode, csp, body)
		}
		if got := resp.Header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("%s: Cache-Control %q", path, got)
		}
		nonces[nonce] = true
	}
	// Files with a hash in the name are kept for ever, the others are asked for.
	for path, want := range map[string]string{"/assets/a-1.js": "private, max-age=31536000, immutable", "/assets/sub/c-3.css": "private, max-age=31536000, immutable", "/favicon.svg": "no-cache"} {
		resp, _ := get(path, nil)
		if resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != want || resp.Header.Get("ETag") == "" {
			t.Errorf("%s: %d %v", path, resp.StatusCode, resp.Header)
		}
		if resp, _ := get(path, map[string]string{"If-None-Match": resp.Header.Get("ETag")}); resp.StatusCode != http.StatusNotModified {
			t.Errorf("%s again: %d, want 304", path, resp.StatusCode)
		}
	}
	resp, body := get("/assets/a-1.js", map[string]string{"Accept-Encoding": "gzip, deflate, br"})
	plain := must(io.ReadAll(must(gzip.NewReader(bytes.NewReader(body)))(t)))(t)
	if resp.Header.Get("Content-Encoding") != "gzip" || !bytes.Equal(plain, page()["app/assets/a-1.js"].Data) || len(body) > 500 || !strings.Contains(resp.Header.Get("Content-Type"), "javascript") {
		t.Errorf("gzip: %v, %d bytes, %d unpacked", resp.Header, len(body), len(plain))
	}
	if resp, _ := get("/assets/b-2.woff2", map[string]string{"Accept-Encoding": "gzip"}); resp.Header.Get("Content-Encoding") != "" {
		t.Error("a font is compressed twice")
	}
	for request, want := range map[string]int{"GET /assets/gone-9.js": 404, "GET /assets/a-1.js.map": 404, "POST /": 405, "GET /v1": 401, "GET /v1/nope": 401} {
		method, path, _ := strings.Cut(request, " ")
		if resp, _ := s.ask(t, method, path, "", "", nil); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", request, resp.StatusCode, want)
		}
	}
	// Without a built UI there is a page that says how to build it.
	s = startSite(t, manager.Options{UI: fstest.MapFS{"placeholder.html": page()["placeholder.html"]}})
	if _, body := s.ask(t, "GET", "/", "", "", nil); string(body) != "not built" {
		t.Errorf("no UI: %s", body)
	}
}

// One who asks for many links or sessions drives out nobody else's.
func TestSessionsAreBounded(t *testing.T) {
	s := startSite(t, manager.Options{})
	first, _ := s.signIn(t, api.SessionRequest{Code: codeOf(t, s.Client)})
	token := must(s.NewToken(ctx(t), api.TokenRequest{Name: "many", Role: api.RoleViewer}))(t)
	oldest, _ := s.signIn(t, api.SessionRequest{Token: token.Token})
	for range 32 {
		if _, status := s.signIn(t, api.SessionRequest{Token: token.Token}); status != 200 {
			t.Fatalf("sign in: %d", status)
		}
	}
	if resp, _ := s.ask(t, "GET", "/v1/session", oldest, "", nil); resp.StatusCode != 401 {
		t.Errorf("the oldest of 33: %d, want 401", resp.StatusCode)
	}
	if resp, _ := s.ask(t, "GET", "/v1/session", first, "", nil); resp.StatusCode != 200 {
		t.Errorf("another's: %d, want 200", resp.StatusCode)
	}
}

// A daemon that was killed and started again, and what happened to sessions before and in between. Nothing is written at the end: the file is the same.
func TestSessionsOutliveARestart(t *testing.T) {
	dir, file := shortDir(t), filepath.Join(shortDir(t), "sessions.json")
	var skew atomic.Int64
	o := manager.Options{Store: mem.New(), SessionsFile: file, UI: page(), Now: func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }}
	s := &site{startIn(t, dir, o)}
	cookies := map[string]string{}
	signIn := func(name string, req api.SessionRequest) {
		cookie, status := s.signIn(t, req)
		if status != http.StatusOK {
			t.Fatalf("%s: sign in: %d", name, status)
		}
		cookies[name] = cookie
	}
	tokens := map[string]api.Token{}
	for _, name := range []string{"stays", "deleted", "rotated", "lapses", "anew"} {
		ttl := "20h"
		if name == "lapses" {
			ttl = "1h"
		}
		tokens[name] = must(s.NewToken(ctx(t), api.TokenRequest{Name: name, Role: api.RoleViewer, TTL: ttl}))(t)
		signIn("a token that "+name, api.SessionRequest{Token: tokens[name].Token})
	}
	signIn("root's link", api.SessionRequest{Code: codeOf(t, s.Client)})
	signIn("the token file", api.SessionRequest{Token: s.token})
	signIn("signed out", api.SessionRequest{Code: codeOf(t, s.Client)})
	if resp, _ := s.ask(t, "DELETE", "/v1/session", cookies["signed out"], "", nil); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("sign out: %d", resp.StatusCode)
	}
	unused := codeOf(t, s.Client)

	text := must(os.ReadFile(file))(t)
	if info := must(os.Stat(file))(t); info.Mode() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	secrets := []string{unused, s.token}
	for _, cookie := range cookies {
		secrets = append(secrets, cookie[strings.Index(cookie, "=")+1:])
	}
	for _, token := range tokens {
		secrets = append(secrets, token.Token[strings.LastIndex(token.Token, ".")+1:])
	}
	for _, secret := range secrets {
		if len(secret) < 32 || bytes.Contains(text, []byte(secret)) {
			t.Errorf("the file contains the secret %q", secret)
		}
	}

	stopped := func() {
		t.Helper()
		before := must(os.ReadFile(file))(t)
		s.stop()
		if after := must(os.ReadFile(file))(t); !bytes.Equal(before, after) {
			t.Error("the file is written when the manager ends: one that is killed does not")
		}
	}
	restarted := func() {
		t.Helper()
		s = &site{startIn(t, dir, o)}
		for name, cookie := range cookies { // the port is another here; in life it is the same
			cookies[name] = "weir-session-" + s.ui[strings.LastIndex(s.ui, ":")+1:] + cookie[strings.Index(cookie, "="):]
		}
	}
	status := func(name string) int {
		resp, _ := s.ask(t, "GET", "/v1/functions", cookies[name], "", nil)
		return resp.StatusCode
	}
	stopped()
	// While this manager is down another one of the store changes tokens.
	other := start(t, manager.Options{Store: o.Store})
	for _, err := range []error{other.DeleteToken(ctx(t), "deleted"), other.DeleteToken(ctx(t), "anew")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(other.RotateToken(ctx(t), "rotated"))(t)
	must(other.NewToken(ctx(t), api.TokenRequest{Name: "anew", Role: api.RoleAdmin}))(t)
	other.stop()
	skew.Store(int64(2 * time.Hour))
	restarted()
	for name, want := range map[string]int{
		"a token that stays": 200, "root's link": 200, "the token file": 200,
		"a token that deleted": 401, "a token that rotated": 401, "a token that lapses": 401, "a token that anew": 401, "signed out": 401,
	} {
		if got := status(name); got != want {
			t.Errorf("%s: %d after the restart, want %d", name, got, want)
		}
	}
	if _, status := s.signIn(t, api.SessionRequest{Code: unused}); status != http.StatusUnauthorized {
		t.Errorf("a code of before: %d, want 401", status)
	}
	for name, want := range map[string]api.Role{"a token that stays": api.RoleViewer, "root's link": api.RoleAdmin} {
		var who api.Session
		if _, body := s.ask(t, "GET", "/v1/session", cookies[name], "", nil); json.Unmarshal(body, &who) != nil || who.Role != want || who.Expires.After(time.Now().Add(12*time.Hour+time.Minute)) {
			t.Errorf("%s: %s", name, body)
		}
	}
	if resp, _ := s.ask(t, "DELETE", "/v1/functions/f", cookies["a token that stays"], "", nil); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a viewer deletes: %d, want 403", resp.StatusCode)
	}
	// What has ended stays so, also when the token comes back from a backup.
	for name := range tokens {
		if bytes.Contains(must(os.ReadFile(file))(t), []byte(`"`+name+`"`)) != (name == "stays") {
			t.Errorf("session of the token %s in the file: %s", name, must(os.ReadFile(file))(t))
		}
	}
	// All sign out; and a session ends after its time.
	skew.Store(int64(13 * time.Hour))
	if got := status("a token that stays"); got != 401 {
		t.Errorf("after 13 hours: %d, want 401", got)
	}
	signIn("last", api.SessionRequest{Code: codeOf(t, s.Client)})
	if err := s.EndSessions(ctx(t)); err != nil {
		t.Fatal(err)
	}
	stopped()
	restarted()
	for name := range cookies {
		if got := status(name); got != 401 {
			t.Errorf("%s: %d after all were signed out, want 401", name, got)
		}
	}
	// A damaged file is no reason not to start.
	signIn("last", api.SessionRequest{Code: codeOf(t, s.Client)})
	s.stop()
	if err := os.WriteFile(file, text[:len(text)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	restarted()
	s.stop()
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) || !strings.Contains(log.String(), file) {
		t.Errorf("a damaged file: %v; the log says %s", err, log.String())
	}
}

func TestTheUIHasAnotherPortWhereItsOwnIsTaken(t *testing.T) {
	taken := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	at := taken.Addr().String()
	m := must(manager.New(manager.Options{Store: mem.New(), UI: page()}))(t)
	if _, err := m.Listen(manager.ServeOptions{UI: at, Socket: filepath.Join(shortDir(t), "a")}); err == nil || !strings.Contains(err.Error(), "--ui") {
		t.Errorf("chosen, and taken: %v", err)
	}
	if _, err := m.Listen(manager.ServeOptions{UI: "0.0.0.0:0"}); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("not loopback: %v", err)
	}
	s, _ := managertest.Serve(t, m, manager.ServeOptions{UI: at, UIMoves: true, Socket: filepath.Join(shortDir(t), "a")})
	if got := s.UIAddr().String(); got == at || !strings.HasPrefix(got, "127.0.0.1:") {
		t.Errorf("served at %s", got)
	}
}

// Where the same port is taken at each start, the UI has the same other one, so that a bookmark and a session last.
func TestTheOtherPortOfTheUIStaysTheSame(t *testing.T) {
	const taken = "127.7.4.10:7410" // of loopback, and nobody's
	l := must(net.Listen("tcp", taken))(t)
	defer l.Close()
	for range 2 {
		m := must(manager.New(manager.Options{Store: mem.New(), UI: page()}))(t)
		s, stop := managertest.Serve(t, m, manager.ServeOptions{UI: taken, UIMoves: true, Socket: filepath.Join(shortDir(t), "a")})
		if got := s.UIAddr().String(); got != "127.7.4.10:7420" {
			t.Errorf("served at %s", got)
		}
		stop()
	}
}

// TestWatchOverAWebSocket: the pieces of the same text; what is refused is an event, and a watch ends with its session, or with its client.
func TestWatchOverAWebSocket(t *testing.T) {
	s := startSite(t, manager.Options{})
	viewer := must(s.NewToken(ctx(t), api.TokenRequest{Name: "viewer", Role: api.RoleViewer}))(t)
	cookie, _ := s.signIn(t, api.SessionRequest{Token: viewer.Token})
	dial := func(cookie, origin, protocol, query string) (*websocket.Conn, int) {
		d := websocket.Dialer{Subprotocols: []string{protocol}}
		c, resp, err := d.DialContext(ctx(t), "ws"+strings.TrimPrefix(s.ui, "http")+"/v1/watch"+query, http.Header{"Cookie": {cookie}, "Origin": {origin}})
		if err != nil && resp == nil {
			t.Fatal(err)
		}
		if c != nil {
			t.Cleanup(func() { c.Close() })
			if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
		}
		return c, resp.StatusCode
	}
	const kinds = "?kinds=endpoint"
	for name, x := range map[string]struct {
		cookie, origin, protocol, query string
		want                            int
	}{
		"no session":       {"", s.ui, api.WatchProtocol, kinds, 401},
		"another page":     {cookie, "http://127.0.0.1:1", api.WatchProtocol, kinds, 403},
		"no Origin":        {cookie, "", api.WatchProtocol, kinds, 403},
		"another protocol": {cookie, s.ui, "chat", kinds, 400},
		"no kinds":         {cookie, s.ui, api.WatchProtocol, "", 400},
	} {
		if _, status := dial(x.cookie, x.origin, x.protocol, x.query); status != x.want {
			t.Errorf("%s: %d, want %d", name, status, x.want)
		}
	}
	until := func(c *websocket.Conn, want string) {
		t.Helper()
		for text := ""; !strings.Contains(text, want); {
			_, message, err := c.ReadMessage()
			if err != nil {
				t.Fatalf("%v; so far %q, want %q", err, text, want)
			}
			text += string(message)
		}
	}
	c, _ := dial(cookie, s.ui, api.WatchProtocol, kinds+"&revision=999999")
	until(c, `"status":410`)
	c, _ = dial(cookie, s.ui, api.WatchProtocol, kinds)
	until(c, "id: ")
	must(s.Endpoints().Put(ctx(t), "e", api.EndpointSpec{Interface: "e"}))(t)
	until(c, `"name":"e"`)
	loud, _ := dial(cookie, s.ui, api.WatchProtocol, kinds) // a client has nothing to say
	until(loud, "id: ")
	if err := loud.WriteMessage(websocket.BinaryMessage, []byte("much")); err != nil {
		t.Fatal(err)
	}
	ends := func(what string, c *websocket.Conn) {
		t.Helper()
		for {
			if _, _, err := c.ReadMessage(); err != nil {
				var late net.Error
				if errors.As(err, &late) && late.Timeout() {
					t.Errorf("%s: goes on", what)
				}
				return
			}
		}
	}
	ends("a client that talks", loud)
	if err := s.DeleteToken(ctx(t), viewer.ID); err != nil {
		t.Fatal(err)
	}
	ends("a session that ended", c)
}

// A browser has no protocols but WebSocket: the same frames, one in each message.
func TestExecOverAWebSocket(t *testing.T) {
	s := startSite(t, manager.Options{Node: func(string) ask.Node { return &node{} }})
	must(s.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	viewer := must(s.NewToken(ctx(t), api.TokenRequest{Name: "viewer", Role: api.RoleViewer}))(t).Token
	operator := must(s.NewToken(ctx(t), api.TokenRequest{Name: "operator", Role: api.RoleOperator}))(t)
	dial := func(cookie, origin string, protocols ...string) (*websocket.Conn, int) {
		d := websocket.Dialer{Subprotocols: protocols}
		c, resp, err := d.DialContext(ctx(t), "ws"+strings.TrimPrefix(s.ui, "http")+"/v1/functions/fw/exec?arg=cat&arg=x", http.Header{"Cookie": {cookie}, "Origin": {origin}})
		if err != nil && resp == nil {
			t.Fatal(err)
		}
		return c, resp.StatusCode
	}
	byViewer, _ := s.signIn(t, api.SessionRequest{Token: viewer})
	cookie, _ := s.signIn(t, api.SessionRequest{Token: operator.Token})
	for name, x := range map[string]struct {
		cookie, origin, protocol string
		want                     int
	}{
		"a viewer":         {byViewer, s.ui, api.ExecProtocol, 403},
		"no session":       {"", s.ui, api.ExecProtocol, 401},
		"another page":     {cookie, "http://127.0.0.1:1", api.ExecProtocol, 403},
		"no Origin":        {cookie, "", api.ExecProtocol, 403},
		"another protocol": {cookie, s.ui, "chat", 400},
	} {
		if _, status := dial(x.cookie, x.origin, x.protocol); status != x.want {
			t.Errorf("%s: %d, want %d", name, status, x.want)
		}
	}
	c, status := dial(cookie, s.ui, api.ExecProtocol)
	if status != http.StatusSwitchingProtocols || c.Subprotocol() != api.ExecProtocol {
		t.Fatalf("%d", status)
	}
	defer c.Close()
	send := func(kind api.ExecType, p string) {
		var b bytes.Buffer
		if err := api.NewExecStream(nil, &b).Send(kind, []byte(p)); err != nil {
			t.Fatal(err)
		}
		if err := c.WriteMessage(websocket.BinaryMessage, b.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	in := strings.Repeat("0123456789abcdef", 4_000)
	send(api.ExecStdin, in)
	send(api.ExecStdinClose, "")
	var out string
	for code := -1; code < 0; {
		kind, message, err := c.ReadMessage()
		if err != nil || kind != websocket.BinaryMessage {
			t.Fatalf("message of type %d: %v", kind, err)
		}
		frame, p, err := api.NewExecStream(bytes.NewReader(message), nil).Receive()
		if err != nil {
			t.Fatalf("no frame of its own: %v", err)
		}
		switch frame {
		case api.ExecStdout:
			out += string(p)
		case api.ExecExit:
			code = int(p[3])
			if code != 7 || out != in {
				t.Errorf("exit code %d, %d bytes of %d", code, len(out), len(in))
			}
		}
	}
	// A session that ends takes its processes with it.
	c2, _ := dial(cookie, s.ui, api.ExecProtocol)
	defer c2.Close()
	if err := s.DeleteToken(ctx(t), operator.ID); err != nil {
		t.Fatal(err)
	}
	if err := c2.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, _, err := c2.ReadMessage(); err != nil {
			var late net.Error
			if errors.As(err, &late) && late.Timeout() {
				t.Error("the process goes on")
			}
			break
		}
	}
}

// Browsers send a cookie to every port of its address, and another user of this machine may listen at one.
func TestACookieIsOfOneUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, to ask as another user: run the tests as root")
	}
	s := startSite(t, manager.Options{})
	cookie, _ := s.signIn(t, api.SessionRequest{Code: codeOf(t, s.Client)})
	ask := func(uid uint32) string {
		c := exec.CommandContext(ctx(t), "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Cookie: "+cookie, s.ui+"/v1/functions")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if got := ask(0); got != "200" {
		t.Errorf("the user who signed in: %s", got)
	}
	if got := ask(65534); got != "401" {
		t.Errorf("another user with the cookie: %s, want 401", got)
	}
}
