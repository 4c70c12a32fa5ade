package manager_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/store"
	"weir.dev/weir/store/mem"
)

// next reads the next delta of one of the types, errors of broken connections left out.
func next[T any](t *testing.T, w <-chan api.Delta[T]) api.Delta[T] {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case d, ok := <-w:
			if !ok {
				t.Fatal("watch ended")
			}
			if d.Type != api.DeltaError {
				return d
			}
		case <-late:
			t.Fatal("nothing came")
		}
	}
}

func TestAWatchTellsEachChange(t *testing.T) {
	b := start(t, manager.Options{})
	must(b.Functions().Put(ctx(t), "a", api.FunctionSpec{Image: "wire"}))(t)
	w := b.Functions().Watch(ctx(t), 0, api.ListOptions{})
	if d := next(t, w); d.Type != api.DeltaReset || len(d.Items) != 1 || d.Items[0].Name != "a" {
		t.Fatalf("first: %+v", d)
	}
	made := must(b.Functions().Put(ctx(t), "b", api.FunctionSpec{Image: "wire"}))(t)
	if d := next(t, w); d.Type != api.DeltaPut || cmp.Diff(made, d.Object) != "" {
		t.Errorf("%s: %s", d.Type, cmp.Diff(made, d.Object))
	}
	must(b.Chains().Put(ctx(t), "c", api.ChainSpec{Path: "a"}))(t) // another kind: not seen here
	must(b.Functions().Delete(ctx(t), "b"))(t)
	if d := next(t, w); d.Type != api.DeltaPut || d.Object.Deleting == nil {
		t.Errorf("%+v", d)
	}
	if err := b.Report(ctx(t), api.StatusReport{Functions: map[string]api.FunctionStatus{"b": {State: api.FunctionDeleted}}}); err != nil {
		t.Fatal(err)
	}
	if d := next(t, w); d.Type != api.DeltaDelete || d.Object.Name != "b" || d.Object.Spec.Image != "wire" {
		t.Errorf("%+v", d)
	}
}

// The first list of a watch is written as it is read: however large, it arrives whole, once.
func TestAWatchOfALargeListIsWhole(t *testing.T) {
	b := start(t, manager.Options{})
	d := api.Document{Functions: map[string]api.FunctionSpec{}}
	for i := range 200 { // 800 kB: several times what is held back
		d.Functions[fmt.Sprintf("f%03d", i)] = api.FunctionSpec{Image: "wire", Env: map[string]string{"A": strings.Repeat("x", 4000)}}
	}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: d}))(t)
	w := b.Functions().Watch(ctx(t), 0, api.ListOptions{})
	if d := next(t, w); d.Type != api.DeltaReset || len(d.Items) != 200 {
		t.Fatalf("first: %s of %d", d.Type, len(d.Items))
	}
	must(b.Functions().Put(ctx(t), "g", api.FunctionSpec{Image: "wire"}))(t)
	if d := next(t, w); d.Type != api.DeltaPut || d.Object.Name != "g" {
		t.Errorf("then: %s %s", d.Type, d.Object.Name)
	}
}

func TestAWatchGoesOnAfterTheManagerWasAway(t *testing.T) {
	s, dir := mem.New(), shortDir(t)
	b := startIn(t, dir, manager.Options{Store: s})
	w := b.Chains().Watch(ctx(t), 0, api.ListOptions{})
	next(t, w)
	must(b.Chains().Put(ctx(t), "c0", api.ChainSpec{Path: "f"}))(t)
	next(t, w)
	for round := 1; round < 4; round++ {
		b.stop()
		b = startIn(t, dir, manager.Options{Store: s})
		must(b.Chains().Put(ctx(t), fmt.Sprintf("c%d", round), api.ChainSpec{Path: "f"}))(t)
		if d := next(t, w); d.Type != api.DeltaPut || d.Object.Name != fmt.Sprintf("c%d", round) {
			t.Fatalf("round %d: %s %s: not what was missed", round, d.Type, d.Object.Name)
		}
	}
}

func TestAWatchListsAgainWhenHistoryIsGone(t *testing.T) {
	s, dir := mem.New(), shortDir(t)
	b := startIn(t, dir, manager.Options{Store: s})
	must(b.Chains().Put(ctx(t), "old", api.ChainSpec{Path: "f"}))(t)
	w := b.Chains().Watch(ctx(t), 0, api.ListOptions{})
	next(t, w)
	b.stop()
	for i := range 5 {
		if _, err := s.Txn(ctx(t), nil, putRaw(fmt.Sprintf("chain/x%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	_, rev, err := s.List(ctx(t), "", listAll)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(ctx(t), rev); err != nil {
		t.Fatal(err)
	}
	startIn(t, dir, manager.Options{Store: s})
	if d := next(t, w); d.Type != api.DeltaReset || len(d.Items) != 6 {
		t.Errorf("%s with %d items, want a reset with 6", d.Type, len(d.Items))
	}
}

func TestAWatchOfAnotherStoresRevisionListsAgain(t *testing.T) {
	b := start(t, manager.Options{})
	w := b.Chains().Watch(ctx(t), 1_000_000, api.ListOptions{})
	if d := next(t, w); d.Type != api.DeltaReset {
		t.Errorf("%s, want a reset", d.Type)
	}
}

func TestAWatchThatCanNeverSucceedEnds(t *testing.T) {
	b := start(t, manager.Options{})
	c := must(api.Dial(api.Options{URL: b.url, Token: "wrong"}))(t)
	defer c.Close()
	w := c.Chains().Watch(ctx(t), 0, api.ListOptions{})
	d := <-w
	if d.Type != api.DeltaError || !errors.Is(d.Err, api.ErrUnauthorized) {
		t.Errorf("%+v", d)
	}
	if d, ok := <-w; ok {
		t.Errorf("goes on: %+v", d)
	}
}

func TestAWatchIsFiltered(t *testing.T) {
	b := start(t, manager.Options{})
	report := func(sev api.Severity, object string) {
		t.Helper()
		if err := b.Report(ctx(t), api.StatusReport{Events: []api.Event{{Severity: sev, Kind: api.KindFunction, Object: object, Reason: "X", Message: object}}}); err != nil {
			t.Fatal(err)
		}
	}
	report(api.Error, "fw")
	w := b.Events().Watch(ctx(t), 0, api.ListOptions{Severity: api.Warning, Object: "fw"})
	if d := next(t, w); len(d.Items) != 1 {
		t.Fatalf("%d items", len(d.Items))
	}
	report(api.Info, "fw")
	report(api.Error, "w1")
	report(api.Warning, "fw")
	if d := next(t, w); d.Object.Severity != api.Warning || d.Object.Object != "fw" {
		t.Errorf("%+v", d.Object)
	}
}

// TestServerSentEvents reads the stream as a browser does.
func TestServerSentEvents(t *testing.T) {
	b := start(t, manager.Options{})
	must(b.Chains().Put(ctx(t), "a", api.ChainSpec{Path: "f"}))(t)
	lines := func(header map[string]string) *bufio.Scanner {
		req := must(http.NewRequestWithContext(ctx(t), "GET", b.url+"/v1/chains", nil))(t)
		req.Header.Set("Authorization", "Bearer "+b.token)
		req.Header.Set("Accept", "text/event-stream")
		for k, v := range header {
			req.Header.Set(k, v)
		}
		resp := must(http.DefaultTransport.RoundTrip(req))(t)
		t.Cleanup(func() { resp.Body.Close() })
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%d %s", resp.StatusCode, resp.Header.Get("Content-Type"))
		}
		return bufio.NewScanner(resp.Body)
	}
	read := func(s *bufio.Scanner, n int) []string {
		var out []string
		for len(out) < n && s.Scan() {
			if s.Text() != "" {
				field, _, _ := strings.Cut(s.Text(), "{")
				out = append(out, field)
			}
		}
		return out
	}
	s := lines(nil)
	first := read(s, 3)
	rev := strings.TrimPrefix(first[2], "id: ")
	if d := cmp.Diff([]string{"event: put", "data: ", "id: " + rev}, first); d != "" {
		t.Error(d)
	}
	d := api.Document{Chains: map[string]api.ChainSpec{"b": {Path: "g"}, "c": {Path: "h"}}}
	at := must(b.Apply(ctx(t), api.ApplyRequest{Document: d}))(t).Revision
	want := []string{"event: put", "data: ", "event: put", "data: ", fmt.Sprintf("id: %d", at)}
	if d := cmp.Diff(want, read(s, 5)); d != "" {
		t.Errorf("two changes of one revision: %s", d)
	}
	if d := cmp.Diff(append([]string{"id: " + rev}, want...), read(lines(map[string]string{"Last-Event-ID": rev}), 6)); d != "" {
		t.Errorf("resumed: %s", d)
	}
}

// TestOneWatchOfSeveralKinds: a change is told with its kind; a watch goes on without a gap; kinds that were not named stay away.
func TestOneWatchOfSeveralKinds(t *testing.T) {
	b := start(t, manager.Options{})
	must(b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t)
	must(b.Chains().Put(ctx(t), "a", api.ChainSpec{Path: "f"}))(t)
	told := func(query string, n int) (out []string, id string) {
		t.Helper()
		req := must(http.NewRequestWithContext(ctx(t), "GET", b.url+"/v1/watch?"+query, nil))(t)
		req.Header.Set("Authorization", "Bearer "+b.token)
		resp := must(http.DefaultTransport.RoundTrip(req))(t)
		defer resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("%s: %d", query, resp.StatusCode)
		}
		event := ""
		for s := bufio.NewScanner(resp.Body); s.Scan() && (len(out) < n || id == ""); {
			switch field, value, _ := strings.Cut(s.Text(), ": "); field {
			case "event":
				event = value
			case "id":
				id = value
			case "data":
				var d struct {
					Kind   api.Kind
					Object api.Meta
				}
				if err := json.Unmarshal([]byte(value), &d); err != nil || d.Object.Revision == 0 {
					t.Fatalf("%s: %v", value, err)
				}
				out = append(out, fmt.Sprintf("%s %s/%s", event, d.Kind, d.Object.Name))
			}
		}
		return out, id
	}
	const kinds = "kinds=function&kinds=chain"
	first, id := told(kinds, 2)
	if d := cmp.Diff([]string{"put function/f", "put chain/a"}, first); d != "" {
		t.Error(d)
	}
	must(b.Endpoints().Put(ctx(t), "e", api.EndpointSpec{Interface: "e"}))(t)
	must(b.Functions().Put(ctx(t), "g", api.FunctionSpec{Image: "wire"}))(t)
	must(b.Chains().Delete(ctx(t), "a"))(t)
	since, _ := told(kinds+"&revision="+id, 2)
	if d := cmp.Diff([]string{"put function/g", "delete chain/a"}, since); d != "" {
		t.Error(d)
	}
	for query, want := range map[string]int{"": 400, "?kinds=secret": 400, "?kinds=": 400, "?kinds=function&watch": 400, "?kinds=function&revision=999999": 410} {
		if got := b.status(t, b.token, "GET", "/v1/watch"+query, ""); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
}

func TestShutdownEndsStreamsAtOnce(t *testing.T) {
	b := start(t, manager.Options{Node: func(string) ask.Node { return &node{} }})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	c, cancel := context.WithCancel(ctx(t))
	defer cancel()
	w := b.Chains().Watch(c, 0, api.ListOptions{})
	next(t, w)
	logs := must(b.Logs(c, "fw", api.LogOptions{Follow: true}))(t)
	defer logs.Close()
	if !bufio.NewScanner(logs).Scan() {
		t.Fatal("no log")
	}
	began := time.Now()
	b.stop()
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("took %v", d)
	}
}

// TestAClientThatWasSlowMissesNothing lets changes pile up beyond every buffer before it reads them.
func TestAClientThatWasSlowMissesNothing(t *testing.T) {
	b := start(t, manager.Options{})
	w := b.Chains().Watch(ctx(t), 0, api.ListOptions{})
	next(t, w)
	const n = 2000
	padding := strings.Repeat("x", 4096)
	for i := range n {
		value := fmt.Sprintf(`{"name":"c%04d","spec":{"path":"%s"},"status":{}}`, i, padding)
		if _, err := b.store.Txn(ctx(t), nil, []store.Op{{Key: fmt.Sprintf("chain/c%04d", i), Value: []byte(value)}}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for len(seen) < n {
		d := next(t, w)
		for _, c := range d.Items {
			seen[c.Name] = true
		}
		if d.Type == api.DeltaPut {
			seen[d.Object.Name] = true
		}
	}
}
