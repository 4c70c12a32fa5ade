package manager_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/store"
	"weir.dev/weir/store/mem"
)

var testSealKey = func() ([]byte, error) { return bytes.Repeat([]byte("k"), 32), nil }

// TestSecretsAreNeverShown: no answer to any token, no list, no plan, no event, no metric and nothing in the store has a secret's value.
func TestSecretsAreNeverShown(t *testing.T) {
	s := mem.New()
	b := start(t, manager.Options{Store: s, SealKey: testSealKey})
	const value = "correct-horse-battery"
	made := must(b.PutSecret(ctx(t), "db", []byte(value)))(t)
	if made.Generation != 1 || len(made.UsedBy) != 0 {
		t.Errorf("%+v", made)
	}
	must(b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", Secrets: []string{"db"}}))(t)
	must(b.Apply(ctx(t), api.ApplyRequest{Plan: true, Document: api.Document{Functions: map[string]api.FunctionSpec{"f": {Image: "wire", Secrets: []string{"db:/run/db/password"}}}}}))(t)
	b.status(t, b.token, "PUT", "/v1/secrets/db", `{"value":"`+value+`!"}`)
	b.status(t, b.token, "PUT", "/v1/secrets/db", `{"valu":"`+value+`"}`)
	for _, path := range []string{"/v1/secrets", "/v1/secrets/db", "/v1/functions", "/v1/functions/f", "/v1/events", "/v1/operations", "/v1/audit", "/metrics", "/v1/agent/secrets/f"} {
		status, _, body := request(t, b, "GET", path, nil, "")
		for _, text := range []string{value, "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5"} { // base64
			if bytes.Contains(body, []byte(text)) {
				t.Errorf("%s shows it: %s", path, body)
			}
		}
		if want := 200; path == "/v1/agent/secrets/f" && status != 403 || path != "/v1/agent/secrets/f" && status != want {
			t.Errorf("%s: %d", path, status)
		}
	}
	for key, text := range everything(t, s) {
		if strings.Contains(text, value) || strings.Contains(text, "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5") {
			t.Errorf("%s has it: %s", key, text)
		}
	}
}

func everything(t *testing.T, s store.Store) map[string]string {
	t.Helper()
	items, _, err := s.List(ctx(t), "", listAll)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, i := range items {
		out[i.Key] = string(i.Value)
	}
	return out
}

// TestANewValueMakesFunctionsAnew, and only those that use it.
func TestANewValueMakesFunctionsAnew(t *testing.T) {
	b := start(t, manager.Options{SealKey: testSealKey})
	_, err := b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", Secrets: []string{"db"}})
	refused(t, err, 422, "functions.f.secrets", `no secret "db"`, "weir secret set db")
	must(b.PutSecret(ctx(t), "db", []byte("one")))(t)
	must(b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", Secrets: []string{"db"}}))(t)
	must(b.Functions().Put(ctx(t), "g", api.FunctionSpec{Image: "wire"}))(t)
	generation := func(name string, want int64) api.Function {
		t.Helper()
		f := must(b.Functions().Get(ctx(t), name))(t)
		if f.Generation != want {
			t.Errorf("%s: generation %d, want %d", name, f.Generation, want)
		}
		return f
	}
	first := generation("f", 1).Secrets["db"]
	must(b.PutSecret(ctx(t), "db", []byte("one")))(t) // the same
	generation("f", 1)
	if s := must(b.PutSecret(ctx(t), "db", []byte("two")))(t); s.Generation != 2 || len(s.UsedBy) != 1 {
		t.Errorf("%+v", s)
	}
	if second := generation("f", 2).Secrets["db"]; second == first || first == "" {
		t.Errorf("version %q after %q", second, first)
	}
	generation("g", 1)
	must(b.Functions().Put(ctx(t), "f", generation("f", 2).Spec))(t) // nothing changed
	generation("f", 2)
	refused(t, b.DeleteSecret(ctx(t), "db"), 409, "used by function f")
	must(b.Functions().Patch(ctx(t), "f", map[string]any{"secrets": nil}))(t)
	if f := generation("f", 3); len(f.Secrets) != 0 {
		t.Errorf("%v", f.Secrets)
	}
	if err := b.DeleteSecret(ctx(t), "db"); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"DB", "db:relative", "db:/proc/x", "db:/", "db:/a/../b", "db:/run/weir/x"} {
		_, err := b.Functions().Patch(ctx(t), "f", map[string]any{"secrets": []string{bad}})
		refused(t, err, 422, "secrets[0]")
	}
	_, err = b.PutSecret(ctx(t), "db", nil)
	refused(t, err, 422, "want 1 to 65536")
	plain := start(t, manager.Options{})
	_, err = plain.PutSecret(ctx(t), "db", []byte("x"))
	refused(t, err, 409, "--secret-key")
}

// TestOnlyAFunctionsHostGetsItsSecrets: not another host, not a token of an admin, and not by reading the function.
func TestOnlyAFunctionsHostGetsItsSecrets(t *testing.T) {
	w := joinWorld(t, manager.Options{Host: "m", SealKey: testSealKey})
	ids := map[string]*tls.Config{}
	clients := map[string]*api.Client{}
	for _, h := range []string{"h1", "h2"} {
		c, id := w.member(t, h)
		clients[h], ids[h] = c, id.Client(time.Now, "http/1.1")
		tellOf(t, c, api.StatusReport{Host: h, HostState: &api.HostStatus{State: "ready", Cores: 4, Memory: 8 << 30, Images: []string{"wire"}}})
	}
	must(w.PutSecret(ctx(t), "db", []byte("of-h2-alone")))(t)
	must(w.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", Host: "h2", Secrets: []string{"db"}}))(t)
	got := must(clients["h2"].FunctionSecrets(ctx(t), "f"))(t)
	f := must(clients["h2"].Functions().Get(ctx(t), "f"))(t)
	if len(got) != 1 || string(got[0].Value) != "of-h2-alone" || got[0].Version != f.Secrets["db"] {
		t.Errorf("its host gets %+v, the function says %v", got, f.Secrets)
	}
	_, err := clients["h1"].FunctionSecrets(ctx(t), "f")
	refused(t, err, 403, "for the agent of its host")
	for _, path := range []string{"/v1/secrets", "/v1/secrets/db", "/v1/agent/secrets/f"} {
		if status, body := do(t, w, ids["h1"], "GET", path, ""); status != 403 || strings.Contains(body, "of-h2-alone") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _ := do(t, w, ids["h2"], "PUT", "/v1/secrets/db", `{"value":"eA=="}`); status != 403 {
		t.Errorf("a host writes a secret: %d", status)
	}
	var other api.Function
	_, body := do(t, w, ids["h1"], "GET", "/v1/functions/f", "")
	if err := json.Unmarshal([]byte(body), &other); err != nil || len(other.Secrets)+len(other.Spec.Secrets) > 0 {
		t.Errorf("another host sees %s, %v", body, err)
	}
}

// A document's secrets come into force with it, in one step; plans and results name them, and never show a value. Those that it does not name go with
// prune where it has a section of them, unless a function that stays uses them.
func TestSecretsOfADocument(t *testing.T) {
	s := mem.New()
	b := start(t, manager.Options{Store: s, SealKey: testSealKey})
	const value = "correct-horse-battery"
	secrets := func(nameValue ...string) map[string]api.SecretRequest {
		out := map[string]api.SecretRequest{}
		for i := 0; i < len(nameValue); i += 2 {
			out[nameValue[i]] = api.SecretRequest{Value: []byte(nameValue[i+1])}
		}
		return out
	}
	f := func(names ...string) api.Document {
		return api.Document{Functions: map[string]api.FunctionSpec{"f": {Image: "wire", Secrets: names}}}
	}
	apply := func(r api.ApplyRequest, want string) {
		t.Helper()
		result, err := b.Apply(ctx(t), r)
		got := ""
		if err != nil {
			got = "refused: " + err.Error()
		}
		for _, c := range result.Changes {
			got += strings.TrimSpace(strings.Join(append([]string{c.Action, string(c.Kind) + "/" + c.Name}, append(c.Fields, c.Affects...)...), " ")) + "; "
		}
		if got = strings.TrimSuffix(got, "; "); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		text, _ := json.Marshal(result)
		if strings.Contains(string(text)+got, value) || strings.Contains(string(text), "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5") {
			t.Errorf("the answer shows the value: %s", text)
		}
	}
	apply(api.ApplyRequest{Document: f("db")}, "refused: ")
	first := api.ApplyRequest{Document: f("db"), Secrets: secrets("db", value, "other", "x")}
	plan := first
	plan.Plan = true
	apply(plan, "create secret/db function/f; create secret/other; create function/f")
	if list := must(b.Secrets(ctx(t)))(t); len(list) != 0 {
		t.Errorf("the plan made %+v", list)
	}
	bad := first
	bad.Document = api.Document{Functions: map[string]api.FunctionSpec{"f": {Secrets: []string{"db"}}}} // no image
	apply(bad, "refused: ")
	if list := must(b.Secrets(ctx(t)))(t); len(list) != 0 {
		t.Errorf("a document that is refused made %+v", list)
	}
	apply(first, "create secret/db function/f; create secret/other; create function/f")
	before := must(b.Functions().Get(ctx(t), "f"))(t)
	apply(first, "unchanged secret/db; unchanged secret/other; unchanged function/f")
	if now := must(b.Functions().Get(ctx(t), "f"))(t); now.Generation != before.Generation {
		t.Errorf("generation %d, was %d: nothing has changed", now.Generation, before.Generation)
	}
	apply(api.ApplyRequest{Document: f("db"), Secrets: secrets("db", value+"!")}, "update secret/db value function/f; unchanged function/f")
	if now := must(b.Functions().Get(ctx(t), "f"))(t); now.Generation != before.Generation+1 {
		t.Errorf("generation %d, want %d: a new value makes the function anew", now.Generation, before.Generation+1)
	}
	for name, request := range map[string]map[string]api.SecretRequest{
		"secrets.db.value: has 0 bytes": secrets("db", ""), "secrets.Bad: ": secrets("Bad", "x"), "secrets.big.value: has 65537": secrets("big", strings.Repeat("x", api.MaxSecret+1)),
	} {
		_, err := b.Apply(ctx(t), api.ApplyRequest{Secrets: request})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
	apply(api.ApplyRequest{Document: f("db"), Prune: true}, "unchanged function/f") // no section: it is not about secrets
	apply(api.ApplyRequest{Document: f("db"), Prune: true, Secrets: secrets()}, "refused: secret db is used by function f")
	apply(api.ApplyRequest{Document: f("db"), Prune: true, Secrets: secrets("db", value+"!")}, "unchanged secret/db; unchanged function/f; delete secret/other")
	result := must(b.Delete(ctx(t), api.DeleteRequest{Functions: []string{"f"}, Secrets: []string{"db", "nothing"}}))(t)
	if len(result.Changes) != 2 {
		t.Errorf("deleted %+v, want the function and its secret", result.Changes)
	}
	if list := must(b.Secrets(ctx(t)))(t); len(list) != 0 {
		t.Errorf("left %+v", list)
	}
	for key, text := range everything(t, s) {
		if strings.Contains(text, value) || strings.Contains(text, "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5") {
			t.Errorf("%s has it: %s", key, text)
		}
	}
	_, _, audit := request(t, b, "GET", "/v1/audit", nil, "")
	if !bytes.Contains(audit, []byte("update secret/db")) || bytes.Contains(audit, []byte(value)) {
		t.Errorf("the audit log: %s", audit)
	}
}
