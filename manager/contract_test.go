package manager_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/store/mem"
)

const openAPIFile = "../api/openapi.json"

var update = flag.Bool("update", false, "write "+openAPIFile)

func TestOpenAPIDocument(t *testing.T) {
	m := must(manager.New(manager.Options{Store: mem.New()}))(t)
	now := must(m.OpenAPI())(t)
	if *update {
		if err := os.WriteFile(openAPIFile, now, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed := must(os.ReadFile(openAPIFile))(t)
	if d := cmp.Diff(string(committed), string(now)); d != "" {
		t.Errorf("%s is out of date: run `go generate ./api`\n%s", openAPIFile, d)
	}
	b := start(t, manager.Options{})
	_, _, body := request(t, b, "GET", "/v1/openapi.json", nil, "")
	var served, file any
	if json.Unmarshal(body, &served) != nil || json.Unmarshal(committed, &file) != nil {
		t.Fatal("not JSON")
	}
	if d := cmp.Diff(file, served); d != "" {
		t.Errorf("served differs: %s", d)
	}
}

// A format that is smaller than its bounds makes clients that refuse, or cut, what the manager says.
func TestFormatsOfWholeNumbersHoldTheirBounds(t *testing.T) {
	var doc any
	if err := json.Unmarshal(must(os.ReadFile(openAPIFile))(t), &doc); err != nil {
		t.Fatal(err)
	}
	found := map[any]int{}
	var walk func(v any, at string)
	walk = func(v any, at string) {
		switch v := v.(type) {
		case []any:
			for i, v := range v {
				walk(v, fmt.Sprintf("%s/%d", at, i))
			}
		case map[string]any:
			if format, ok := v["format"]; ok && v["type"] == "integer" {
				found[format]++
				if most, bounded := v["maximum"].(float64); format == "int32" && (!bounded || most > math.MaxInt32) {
					t.Errorf("%s: int32 up to %v", at, v["maximum"])
				}
			}
			for name, v := range v {
				walk(v, at+"/"+name)
			}
		}
	}
	walk(doc, "")
	if found["int32"] == 0 || found["int64"] == 0 {
		t.Errorf("formats of whole numbers: %v", found)
	}
}

// request does a raw request over TCP with the token.
func request(t testing.TB, b *bench, method, path string, header map[string]string, body string) (int, http.Header, []byte) {
	t.Helper()
	req := must(http.NewRequestWithContext(ctx(t), method, b.url+path, strings.NewReader(body)))(t)
	req.Header.Set("Authorization", "Bearer "+b.token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp := must(c.Do(req))(t)
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header, must(io.ReadAll(resp.Body))(t)
}

// contract is the OpenAPI document, to check answers against.
type contract struct {
	doc map[string]any
	c   *jsonschema.Compiler
}

func newContract(t *testing.T) *contract {
	t.Helper()
	doc, ok := must(jsonschema.UnmarshalJSON(bytes.NewReader(must(os.ReadFile(openAPIFile))(t))))(t).(map[string]any)
	if !ok {
		t.Fatal("no object")
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("weir.json", doc); err != nil {
		t.Fatal(err)
	}
	return &contract{doc, c}
}

// check tells how an answer differs from what the document says of it.
func (c *contract) check(method, path string, status int, header http.Header, body []byte) error {
	paths := c.doc["paths"].(map[string]any)
	op, _ := paths[path].(map[string]any)[strings.ToLower(method)].(map[string]any)
	if op == nil {
		return fmt.Errorf("no operation %s %s", method, path)
	}
	answer, _ := op["responses"].(map[string]any)[fmt.Sprint(status)].(map[string]any)
	if answer == nil {
		return fmt.Errorf("status %d is not documented", status)
	}
	content, _ := answer["content"].(map[string]any)
	if len(content) == 0 {
		if len(body) > 0 {
			return fmt.Errorf("a body that is not documented: %.100s", body)
		}
		return nil
	}
	kind, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	if content[kind] == nil {
		return fmt.Errorf("content type %q is not documented", kind)
	}
	if !strings.Contains(kind, "json") {
		return nil
	}
	pointer := "weir.json#/paths/" + escape(path) + "/" + strings.ToLower(method) + "/responses/" + fmt.Sprint(status) + "/content/" + escape(kind) + "/schema"
	s, err := c.c.Compile(pointer)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

func escape(s string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(s) }

// TestAnswersAreAsDocumented walks through the whole API and compares each answer with the OpenAPI document.
func TestAnswersAreAsDocumented(t *testing.T) {
	c := newContract(t)
	b := start(t, manager.Options{Node: func(string) ask.Node { return &node{} }})
	if _, err := b.Apply(ctx(t), api.ApplyRequest{Document: demo()}); err != nil {
		t.Fatal(err)
	}
	report := `{"host":"h1","host_status":{"state":"ready","features":[{"name":"tcx","ok":true}]},
		"functions":{"fw":{"observed_generation":1,"state":"started","healthy":true,"host":"h1","ports":{"in":1,"out":2}}},
		"policies":{"guests":{"state":"active","rendered_path":["endpoint/alice","function/fw/in"]}},
		"events":[{"time":"2026-11-21T20:00:00Z","severity":"info","reason":"Started","kind":"function","object":"fw","message":"started"}]}`
	name := "{name}"
	for _, x := range []struct {
		method, path, query string
		object              string
		header              map[string]string
		body                string
		status              int
	}{
		{method: "POST", path: "/v1/status", body: report, status: 204},
		{method: "POST", path: "/v1/status", body: `{"host":"h1","sttus":1}`, status: 400},
		{method: "POST", path: "/v1/status", body: `{"host_status":{}}`, status: 422},
		{method: "GET", path: "/v1/functions", status: 200},
		{method: "GET", path: "/v1/functions", query: "?color=red", status: 400},
		{method: "GET", path: "/v1/endpoints", status: 200},
		{method: "GET", path: "/v1/chains", query: "?name=none", status: 200},
		{method: "GET", path: "/v1/policies", status: 200},
		{method: "GET", path: "/v1/hosts", status: 200},
		{method: "GET", path: "/v1/events", query: "?severity=info&object=fw&kind=function&limit=5", status: 200},
		{method: "GET", path: "/v1/events", query: "?severity=loud", status: 400},
		{method: "GET", path: "/v1/events", query: "?watch&revision=999999", status: 410},
		{method: "GET", path: "/v1/functions/" + name, object: "fw", status: 200},
		{method: "GET", path: "/v1/functions/" + name, object: "none", status: 404},
		{method: "GET", path: "/v1/hosts/" + name, object: "h1", status: 200},
		{method: "PUT", path: "/v1/functions/" + name, object: "w2", body: `{"spec":{"image":"wire"}}`, status: 201},
		{method: "PUT", path: "/v1/functions/" + name, object: "w2", body: `{"spec":{"image":"wire"}}`, status: 200},
		{method: "PUT", path: "/v1/functions/" + name, object: "w2", body: `{"spec":{"image":"wire","memroy":"1M"}}`, status: 400},
		{method: "PUT", path: "/v1/functions/" + name, object: "w2", body: `{"spec":{"image":"wire","memory":"lots"}}`, status: 422},
		{method: "PUT", path: "/v1/functions/" + name, object: "Bad_Name", body: `{"spec":{"image":"wire"}}`, status: 422},
		{method: "PUT", path: "/v1/functions/" + name, object: "w2", body: `{"spec":{"image":"wire"}}`, header: map[string]string{"Content-Type": "text/csv"}, status: 415},
		{method: "PUT", path: "/v1/functions/" + name, object: "w2", body: `{"spec":{"image":"wire"}}`, header: map[string]string{"If-None-Match": "*"}, status: 412},
		{method: "PUT", path: "/v1/functions/" + name, object: "w2", body: `{"spec":{"image":"` + strings.Repeat("x", 33<<20) + `"}}`, status: 413},
		{method: "PATCH", path: "/v1/functions/" + name, object: "w2", body: `{"spec":{"cpus":"1"}}`, status: 200},
		{method: "PATCH", path: "/v1/functions/" + name, object: "none", body: `{"spec":{"cpus":"1"}}`, status: 404},
		{method: "PATCH", path: "/v1/functions/" + name, object: "w2", body: `{"status":{"state":"started"}}`, status: 422},
		{method: "POST", path: "/v1/functions/" + name + "/stop", object: "fw", status: 202},
		{method: "POST", path: "/v1/functions/" + name + "/start", object: "fw", status: 202},
		{method: "POST", path: "/v1/functions/" + name + "/restart", object: "none", status: 404},
		{method: "GET", path: "/v1/functions/" + name + "/logs", object: "fw", query: "?tail=1", status: 200},
		{method: "GET", path: "/v1/functions/" + name + "/capture", object: "fw", query: "?port=in&count=3&filter=1,6+0+0+0", status: 200},
		{method: "GET", path: "/v1/functions/" + name + "/capture", object: "fw", query: "?port=up", status: 400},
		{method: "GET", path: "/v1/functions/" + name + "/capture", object: "none", status: 404},
		{method: "GET", path: "/v1/endpoints/" + name + "/capture", object: "none", status: 404},
		{method: "GET", path: "/v1/functions/" + name + "/flows", object: "fw", query: "?limit=3&sort=newest", status: 200},
		{method: "GET", path: "/v1/functions/" + name + "/flows", object: "fw", query: "?limit=1001", status: 400},
		{method: "GET", path: "/v1/functions/" + name + "/flows", object: "fw", query: "?sort=size", status: 400},
		{method: "GET", path: "/v1/functions/" + name + "/flows", object: "none", status: 404},
		{method: "POST", path: "/v1/functions/" + name + "/exec", object: "fw", query: "?arg=ls", status: 426},
		{method: "POST", path: "/v1/functions/" + name + "/exec", object: "fw", status: 400},
		{method: "GET", path: "/v1/operations", status: 200},
		{method: "GET", path: "/v1/hosts/" + name + "/counters", object: "h1", status: 200},
		{method: "GET", path: "/v1/hosts/" + name + "/counters", object: "h2", status: 404},
		{method: "GET", path: "/v1/policies/" + name + "/path", object: "guests", status: 200},
		{method: "DELETE", path: "/v1/functions/" + name, object: "fw", status: 409},
		{method: "DELETE", path: "/v1/functions/" + name, object: "w2", status: 202},
		{method: "POST", path: "/v1/functions/" + name + "/start", object: "w2", status: 409},
		{method: "PUT", path: "/v1/functions/" + name, object: "w2", body: `{"spec":{"image":"wire"}}`, status: 409},
		{method: "DELETE", path: "/v1/policies/" + name, object: "guests", header: map[string]string{"If-Match": `"1"`}, status: 412},
		{method: "DELETE", path: "/v1/policies/" + name, object: "guests", status: 202},
		{method: "DELETE", path: "/v1/policies/" + name, object: "nobody", status: 404},
		{method: "POST", path: "/v1/apply", body: `{"document":{"functions":{"w3":{"image":"wire"}}},"plan":true}`, status: 200},
		{method: "POST", path: "/v1/apply", body: `{"document":{"functions":{"w2":{"image":"wire"}}}}`, status: 409},
		{method: "POST", path: "/v1/apply", body: `{"document":{"functions":{"w3":{"imgae":"wire"}}}}`, status: 400},
		{method: "POST", path: "/v1/apply", body: `{"document":{"functions":{"w3":{}}}}`, status: 422},
		{method: "POST", path: "/v1/delete", body: `{"functions":["fw"]}`, status: 409},
		{method: "POST", path: "/v1/delete", body: `{"functions":["none"]}`, status: 200},
		{method: "POST", path: "/v1/delete", body: `{"function":["none"]}`, status: 400},
		{method: "GET", path: "/v1/openapi.json", status: 200},
		{method: "GET", path: "/healthz", status: 200},
		{method: "GET", path: "/metrics", status: 200},
		{method: "GET", path: "/healthz", header: map[string]string{"Authorization": "none"}, status: 200},
		{method: "GET", path: "/v1/hosts", header: map[string]string{"Authorization": "none"}, status: 401},
	} {
		t.Run(fmt.Sprintf("%s %s%s answers %d", x.method, strings.Replace(x.path, name, x.object, 1), x.query, x.status), func(t *testing.T) {
			status, header, body := request(t, b, x.method, strings.Replace(x.path, name, x.object, 1)+x.query, x.header, x.body)
			if status != x.status {
				t.Fatalf("status %d, want %d: %.300s", status, x.status, body)
			}
			if err := c.check(x.method, x.path, status, header, body); err != nil {
				t.Errorf("%v\n%.500s", err, body)
			}
		})
	}
}

func TestWhatIsNoRouteIsAProblem(t *testing.T) {
	b := start(t, manager.Options{})
	for _, x := range []struct {
		method, path string
		status       int
		says         string
	}{
		{"GET", "/v2/functions", 404, "no such path"},
		{"POST", "/v1/functions/fw", 405, "[GET PUT PATCH DELETE]"},
		{"PUT", "/v1/events/e1", 405, "[GET]"},
		{"DELETE", "/v1/apply", 405, "[POST]"},
	} {
		status, header, body := request(t, b, x.method, x.path, nil, "")
		var p api.ProblemError
		if err := json.Unmarshal(body, &p); err != nil || header.Get("Content-Type") != "application/problem+json" {
			t.Fatalf("%s %s: no problem document: %v %s", x.method, x.path, err, body)
		}
		if status != x.status || p.Status != x.status || !strings.Contains(p.Detail, x.says) || p.Instance != x.path {
			t.Errorf("%s %s: %d %+v, want %d and %q", x.method, x.path, status, p, x.status, x.says)
		}
	}
}

// What the document calls an object is none when it is null, and the largest numbers that it allows are taken.
func TestNullAndLargeNumbersAreAsDocumented(t *testing.T) {
	b := start(t, manager.Options{})
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"PUT", "/v1/hosts/h", `{"spec": {}, "placement": null}`, 400},
		{"PUT", "/v1/hosts/h", `{"spec": {}, "revision": 9000000000000000000}`, 201},
		{"PUT", "/v1/hosts/h", `{"spec": {}, "revision": 9000000000000000001}`, 400},
		{"PUT", "/v1/hosts/h", `{"spec": {}, "revision": -9000000000000000001}`, 400},
		{"POST", "/v1/fabric", `{"switches": null}`, 400},
		{"PUT", "/v1/secrets/s", `{"value": "+t"}`, 400},
		{"PUT", "/v1/secrets/s", `{"value": "+t=="}`, 409}, // it can be read; this manager has no key of secrets
		{"POST", "/v1/apply", `{"plan": true, "document": {"policies": null}}`, 400},
		{"POST", "/v1/apply", `{"plan": true, "document": {"policies": {"p": {"from": "a", "chain": "c", "symmetric": null}}}}`, 400},
		{"POST", "/v1/fabric", `{"gone": null, "switches": {}, "events": [{"reason": "x"}]}`, 204}, // as Go writes a list that is not there
	} {
		if status, _, body := request(t, b, c.method, c.path, nil, c.body); status != c.want {
			t.Errorf("%s %s %s: %d, want %d: %s", c.method, c.path, c.body, status, c.want, body)
		}
	}
}
