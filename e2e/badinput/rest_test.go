package badinput

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// rest sends what the typed client would not.
func rest(ctx context.Context, t *testing.T, r *rig.Rig, before world) {
	socket := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join("/run/weir", r.Name, "api.sock"))
	}}}
	loopback := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
		err = netns.Do(r.Netns, func() error {
			c, err = net.Dial("tcp4", "127.0.0.1:7411")
			return err
		})
		return c, err
	}}}
	token, err := os.ReadFile(filepath.Join(r.Root, "token"))
	if err != nil {
		t.Fatal(err)
	}
	good := "Bearer " + strings.TrimSpace(string(token))
	json := func(more ...string) []string { return append([]string{"Content-Type", "application/json"}, more...) }
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		say                      []string
	}{
		{"stale If-Match", "PUT", "/v1/functions/w1", `{"spec":{"image":"wire","memory":"64M"}}`, json("If-Match", `"1"`), 412, []string{"changed meanwhile", "read it again"}},
		{"If-Match on nothing", "PUT", "/v1/functions/w9", `{"spec":{"image":"wire"}}`, json("If-Match", `"1"`), 412, []string{"does not exist"}},
		{"If-None-Match on what is there", "PUT", "/v1/functions/w1", `{"spec":{"image":"wire","memory":"64M"}}`, json("If-None-Match", "*"), 412, []string{"exists already"}},
		{"stale delete", "DELETE", "/v1/policies/guests", "", json("If-Match", `"1"`), 412, []string{"changed meanwhile"}},
		{"unknown field", "PUT", "/v1/functions/w1", `{"spec":{"image":"wire","memry":"64M"}}`, json(), 400, []string{`"path":"spec.memry"`, `did you mean \"memory\"?`}},
		{"unknown field, nothing like it", "PATCH", "/v1/functions/w1", `{"spec":{"colour":"red"}}`, json(), 400, []string{`"path":"spec.colour"`, "known are allow, command, config"}},
		{"no JSON", "PUT", "/v1/functions/w1", "{\"spec\":\n {\"image\":}}", json(), 400, []string{"not JSON", `"line":2`, `"column":11`}},
		{"JSON that ends too early", "PUT", "/v1/functions/w1", `{"spec":{`, json(), 400, []string{"ends too early"}},
		{"two values", "PUT", "/v1/functions/w1", `{"spec":{"image":"wire"}} {}`, json(), 400, []string{"more than one JSON value"}},
		{"nothing", "PUT", "/v1/functions/w1", "", json(), 400, []string{"not JSON"}},
		{"a number for text", "PUT", "/v1/functions/w1", `{"spec":{"image":7}}`, json(), 400, []string{`"path":"spec.image"`, "want a string"}},
		{"YAML", "PUT", "/v1/functions/w1", "spec: {}", []string{"Content-Type", "application/yaml"}, 415, []string{"want application/json"}},
		{"too large", "POST", "/v1/apply", strings.Repeat(" ", 33<<20), json(), 413, []string{"larger than 32 MiB", "smaller parts"}},
		{"unknown function in a chain", "PUT", "/v1/chains/web", `{"spec":{"path":"fw | w9"}}`, json(), 422, []string{"chains.web.path", `function \"w9\" is not there`, "nothing was changed"}},
		{"image that is not there", "PATCH", "/v1/functions/w1", `{"spec":{"image":"nonesuch"}}`, json(), 422, []string{"functions.w1.image", "there are ", "firewall:1, "}},
		{"interface that is not there", "PUT", "/v1/endpoints/x", `{"spec":{"interface":"nosuch0"}}`, json(), 422, []string{"endpoints.x.interface"}},
		{"bad name", "PUT", "/v1/functions/Big_One", `{"spec":{"image":"wire"}}`, json(), 422, []string{"want 1 to 42 characters"}},
		{"another name in the body", "PUT", "/v1/functions/w1", `{"name":"w2","spec":{"image":"wire"}}`, json(), 422, []string{"the path about"}},
		{"status by hand", "PATCH", "/v1/functions/w1", `{"status":{"healthy":false}}`, json(), 422, []string{"written by agents only"}},
		{"delete in use", "DELETE", "/v1/functions/w1", "", nil, 409, []string{"in use by chain/web"}},
		{"method", "POST", "/v1/functions/w1", "{}", json(), 405, []string{"want [GET PUT PATCH DELETE]"}},
		{"path", "GET", "/v2/functions", "", nil, 404, []string{"/v1/openapi.json"}},
		{"watch from a revision that never was", "GET", "/v1/functions?watch=1&revision=nine", "", nil, 400, []string{"revision"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body := request(ctx, t, socket, c.method, c.path, c.body, c.header...)
			answered(t, status, body, c.status, c.say...)
			same(ctx, t, r, before)
		})
	}
	for name, authorization := range map[string]string{
		"no token": "", "wrong token": "Bearer wrong", "empty token": "Bearer ", "token by another scheme": strings.Replace(good, "Bearer", "Basic", 1),
		"token cut short": good[:len(good)-1],
	} {
		t.Run(name, func(t *testing.T) {
			status, body := request(ctx, t, loopback, "DELETE", "/v1/policies/guests", "", "Authorization", authorization)
			answered(t, status, body, 401, "token is missing or wrong", "token file of weir's root directory")
			if strings.Contains(body, strings.TrimSpace(string(token))) {
				t.Error("the answer gives the token away")
			}
			same(ctx, t, r, before)
		})
	}
	if status, body := request(ctx, t, loopback, "GET", "/v1/policies/guests", "", "Authorization", good); status != 200 {
		t.Errorf("the right token: %d %s", status, body)
	}
}

func answered(t *testing.T, status int, body string, want int, say ...string) {
	t.Helper()
	if status != want {
		t.Errorf("status %d, want %d: %s", status, want, body)
	}
	for _, s := range append(say, `"status":`, `"title":`) {
		if !strings.Contains(body, s) {
			t.Errorf("it does not say %q: %s", s, body)
		}
	}
}

func request(ctx context.Context, t *testing.T, c *http.Client, method, path, body string, header ...string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(ctx, method, "http://weir"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	a, err := c.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(b)
}
