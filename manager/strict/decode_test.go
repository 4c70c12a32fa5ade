package strict

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/strict/stricttest"
)

// object is as a function that is put.
type object struct {
	api.Meta
	Spec      api.FunctionSpec  `json:"spec"`
	Placement *api.Placement    `json:"placement,omitempty"`
	Secrets   map[string]string `json:"secrets,omitempty"`
	Status    json.RawMessage   `json:"status,omitempty"`
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What a body makes this process allocate grows with the body, not with what it pretends to be: also what is not kept counts here.
func TestHostileBodiesTakeLittleMemory(t *testing.T) {
	const size = 1 << 20
	for name, text := range stricttest.Hostile(size) {
		t.Run(name, func(t *testing.T) {
			for _, v := range []any{&api.StatusReport{}, &api.ApplyRequest{}, &api.FabricReport{}, &object{}} {
				raw := []byte(text)
				took, err := measured(func() error { return Decode(raw, v, "") })
				if most := int64(memoryFloor + 2*memoryFactor*len(raw)); took > most {
					t.Errorf("%T: %d KiB of body made it allocate %d KiB: want at most %d", v, len(raw)>>10, took>>10, most>>10)
				}
				var p *api.ProblemError
				if err == nil {
					continue
				}
				if !errors.As(err, &p) || p.Status != 400 && p.Status != 413 {
					t.Fatalf("%T: %.200v", v, err)
				}
				if n := len(marshal(t, p)); n > 128<<10 {
					t.Errorf("%T: the answer has %d KiB, with %d problems", v, n>>10, len(p.Problems))
				}
			}
		})
	}
}

// measured runs f and tells how many bytes it allocated in all.
func measured(f func() error) (bytes int64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), err
}

// What is sent in earnest is far from the bounds.
func TestEarnestBodiesAreDecoded(t *testing.T) {
	d := api.Document{Endpoints: map[string]api.EndpointSpec{}, Functions: map[string]api.FunctionSpec{}, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{}}
	r := api.StatusReport{Host: "h", Functions: map[string]api.FunctionStatus{}, Policies: map[string]api.PolicyStatus{}, Endpoints: map[string]api.EndpointStatus{}}
	for i := range 10_000 {
		n := fmt.Sprint(i)
		d.Endpoints["e"+n] = api.EndpointSpec{Interface: "e" + n}
		d.Functions["f"+n] = api.FunctionSpec{Image: "wire"}
		d.Chains["c"+n] = api.ChainSpec{Path: "f" + n}
		d.Policies["p"+n] = api.PolicySpec{Chain: "c" + n, From: "e" + n}
		r.Functions["f"+n] = api.FunctionStatus{State: "started"}
		r.Policies["p"+n] = api.PolicyStatus{State: "active"}
		r.Endpoints["e"+n] = api.EndpointStatus{State: "up"}
	}
	for _, v := range []any{&api.ApplyRequest{Document: d}, &r} {
		raw := marshal(t, v)
		cost, err := Scan(raw, reflect.TypeOf(v), "", false)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%T: %d KiB of body, %d KiB of memory (%.1f times)", v, len(raw)>>10, cost>>10, float64(cost)/float64(len(raw)))
		again := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		if err := Decode(raw, again, ""); err != nil {
			t.Fatal(err)
		}
		if string(marshal(t, again)) != string(raw) {
			t.Error("it became something else")
		}
	}
}

func TestStrictDecoding(t *testing.T) {
	for _, x := range []struct{ body, says string }{
		{`{"host":"a","host":"b"}`, "host is there twice"},
		{`{"host":"a","h\u006fst":"b"}`, "host is there twice"},
		{`{"functions":{"f":{},"f":{}}}`, "functions.f is there twice"},
		{`{"functions":{"f":{"x":1,"y":2}}}`, "functions.f.x unknown field"},
		{`{"events":[{},{"reson":1}]}`, "events[1].reson unknown field"},
		{`{"":1}`, `"" unknown field`},
		{`{"Host":"a"}`, "Host unknown field"},
		{`{"host":null}`, "host is null"},
		{`null`, "want an object"},
		{`{"host":7}`, "host is a JSON number: want a string"},
		{`{"host":"a"} {}`, "more than one JSON value"},
		{`{"host":"a"`, "ends too early"},
		{``, "ends too early"},
		{"{\"host\":\n nul}", "line 2"},
	} {
		var v api.StatusReport
		err := Decode([]byte(x.body), &v, "")
		var p *api.ProblemError
		if !errors.As(err, &p) || p.Status != 400 {
			t.Errorf("%s: %v", x.body, err)
			continue
		}
		said := p.Detail
		for _, q := range p.Problems {
			said += fmt.Sprintf("; %s %s line %d", q.Path, q.Message, q.Line)
		}
		if !strings.Contains(said, x.says) {
			t.Errorf("%s: %s, want %q", x.body, said, x.says)
		}
	}
}

// FuzzDecodeStrict: what is accepted can be written and accepted again, and nothing panics.
func FuzzDecodeStrict(f *testing.F) {
	for _, s := range []string{`{"document":{"functions":{"f":{"image":"x"}}},"plan":true}`, `{"document":null}`, `[]`, `{"document":{"chains":[1]}}`, `{"x":{}}`, `nul`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var v, again api.ApplyRequest
		if Decode(raw, &v, "") != nil {
			return
		}
		if err := Decode(marshal(t, v), &again, ""); err != nil {
			t.Errorf("%q was accepted, its own form is not: %v", raw, err)
		}
	})
}
