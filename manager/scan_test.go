package manager

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"weir.dev/weir/api"
)

// hostile are bodies that small means make large.
func hostile(size int) map[string]string {
	fill := func(before, element, between, after string) string {
		n := (size - len(before) - len(after)) / (len(element) + len(between))
		return before + strings.Repeat(element+between, n-1) + element + after
	}
	many := func(before, format, after string) string {
		var b strings.Builder
		b.WriteString(before)
		for i := 0; b.Len() < size; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, format, i)
		}
		return b.String() + after
	}
	half := size / 2
	return map[string]string{
		"a list of {}":                   fill(`{"host":"h","events":[`, `{}`, `,`, `]}`),
		"a list of {} where none is":     fill(`[`, `{}`, `,`, `]`),
		"a list of {} in a config":       fill(`{"document":{"functions":{"f":{"image":"x","config":{"a":[`, `{}`, `,`, `]}}}}}`),
		"a list of small objects":        fill(`{"document":{"functions":{"f":{"image":"x","config":{"a":[`, `{"a":1}`, `,`, `]}}}}}`),
		"a list of [] in a config":       fill(`{"document":{"functions":{"f":{"image":"x","config":{"a":[`, `[]`, `,`, `]}}}}}`),
		"a list of numbers in a config":  fill(`{"document":{"functions":{"f":{"image":"x","config":{"a":[`, `1`, `,`, `]}}}}}`),
		"a list of empty strings":        fill(`{"document":{"policies":{"p":{"chain":"c","match":[`, `""`, `,`, `]}}}}`),
		"nested lists":                   strings.Repeat("[", half) + strings.Repeat("]", half),
		"nested objects":                 strings.Repeat(`{"a":`, size/6) + "1" + strings.Repeat("}", size/6),
		"nested in a config":             `{"document":{"functions":{"f":{"image":"x","config":{"a":` + strings.Repeat("[", half) + strings.Repeat("]", half) + `}}}}}`,
		"unknown names":                  many(`{`, `"x%d":0`, `}`),
		"unknown names with objects":     many(`{`, `"x%d":{}`, `}`),
		"objects with unknown names":     many(`{"functions":{`, `"x%d":{"y":0}`, `}}`),
		"empty statuses":                 many(`{"host":"h","functions":{`, `"%d":{}`, `}}`),
		"empty specs":                    many(`{"document":{"endpoints":{`, `"%d":{}`, `}}}`),
		"names in a config":              many(`{"document":{"functions":{"f":{"image":"x","config":{`, `"%d":0`, `}}}}}`),
		"one long string":                `{"host":"` + strings.Repeat("x", size) + `"}`,
		"one long string of escapes":     `{"host":"` + strings.Repeat(`\u0041`, size/6) + `"}`,
		"one long unknown name":          `{"` + strings.Repeat("x", size) + `":1}`,
		"one name again and again":       fill(`{`, `"host":"h"`, `,`, `}`),
		"one object again and again":     fill(`{`, `"host_status":{}`, `,`, `}`),
		"a name of a map again":          fill(`{"functions":{`, `"f":{}`, `,`, `}}`),
		"a name of a config again":       fill(`{"document":{"functions":{"f":{"config":{`, `"a":{}`, `,`, `}}}}}`),
		"a big number":                   `{"functions":{"f":{"pid":` + strings.Repeat("9", size) + `}}}`,
		"a big number in a config":       `{"document":{"functions":{"f":{"config":{"a":` + strings.Repeat("9", size) + `}}}}}`,
		"a big number where a string is": `{"host":` + strings.Repeat("9", size) + `}`,
		"wrong types":                    many(`{"functions":{`, `"x%d":[]`, `}}`),
		"blanks":                         `{` + strings.Repeat(" ", size) + `}`,
		"no end":                         fill(`{"events":[`, `{}`, `,`, ``),
	}
}

// What a body makes this process allocate grows with the body, not with what it pretends to be: also what is not kept counts here.
func TestHostileBodiesTakeLittleMemory(t *testing.T) {
	const size = 1 << 20
	for name, text := range hostile(size) {
		t.Run(name, func(t *testing.T) {
			for _, v := range []any{&api.StatusReport{}, &api.ApplyRequest{}, &api.FabricReport{}, nounOf(api.KindFunction).body()} {
				raw := []byte(text)
				took, err := measured(func() error { return decodeStrict(raw, v, "") })
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
				if n := len(marshal(p)); n > 128<<10 {
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
		raw := marshal(v)
		cost, err := scan(raw, reflect.TypeOf(v), "", false)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%T: %d KiB of body, %d KiB of memory (%.1f times)", v, len(raw)>>10, cost>>10, float64(cost)/float64(len(raw)))
		again := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		if err := decodeStrict(raw, again, ""); err != nil {
			t.Fatal(err)
		}
		if string(marshal(again)) != string(raw) {
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
		err := decodeStrict([]byte(x.body), &v, "")
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
