package ui

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/web"
)

// Tokens are those of the API.
type Tokens interface {
	// Check finds whose token it is, as for a request that bears it.
	Check(ctx context.Context, token, from string) (c web.Caller, name string, err error)
	// Stands says what the bearer of a token may now, if the token is still the one that it was.
	Stands(ctx context.Context, c web.Caller) (api.Role, error)
}

// Options are what the UI needs.
type Options struct {
	Files   fs.FS  // nil: there is no UI
	Kept    string // path of a file, of mode 0600, that keeps sessions over restarts; "" none
	Tokens  Tokens
	Log     *slog.Logger
	Now     func() time.Time
	Version string
}

// UI serves files and keeps sessions. Make it with New.
type UI struct {
	Options
	files    *files
	links    *vault
	sessions *vault

	mu      sync.Mutex
	address net.Addr // where it is served; nil: nowhere
}

// New makes a UI.
func New(o Options) (*UI, error) {
	u := &UI{Options: o, links: newVault("", o.Log), sessions: newVault(o.Kept, o.Log)}
	u.sessions.load(o.Now())
	var err error
	if o.Files != nil {
		u.files, err = newFiles(o.Files)
	}
	return u, err
}

// Routes are the paths of sessions.
func (u *UI) Routes() []web.Route {
	return []web.Route{
		{Method: "POST", Path: "/v1/session", ID: "sign-in", Needs: web.Anybody, Does: "sign-in", Kind: kindSession, Summary: "sign in to the web UI with the code of a link or with a token, at the UI's address; the answer sets a cookie",
			Body: api.SessionRequest{}, Limit: maxSignIn, Answers: map[int]any{200: api.Session{}}, Problems: []int{401, 403, 409}, Handler: u.signIn},
		{Method: "GET", Path: "/v1/session", ID: "session", Needs: api.RoleViewer, Summary: "as whom the caller is known, and what it may",
			Answers: map[int]any{200: api.Session{}}, Handler: u.whoAmI},
		{Method: "DELETE", Path: "/v1/session", ID: "sign-out", Needs: api.RoleViewer, Does: "sign-out", Kind: kindSession, Summary: "end the caller's session of the web UI",
			Answers: map[int]any{204: nil}, Problems: []int{409}, Handler: u.signOut},
		{Method: "POST", Path: "/v1/session/links", ID: "session-link", Needs: api.RoleViewer, Does: "link", Kind: kindSession, Summary: "make a link that opens the web UI once, with the caller's rights",
			Answers: map[int]any{201: api.SessionLink{}}, Problems: []int{409}, Handler: u.newLink},
		{Method: "DELETE", Path: "/v1/sessions", ID: "end-sessions", Does: "sign-out", Kind: kindSession, Summary: "end all sessions of this manager's web UI, and its links",
			Answers: map[int]any{204: nil}, Handler: u.endAll},
	}
}

// kindSession are sessions of the web UI, in the audit log.
const kindSession api.Kind = "session"

// maxSignIn bounds a code or a token.
const maxSignIn = 4 << 10

// Serves tells where the UI is served from now on.
func (u *UI) Serves(at net.Addr) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.address = at
}

func (u *UI) at() net.Addr {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.address
}

// newLink makes a link for whoever asks. A session makes none: its life would have no end.
func (u *UI) newLink(w http.ResponseWriter, r *http.Request) error {
	c, at := web.CallerOf(r), u.at()
	switch {
	case at == nil:
		return api.Refuse(http.StatusConflict, "this manager serves no web UI: start it with --ui ADDRESS:PORT")
	case c.Session:
		return api.Refuse(http.StatusConflict, "a session of the web UI makes no links: use a token or the Unix socket (weir ui)")
	case !c.Role.May(api.RoleViewer):
		return api.Refuse(http.StatusForbidden, "the web UI is not for "+c.Who)
	}
	now := u.Now()
	code := u.links.add(now, entry{caller: c, expires: now.Add(codeLife)})
	return web.Answer(w, http.StatusCreated, api.SessionLink{URL: address(at) + signInPath + newSecret()[:22] + "#" + code, Address: address(at), Role: c.Role, Expires: now.Add(codeLife).UTC()})
}

// signInPath is where links lead, with 128 random bits behind it: what somebody else served at this address while Weir was down may be in the browser's cache for any path
// that can be guessed.
const signInPath = "sign-in/"

// signIn exchanges a code or a token for a session.
func (u *UI) signIn(w http.ResponseWriter, r *http.Request) error {
	user, here := userOf(r)
	if !here {
		return api.Refuse(http.StatusConflict, "sessions are for browsers, at the address of the web UI: weir ui tells it. Here a request bears its token")
	}
	var req api.SessionRequest
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	if (req.Code == "") == (req.Token == "") {
		return api.Refuse(http.StatusBadRequest, "the sign-in is refused", api.Problem{Path: "code", Message: "want a code or a token", Hint: "one of both"})
	}
	now, from := u.Now(), web.PeerOf(r)
	var c web.Caller
	if req.Token != "" {
		var err error
		if c, _, err = u.Tokens.Check(r.Context(), strings.TrimSpace(req.Token), from); err != nil {
			return err
		}
	} else {
		e := u.links.take(now, digestOf(req.Code))
		if e == nil {
			return api.Refuse(http.StatusUnauthorized, "the link was used or is too old: each works once, for "+codeLife.String()+". Make another with `weir ui`")
		}
		if c = e.caller; c.Token != "" {
			if _, err := u.Tokens.Stands(r.Context(), c); err != nil {
				return err
			}
		}
	}
	c.Session, c.Self, c.From = true, false, from+", web UI"
	expires := now.Add(sessionLife)
	secret := u.sessions.add(now, entry{caller: c, user: user, expires: expires})
	if old, ok := cookieOf(r); ok { // that one would be left without a browser
		_ = u.sessions.remove(digestOf(old))
	}
	setCookie(w, r, secret, int(sessionLife/time.Second))
	clearCache(w.Header())
	web.Note(r).Who = c.Who
	return web.Answer(w, http.StatusOK, u.session(c, expires))
}

func (u *UI) session(c web.Caller, expires time.Time) api.Session {
	s := api.Session{Who: c.Who, Role: c.Role, Version: u.Version}
	if !expires.IsZero() {
		s.Expires = expires.UTC().Truncate(time.Second)
	}
	if at := u.at(); at != nil {
		s.UI = address(at)
	}
	return s
}

func address(at net.Addr) string { return "http://" + at.String() + "/" }

func (u *UI) whoAmI(w http.ResponseWriter, r *http.Request) error {
	var expires time.Time
	if e, ok := r.Context().Value(entryKey{}).(*entry); ok {
		expires = e.expires
	}
	return web.Answer(w, http.StatusOK, u.session(web.CallerOf(r), expires))
}

func (u *UI) signOut(w http.ResponseWriter, r *http.Request) error {
	secret, ok := cookieOf(r)
	if !ok || !web.CallerOf(r).Session {
		return api.Refuse(http.StatusConflict, "this request is of no session of the web UI")
	}
	setCookie(w, r, "", -1)
	if err := u.sessions.remove(digestOf(secret)); err != nil { // ends its requests, but not this answer
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (u *UI) endAll(w http.ResponseWriter, _ *http.Request) error {
	none := func(*entry) bool { return false }
	if err := errors.Join(u.links.keep(none), u.sessions.keep(none)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// KeepChecking ends sessions whose token was deleted or rotated, or has expired, and with them their streams, until ctx ends.
func (u *UI) KeepChecking(ctx context.Context) {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		u.check(ctx)
	}
}

func (u *UI) check(ctx context.Context) {
	stands := func(e *entry) bool {
		if !u.Now().Before(e.expires) {
			return false
		}
		if e.caller.Token == "" {
			return true
		}
		_, err := u.Tokens.Stands(ctx, e.caller)
		// A store that is away ends no session; nothing can be done with one meanwhile.
		return err == nil || web.ProblemOf(err).Status != http.StatusUnauthorized
	}
	_ = u.links.keep(stands)
	_ = u.sessions.keep(stands) // a file that could not be written is tried again with the next check
}

type (
	userKey  struct{} // the user of this machine who asks; only at the UI's address
	entryKey struct{} // the session of a request
)

func userOf(r *http.Request) (string, bool) {
	user, ok := r.Context().Value(userKey{}).(string)
	return user, ok
}

// Handler serves the UI's address: files, and the API to who has a session there.
func (u *UI) Handler(a http.Handler, refuse func(w http.ResponseWriter, r *http.Request, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		guardHeaders(w.Header())
		if err := checkOrigin(r); err != nil {
			refuse(w, r, err)
			return
		}
		if r.Header.Get("Service-Worker") != "" {
			endWorker(w)
			return
		}
		if !ofAPI(r.URL.Path) {
			if !u.files.has(r.URL.Path) && !u.clean(r) {
				clearCache(w.Header())
			}
			if !web.Shown(r) {
				w.Header().Set("Connection", "close") // a stranger's connection ends soon
			}
			u.files.serve(w, r)
			return
		}
		w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
		user, err := web.UserOf(r)
		if err != nil {
			refuse(w, r, err)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), userKey{}, user))
		if r.URL.Path == "/healthz" || r.URL.Path == "/v1/session" && r.Method == http.MethodPost {
			if !web.Shown(r) {
				w.Header().Set("Connection", "close")
			}
			a.ServeHTTP(w, r)
			return
		}
		e, err := u.enter(r, user)
		if err == nil {
			err = web.Show(r)
		}
		if err != nil {
			refuse(w, r, err)
			return
		}
		ctx, cancel := context.WithCancel(context.WithValue(web.WithCaller(r.Context(), e.caller), entryKey{}, e))
		defer cancel()
		defer context.AfterFunc(e.ctx, cancel)()
		a.ServeHTTP(w, r.WithContext(ctx))
	})
}

// clean tells whether a page is for a browser that has forgotten what others served here. A session outlives this process, and others may have had the address meanwhile.
func (u *UI) clean(r *http.Request) bool {
	secret, ok := cookieOf(r)
	return ok && !strings.HasPrefix(r.URL.Path, "/"+signInPath) && u.sessions.clean(u.Now(), digestOf(secret))
}

// enter finds the session of a request. A cookie that is in the hands of another user of this machine is worth nothing: browsers send cookies of an address
// to all its ports, and another user may serve one.
func (u *UI) enter(r *http.Request, user string) (*entry, error) {
	secret, ok := cookieOf(r)
	if !ok {
		return nil, errSignIn()
	}
	d := digestOf(secret)
	e := u.sessions.get(u.Now(), d)
	if e == nil || e.user != user {
		return nil, errSignIn()
	}
	if e.caller.Token == "" {
		return e, nil
	}
	role, err := u.Tokens.Stands(r.Context(), e.caller)
	if err != nil {
		if web.ProblemOf(err).Status == http.StatusUnauthorized {
			_ = u.sessions.remove(d)
		}
		return nil, err
	}
	now := *e
	now.caller.Role = role
	return &now, nil
}

func ofAPI(path string) bool {
	return path == "/v1" || strings.HasPrefix(path, "/v1/") || path == "/metrics" || path == "/healthz"
}
