package manager_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/store"
)

// bearer is a client with a token.
func (b *bench) bearer(t testing.TB, token string) *api.Client {
	t.Helper()
	c := must(api.Dial(api.Options{URL: b.url, Token: token}))(t)
	t.Cleanup(c.Close)
	return c
}

// status asks with a token and returns the answer's status.
func (b *bench) status(t testing.TB, token, method, path, body string) int {
	t.Helper()
	code, _, _ := request(t, b, method, path, map[string]string{"Authorization": "Bearer " + token}, body)
	return code
}

func TestRolesMayWhatTheTableSays(t *testing.T) {
	b := start(t, manager.Options{})
	tokens := map[api.Role]string{"": strings.Repeat("x", 43)}
	for _, role := range api.Roles() {
		tokens[role] = must(b.NewToken(ctx(t), api.TokenRequest{Name: "t-" + string(role), Role: role}))(t).Token
	}
	must(b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t)
	const viewer, operator, admin = api.RoleViewer, api.RoleOperator, api.RoleAdmin
	for _, x := range []struct {
		method, path, body string
		least              api.Role
	}{
		{"GET", "/v1/functions", "", viewer},
		{"GET", "/v1/functions/f", "", viewer},
		{"GET", "/v1/events", "", viewer},
		{"GET", "/v1/hosts", "", viewer},
		{"GET", "/v1/operations", "", viewer},
		{"GET", "/v1/openapi.json", "", viewer},
		{"GET", "/metrics", "", viewer},
		{"GET", "/v1/trace?from=a&to=b", "", viewer},
		{"GET", "/v1/policies/p/path", "", viewer},
		{"GET", "/v1/hosts/h/counters", "", viewer},
		{"GET", "/v1/functions/f/flows", "", viewer},
		{"GET", "/v1/watch?kinds=none", "", viewer},
		{"GET", "/v1/images", "", viewer},
		{"GET", "/v1/images/pulls", "", viewer},
		{"GET", "/v1/images/pulls/1", "", viewer},
		{"POST", "/v1/images/pulls", `{"reference":"registry.example.org/nf/filter:2"}`, admin},
		{"DELETE", "/v1/images/pulls/1", "", admin},
		{"POST", "/v1/images/import", "no archive", admin},
		{"POST", "/v1/images/gc", `{"plan":true}`, admin},
		{"DELETE", "/v1/images?image=none", "", admin},
		{"GET", "/v1/switches/none/counters", "", viewer},
		{"GET", "/v1/nonsense", "", viewer},
		{"PUT", "/v1/functions/g", `{"spec":{"image":"wire"}}`, operator},
		{"PATCH", "/v1/functions/f", `{"spec":{"on_fail":"bypass"}}`, operator},
		{"POST", "/v1/apply", `{"document":{}}`, operator},
		{"POST", "/v1/apply", `{"document":{},"plan":true}`, operator},
		{"POST", "/v1/delete", `{"functions":["none"]}`, operator},
		{"POST", "/v1/functions/f/restart", "", operator},
		{"POST", "/v1/functions/f/exec?arg=true", "", operator},
		{"GET", "/v1/functions/f/exec?arg=true", "", operator},
		{"GET", "/v1/session", "", viewer},
		{"DELETE", "/v1/sessions", "", admin},
		{"GET", "/v1/functions/f/logs", "", operator},
		{"GET", "/v1/functions/f/capture", "", operator},
		{"GET", "/v1/endpoints/none/capture", "", operator},
		{"PUT", "/v1/hosts/h", `{"spec":{"unschedulable":true}}`, operator},
		{"DELETE", "/v1/functions/none", "", operator},
		{"DELETE", "/v1/hosts/none", "", admin},
		{"GET", "/v1/tokens", "", admin},
		{"POST", "/v1/tokens", `{}`, admin},
		{"POST", "/v1/tokens/none/rotate", "", admin},
		{"DELETE", "/v1/tokens/none", "", admin},
		{"GET", "/v1/audit", "", admin},
		{"POST", "/v1/status", `{}`, admin},
		{"POST", "/v1/fabric", `{}`, admin},
		{"GET", "/v1/agent/config?host=h", "", admin},
		{"POST", "/v1/hosts/h/beat", `{}`, admin},
		{"GET", "/v1/hosts/h/connect", "", admin},
		{"POST", "/v1/certificates", `{}`, admin},
	} {
		for _, role := range []api.Role{"", viewer, operator, admin} {
			got := b.status(t, tokens[role], x.method, x.path, x.body)
			refused := got == 401 || got == 403
			if x.path == "/v1/certificates" && role == admin {
				refused = false // for agents only: 403
			}
			if (role == "") != (got == 401) || refused != !role.May(x.least) {
				t.Errorf("%s %s with role %q: %d", x.method, x.path, role, got)
			}
		}
	}
	_, err := b.bearer(t, tokens[viewer]).Functions().Put(ctx(t), "g", api.FunctionSpec{Image: "wire"})
	refused(t, err, 403, "needs the role operator", "token t-viewer has the role viewer")
}

// TestEveryRouteHasARole: a route that forgets its role is an administrator's; those of others are listed here.
func TestEveryRouteHasARole(t *testing.T) {
	b := start(t, manager.Options{})
	viewer := must(b.NewToken(ctx(t), api.TokenRequest{Name: "v", Role: api.RoleViewer}))(t).Token
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	_, _, body := request(t, b, "GET", "/v1/openapi.json", nil, "")
	if err := json.Unmarshal(body, &doc); err != nil || len(doc.Paths) < 30 {
		t.Fatalf("%d paths, %v", len(doc.Paths), err)
	}
	may := 0
	for path, methods := range doc.Paths {
		for method := range methods {
			method = strings.ToUpper(method)
			got := b.status(t, viewer, method, strings.ReplaceAll(path, "{name}", "none"), "")
			reads := method == "GET" && path != "/v1/functions/{name}/logs" && !strings.HasSuffix(path, "/capture") && path != "/v1/tokens" && path != "/v1/audit" && path != "/v1/backup" && path != "/v1/agent/config" && path != "/v1/lab/doctor" &&
				path != "/v1/hosts/{name}/connect" && !strings.HasPrefix(path, "/v1/agent/") || path == "/v1/join"
			reads = reads && path != "/v1/functions/{name}/exec" || path == "/v1/session" || path == "/v1/session/links" // a session is of who asks for it
			if reads {
				may++
			}
			if reads == (got == 403) {
				t.Errorf("%s %s: %d", method, path, got)
			}
		}
	}
	if may < 20 {
		t.Errorf("a viewer may %d", may)
	}
}

func TestTokensExpireRotateAndAreRevoked(t *testing.T) {
	ahead := time.Duration(0)
	b := start(t, manager.Options{Now: func() time.Time { return time.Now().Add(ahead) }})
	made := must(b.NewToken(ctx(t), api.TokenRequest{Name: "ci", Role: api.RoleOperator, TTL: "24h"}))(t)
	works := func(token string, want bool) {
		t.Helper()
		_, err := b.bearer(t, token).Functions().List(ctx(t), api.ListOptions{})
		if (err == nil) != want {
			t.Errorf("works: %v, want %v", err, want)
		}
	}
	works(made.Token, true)
	if made.ID != "ci" || made.Role != api.RoleOperator || !strings.HasPrefix(made.Token, "weirt1.ci.") {
		t.Errorf("%+v", made)
	}
	_, err := b.NewToken(ctx(t), api.TokenRequest{Name: "ci", Role: api.RoleViewer})
	refused(t, err, 409, "weir token rotate ci")
	find := func(name string) (x api.Token) {
		t.Helper()
		for _, x = range must(b.Tokens(ctx(t)))(t) {
			if x.Token != "" {
				t.Errorf("%s is listed with its secret", x.ID)
			}
			if x.ID == name {
				return x
			}
		}
		t.Fatalf("token %s is not listed", name)
		return x
	}
	if x := find("ci"); x.Used.IsZero() || x.UsedFrom != "127.0.0.1" {
		t.Errorf("last use: %+v", x)
	}
	items, _, err := b.store.List(ctx(t), "access-token/", listAll)
	if err != nil || len(items) != 1 || bytes.Contains(items[0].Value, []byte(made.Token[len("weirt1.ci."):])) {
		t.Errorf("kept: %v %v", items, err)
	}

	rotated := must(b.RotateToken(ctx(t), "ci"))(t)
	works(made.Token, false)
	works(rotated.Token, true)
	ahead = 25 * time.Hour
	_, err = b.bearer(t, rotated.Token).Functions().List(ctx(t), api.ListOptions{})
	refused(t, err, 401, "token ci expired at", "weir token rotate ci")
	again := must(b.RotateToken(ctx(t), "ci"))(t)
	works(again.Token, true)
	if err := b.DeleteToken(ctx(t), "ci"); err != nil {
		t.Fatal(err)
	}
	works(again.Token, false)
	refused(t, b.DeleteToken(ctx(t), "ci"), 404)

	for name, x := range map[string]struct {
		req  api.TokenRequest
		says string
	}{
		"no role":       {api.TokenRequest{Name: "x"}, "role"},
		"a wrong role":  {api.TokenRequest{Name: "x", Role: "root"}, "admin"},
		"no name":       {api.TokenRequest{Role: api.RoleViewer}, "name"},
		"a join id":     {api.TokenRequest{Name: "0123abcd", Role: api.RoleViewer}, "taken"},
		"the file":      {api.TokenRequest{Name: "file", Role: api.RoleAdmin}, "taken"},
		"too long":      {api.TokenRequest{Name: "x", Role: api.RoleViewer, TTL: "99999h"}, "ttl"},
		"with a host":   {api.TokenRequest{Name: "x", Role: api.RoleViewer, Host: "h"}, "join"},
		"agents' roles": {api.TokenRequest{Name: "x", Role: api.RoleAgent}, "role"},
	} {
		_, err := b.NewToken(ctx(t), x.req)
		if err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTheTokenFileIsAnAdministratorsAndRotates: a state directory of before has one.
func TestTheTokenFileIsAnAdministratorsAndRotates(t *testing.T) {
	dir := shortDir(t)
	const former = "a-token-of-43-characters-as-weir-wrote-them"
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(former+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := startIn(t, dir, manager.Options{})
	must(b.bearer(t, former).Tokens(ctx(t)))(t)
	next := must(b.RotateToken(ctx(t), "file"))(t)
	_, err := b.bearer(t, former).Tokens(ctx(t))
	refused(t, err, 401)
	must(b.bearer(t, next.Token).Tokens(ctx(t)))(t)
	kept := must(os.ReadFile(filepath.Join(dir, "token")))(t)
	if info := must(os.Stat(filepath.Join(dir, "token")))(t); strings.TrimSpace(string(kept)) != next.Token || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has %q, mode %v", kept, info.Mode())
	}
	refused(t, b.DeleteToken(ctx(t), "file"), 409)
}

func audits(t testing.TB, b *bench, o api.ListOptions) []api.AuditRecord {
	t.Helper()
	return must(b.Audit().List(ctx(t), o))(t).Items
}

func TestTheAuditLogSaysWhoDidWhat(t *testing.T) {
	dir := shortDir(t)
	file := filepath.Join(dir, "audit.log")
	b := startIn(t, dir, manager.Options{AuditFile: file})
	ci := must(b.NewToken(ctx(t), api.TokenRequest{Name: "ci", Role: api.RoleOperator}))(t).Token
	view := must(b.NewToken(ctx(t), api.TokenRequest{Name: "view", Role: api.RoleViewer}))(t).Token
	c := b.bearer(t, ci)
	must(c.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", Env: map[string]string{"PASSWORD": "hunter2"}}))(t)
	must(c.Functions().Patch(ctx(t), "f", map[string]any{"on_fail": "bypass"}))(t)
	must(c.Apply(ctx(t), api.ApplyRequest{Document: api.Document{Functions: map[string]api.FunctionSpec{"g": {Image: "wire"}}}}))(t)
	must(c.Functions().Delete(ctx(t), "g"))(t)
	must(c.Functions().List(ctx(t), api.ListOptions{}))(t)
	b.status(t, ci, "PUT", "/v1/functions/f", `{"spec":{"image":"wire","memory":"hunter2"}}`)
	b.status(t, ci, "POST", "/v1/functions/f/exec?arg=sh&arg=hunter2", "")
	b.status(t, view, "DELETE", "/v1/functions/f", "")
	for range 20 {
		b.status(t, "weirt1.ci.hunter2", "GET", "/v1/functions", "")
	}
	line := func(r api.AuditRecord) string {
		return strings.TrimSpace(fmt.Sprintf("%s %s %s/%s %d %d %s", r.Who, r.Verb, r.Kind, r.Object, r.Generation, r.Status, strings.Join(r.Objects, ",")))
	}
	var got []string
	for _, r := range audits(t, b, api.ListOptions{}) {
		got = append(got, line(r))
		if r.Time.IsZero() || r.From == "" {
			t.Errorf("%+v", r)
		}
	}
	all := strings.Join(got, "\n")
	for _, want := range []string{
		"user root create token/ci 0 201", "token ci put function/f 1 201", "token ci patch function/f 2 200", "token ci apply / 0 200 create function/g",
		"token ci delete function/g 1 202", "token ci put function/f 0 422", "token ci exec function/f", "token view delete function/f 0 403", "nobody authenticate token/ci 0 401",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	failed := audits(t, b, api.ListOptions{Verb: "authenticate"})
	if len(failed) != 1 || failed[0].Count != 16 || failed[0].From != "127.0.0.1" {
		t.Errorf("20 failed attempts: %+v", failed)
	}
	if n := len(audits(t, b, api.ListOptions{Who: "token view"})); n != 1 {
		t.Errorf("%d records of token view", n)
	}
	if n := len(audits(t, b, api.ListOptions{Limit: 2})); n != 2 {
		t.Errorf("limit 2: %d", n)
	}
	text := must(os.ReadFile(file))(t)
	if info := must(os.Stat(file))(t); info.Mode().Perm() != 0o600 || bytes.Count(text, []byte("\n")) < len(got) {
		t.Errorf("the file: %v, %d lines", info.Mode(), bytes.Count(text, []byte("\n")))
	}
	items, _, err := b.store.List(ctx(t), "audit/", listAll)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range append(items, store.Item{Value: text}) {
		if bytes.Contains(x.Value, []byte("hunter2")) || bytes.Contains(x.Value, []byte(ci[10:])) {
			t.Errorf("a secret in %s", x.Value)
		}
	}
	if _, err := b.bearer(t, ci).Audit().List(ctx(t), api.ListOptions{}); err == nil {
		t.Error("an operator reads the audit log")
	}
}

// TestAttackersDoNotFlushTheAuditLog: however many records others make, those of one who made few stay.
func TestAttackersDoNotFlushTheAuditLog(t *testing.T) {
	b := start(t, manager.Options{})
	ci := must(b.NewToken(ctx(t), api.TokenRequest{Name: "ci", Role: api.RoleOperator}))(t).Token
	evil := must(b.NewToken(ctx(t), api.TokenRequest{Name: "evil", Role: api.RoleOperator}))(t).Token
	must(b.bearer(t, ci).Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t)
	c := b.bearer(t, evil)
	for i := range 11_000 {
		_, err := c.Functions().Delete(ctx(t), fmt.Sprint("none-", i))
		if err == nil {
			t.Fatal("deleted what is not there")
		}
	}
	items, _, err := b.store.List(ctx(t), "audit/", listAll)
	if err != nil || len(items) > 10_500 {
		t.Errorf("%d records, %v", len(items), err)
	}
	if n := len(audits(t, b, api.ListOptions{Who: "token ci"})); n != 1 {
		t.Errorf("%d records of token ci left", n)
	}
}
