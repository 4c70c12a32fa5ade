package manager_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
)

// from counts the events of each source.
func from(t *testing.T, c *api.Client) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, e := range must(c.Events().List(ctx(t), api.ListOptions{}))(t).Items {
		n[e.Source]++
	}
	return n
}

func flood(n, round int) (events []api.Event) {
	for i := range n {
		events = append(events, api.Event{Severity: api.Error, Reason: "FunctionDied", Kind: api.KindFunction, Object: "f-h2", Message: fmt.Sprint(round, " ", i)})
	}
	return events
}

// One host's 15,000 events, in a rush or over hours, leave the history of another intact.
func TestAHostileHostDoesNotEraseTheHistoryOfOthers(t *testing.T) {
	for name, every := range map[string]time.Duration{"in a rush": 0, "over hours": 15 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			w, config, good := hostileWorld(t)
			evil := w.dial(t, config)
			tellOf(t, good, api.StatusReport{Host: "h2", Events: flood(300, -1)})
			before := from(t, w.Client)
			if before["host/h2"] != 300 {
				t.Fatalf("%v", before)
			}
			for round := range 15 {
				w.ahead.Add(int64(every))
				tellOf(t, evil, api.StatusReport{Host: "h1", Events: flood(1000, round), Endpoints: map[string]api.EndpointStatus{
					"e-h1": {ObservedGeneration: 1, Host: "h1", State: "up", Message: fmt.Sprint(round)}}})
			}
			after := from(t, w.Client)
			total := 0
			for _, n := range after {
				total += n
			}
			if after["host/h2"] != 300 || after["manager"] < before["manager"] || total > 10_500 {
				t.Errorf("before %v, after %v", before, after)
			}
			if every == 0 && (after["host/h1"] > 2000 || len(reasoned(t, w.Client, "EventsDropped")) == 0) {
				t.Errorf("%d events of the hostile host were taken at once: want its rate, and an event that says so", after["host/h1"])
			}
			if s := must(w.Endpoints().Get(ctx(t), "e-h1"))(t).Status; s.Message != "14" { // the rate is of events, not of statuses
				t.Errorf("the last status was not taken: %+v", s)
			}
		})
	}
}

func reasoned(t *testing.T, c *api.Client, reason string) (found []api.Event) {
	t.Helper()
	for _, e := range must(c.Events().List(ctx(t), api.ListOptions{}))(t).Items {
		if e.Reason == reason {
			found = append(found, e)
		}
	}
	return found
}

// Who raised an event is what the manager knows, whatever the report says.
func TestEventsTellWhoRaisedThem(t *testing.T) {
	for name, tt := range map[string]struct {
		event               api.Event
		kind                api.Kind
		object, source, say string
		reason              string // if it is another
	}{
		"its own function":    {api.Event{Kind: api.KindFunction, Object: "f-h1"}, api.KindFunction, "f-h1", "host/h1", "m", ""},
		"raised by it":        {api.Event{Kind: api.KindFunction, Object: "f-h1", Source: "function/f-h1"}, api.KindFunction, "f-h1", "function/f-h1", "m", ""},
		"raised by itself":    {api.Event{Kind: api.KindFunction, Object: "f-h1", Source: "function/f-h2"}, api.KindFunction, "f-h1", "function/f-h1", "m", ""},
		"its endpoint":        {api.Event{Kind: api.KindEndpoint, Object: "e-h1"}, api.KindEndpoint, "e-h1", "host/h1", "m", ""},
		"itself":              {api.Event{Kind: api.KindHost, Object: "h1", Source: "manager"}, api.KindHost, "h1", "host/h1", "m", ""},
		"nothing":             {api.Event{Source: "router"}, "", "", "host/h1", "m", ""},
		"another's function":  {api.Event{Kind: api.KindFunction, Object: "f-h2"}, api.KindHost, "h1", "host/h1", "says of function/f-h2, which is not its own: m", ""},
		"and as if raised":    {api.Event{Kind: api.KindFunction, Object: "f-h2", Source: "function/f-h2"}, api.KindHost, "h1", "host/h1", "says of function/f-h2, which is not its own: m", ""},
		"another's endpoint":  {api.Event{Kind: api.KindEndpoint, Object: "e-h2"}, api.KindHost, "h1", "host/h1", "says of endpoint/e-h2, which is not its own: m", ""},
		"another host":        {api.Event{Kind: api.KindHost, Object: "h2"}, api.KindHost, "h1", "host/h1", "says of host/h2, which is not its own: m", ""},
		"a switch":            {api.Event{Kind: api.KindSwitch, Object: "s1"}, api.KindHost, "h1", "host/h1", "says of switch/s1, which is not its own: m", ""},
		"what is nowhere":     {api.Event{Kind: api.KindFunction, Object: "gone"}, api.KindHost, "h1", "host/h1", "says of function/gone, which is not its own: m", ""},
		"a name without kind": {api.Event{Object: "f-h2"}, api.KindHost, "h1", "host/h1", "says of /f-h2, which is not its own: m", ""},
		"a reserved reason": {api.Event{Kind: api.KindFunction, Object: "f-h1", Source: "function/f-h1", Reason: "HostLost"}, api.KindFunction, "f-h1", "function/f-h1",
			"an event that the function raised is left out: reason: HostLost is reserved for Weir's own events: want another word, for example AppHostLost", "EventRefused"},
	} {
		t.Run(name, func(t *testing.T) {
			w, config, _ := hostileWorld(t)
			tt.event.Message = "m"
			if tt.event.Reason == "" {
				tt.event.Reason = "Odd"
			}
			if tt.reason == "" {
				tt.reason = tt.event.Reason
			}
			tellOf(t, w.dial(t, config), api.StatusReport{Host: "h1", Events: []api.Event{tt.event}})
			l := must(w.Events().List(ctx(t), api.ListOptions{}))(t).Items
			e := l[len(l)-1]
			if e.Kind != tt.kind || e.Object != tt.object || e.Source != tt.source || e.Message != tt.say || e.Reason != tt.reason || e.Host != "h1" {
				t.Errorf("%+v", e)
			}
			for _, e := range l[:len(l)-1] {
				if e.Source != "manager" {
					t.Errorf("%s is of %q: want the manager", e.Reason, e.Source)
				}
			}
		})
	}
}

// Each reason in the code of agent, manager and router is reserved, and each reserved reason is in the code.
func TestAllReasonsOfWeirAreReserved(t *testing.T) {
	found := map[string]bool{}
	word := func(x ast.Expr) {
		if l, ok := x.(*ast.BasicLit); ok && l.Kind == token.STRING {
			s, _ := strconv.Unquote(l.Value)
			found[s] = true
		}
	}
	for _, dir := range []string{"../agent", "../router", "."} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file := must(parser.ParseFile(token.NewFileSet(), path, must(os.ReadFile(path))(t), 0))(t)
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit: // api.DrainStay{Reason: "a sentence"} is no event
					if s, ok := n.Type.(*ast.SelectorExpr); ok && s.Sel.Name == "DrainStay" {
						return false
					}
				case *ast.KeyValueExpr: // api.Event{Reason: "X"}
					if k, ok := n.Key.(*ast.Ident); ok && k.Name == "Reason" {
						word(n.Value)
					}
				case *ast.CallExpr: // event(severity, "X", ...)
					if s, ok := n.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "event" || s.Sel.Name == "endpointEvent") && len(n.Args) > 1 {
						word(n.Args[1])
					}
				case *ast.ValueSpec: // const HostJoined = "X"
					for i, v := range n.Values {
						if name := n.Names[i].Name; name == "HostJoined" || name == "HostReplaced" || name == "ClockSkew" || name == "eventsDropped" || name == "EventsDropped" {
							word(v)
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	delete(found, "Refused") // a prefix
	for s := range found {
		if !api.ReservedReason(s) {
			t.Errorf("%s is raised by Weir and not in api.Reasons", s)
		}
	}
	for _, s := range api.Reasons() {
		if !found[s] && !strings.HasPrefix(s, "Refused") { // those of port security, see the agent's TestReasonsOfPortSecurityAreReserved
			t.Errorf("%s is in api.Reasons and nothing raises it", s)
		}
	}
	if len(found) < 45 {
		t.Errorf("only %d reasons were found", len(found))
	}
}
