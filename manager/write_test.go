package manager_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/store"
	"weir.dev/weir/store/mem"
)

func TestConfigsKeepTheirNumbers(t *testing.T) {
	b := start(t, manager.Options{})
	big := api.Config{"id": json.Number("9007199254740993"), "rate": 0.5}
	must(b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", Config: big}))(t)
	must(b.Apply(ctx(t), api.ApplyRequest{Document: api.Document{Functions: map[string]api.FunctionSpec{"g": {Image: "wire", Config: big}}}}))(t)
	must(b.Functions().Patch(ctx(t), "f", map[string]any{"cpus": "0.5"}))(t)
	for _, name := range []string{"f", "g"} {
		if diff := cmp.Diff(big, must(b.Functions().Get(ctx(t), name))(t).Spec.Config); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestRefusedBodiesSayWhereAndWhat(t *testing.T) {
	b := start(t, manager.Options{})
	for name, x := range map[string]struct {
		path, body string
		status     int
		says       []string
	}{
		"unknown field":           {"/v1/functions/f", `{"spec":{"image":"wire","on_fial":"drop"}}`, 400, []string{`spec.on_fial: unknown field (did you mean "on_fail"?)`}},
		"two unknown fields":      {"/v1/functions/f", `{"spc":{}, "spec":{"colour":1}}`, 400, []string{"spc: unknown field", "spec.colour: unknown field (known are"}},
		"unknown field in a map":  {"/v1/apply", `{"document":{"policies":{"p":{"chian":"web"}}}}`, 400, []string{`document.policies.p.chian`, `"chain"`}},
		"wrong type":              {"/v1/policies/p", `{"spec":{"priority":"high"}}`, 400, []string{"spec.priority: is a JSON string: want a number"}},
		"no config":               {"/v1/functions/f", `{"spec":{"image":"wire","config":5}}`, 400, []string{"spec.config: is a JSON number: want an object"}},
		"a list for a string":     {"/v1/functions/f", `{"spec":{"image":["wire"]}}`, 400, []string{"spec.image", "want a string"}},
		"syntax":                  {"/v1/functions/f", "{\"spec\":\n {,}}", 400, []string{"2:3: invalid character"}},
		"cut short":               {"/v1/functions/f", `{"spec":`, 400, []string{"ends too early"}},
		"two values":              {"/v1/functions/f", `{} {}`, 400, []string{"more than one JSON value"}},
		"another name":            {"/v1/functions/f", `{"name":"g","spec":{"image":"wire"}}`, 422, []string{`"g"`, "write f"}},
		"several problems":        {"/v1/functions/f", `{"spec":{"memory":"lots","cpus":"many"}}`, 422, []string{"functions.f.image", "functions.f.memory", "functions.f.cpus"}},
		"a name that will not do": {"/v1/functions/F%20x", `{"spec":{"image":"wire"}}`, 422, []string{`"F x"`, "a-z"}},
	} {
		t.Run(name, func(t *testing.T) {
			method := "PUT"
			if strings.HasSuffix(x.path, "apply") {
				method = "POST"
			}
			status, _, body := request(t, b, method, x.path, nil, x.body)
			p := problem(t, body)
			if status != x.status {
				t.Errorf("status %d, want %d", status, x.status)
			}
			for _, want := range x.says {
				if !strings.Contains(p.Error(), want) {
					t.Errorf("says %q, want %q", p.Error(), want)
				}
			}
		})
	}
	if n := len(dump(t, b.store)); n != 0 {
		t.Errorf("%d keys were written by refused requests", n)
	}
}

func TestOneOfManyWritersOfOneRevisionWins(t *testing.T) {
	b := start(t, manager.Options{})
	rev := must(b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t).Revision
	var won, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			_, err := b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", Command: []string{fmt.Sprint(i)}}, api.IfRevision(rev))
			switch {
			case err == nil:
				won.Add(1)
			case errors.Is(err, api.ErrPrecondition):
				lost.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 15 {
		t.Errorf("%d won, %d lost", won.Load(), lost.Load())
	}
	if _, err := b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}, api.IfAbsent()); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("made although it is there: %v", err)
	}
	if _, err := b.Functions().Put(ctx(t), "g", api.FunctionSpec{Image: "wire"}, api.IfRevision(rev)); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("changed although it is not there: %v", err)
	}
}

// TestNoPatchIsLost lets two managers on one store patch one object at the same time.
func TestNoPatchIsLost(t *testing.T) {
	s := mem.New()
	b := []*bench{start(t, manager.Options{Store: s}), start(t, manager.Options{Store: s})}
	must(b[0].Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t)
	const writers, each = 4, 5
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				patch := map[string]any{"env": map[string]any{fmt.Sprintf("V%d_%d", w, i): "x"}}
				for {
					_, err := b[w%2].Functions().Patch(ctx(t), "f", patch)
					if err == nil {
						break
					}
					if !errors.Is(err, api.ErrBusy) { // ten times the other manager was faster
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	f := must(b[0].Functions().Get(ctx(t), "f"))(t)
	if len(f.Spec.Env) != writers*each || f.Generation != writers*each+1 {
		t.Errorf("%d patches, generation %d, want %d and %d", len(f.Spec.Env), f.Generation, writers*each, writers*each+1)
	}
}

func TestSpecWritersCannotTouchStatus(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1")
	status, _, body := request(t, b, "PUT", "/v1/functions/f", nil,
		`{"name":"f","generation":99,"revision":7,"spec":{"image":"wire"},"placement":{"host":"h9"},"status":{"state":"started","healthy":true}}`)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	f := must(b.Functions().Get(ctx(t), "f"))(t)
	if d := cmp.Diff(api.FunctionStatus{}, f.Status); d != "" || f.Generation != 1 || f.At() != "h1" {
		t.Errorf("generation %d, at %s, status %s", f.Generation, f.At(), d)
	}
	status, _, body = request(t, b, "PATCH", "/v1/functions/f", nil, `{"placement":{"host":"h9"}}`)
	if p := problem(t, body); status != 422 || !strings.Contains(p.Error(), "pin it with spec.host") {
		t.Errorf("%d %s", status, body)
	}
}

func TestWhatTheVerbsSetStaysWhereAFileDoesNotSay(t *testing.T) {
	b := start(t, manager.Options{})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	must(b.Restart(ctx(t), "fw"))(t)
	must(b.Stop(ctx(t), "fw"))(t)
	got := must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	for _, c := range got.Changes {
		if c.Action != "unchanged" {
			t.Errorf("%+v", c)
		}
	}
	f := must(b.Functions().Get(ctx(t), "fw"))(t)
	if f.Spec.State != api.FunctionStopped || f.Spec.Restart != 1 {
		t.Errorf("state %s, restart %d", f.Spec.State, f.Spec.Restart)
	}
}

func TestWhatIsInUseIsNotDeleted(t *testing.T) {
	b := start(t, manager.Options{})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	for name, x := range map[string]struct {
		remove func() error
		users  string
	}{
		"function": {func() error { _, err := b.Functions().Delete(ctx(t), "w1"); return err }, "chain/web"},
		"chain":    {func() error { _, err := b.Chains().Delete(ctx(t), "web"); return err }, "policy/guests"},
		"endpoint": {func() error { _, err := b.Endpoints().Delete(ctx(t), "bob"); return err }, "policy/guests"},
	} {
		err := x.remove()
		if !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), x.users) {
			t.Errorf("%s: %v, want a conflict that names %s", name, err, x.users)
		}
	}
	must(b.Policies().Delete(ctx(t), "guests"))(t)
	must(b.Chains().Delete(ctx(t), "web"))(t)
	must(b.Functions().Delete(ctx(t), "w1"))(t)
	if _, err := b.Functions().Put(ctx(t), "w1", api.FunctionSpec{Image: "wire"}); !errors.Is(err, api.ErrConflict) {
		t.Errorf("made anew while it is being deleted: %v", err)
	}
}

func TestARefusedDocumentChangesNothing(t *testing.T) {
	refuse := false
	b := start(t, manager.Options{Validate: func(_, _ api.Document) []api.Problem {
		if refuse {
			return []api.Problem{{Path: "policies.guests", Message: "conflicts with policies.p0001", Hint: "change one priority"}}
		}
		return nil
	}})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	before := dump(t, b.store)
	refuse = true
	d := many(200)
	for name, do := range map[string]func() error{
		"apply": func() error { _, err := b.Apply(ctx(t), api.ApplyRequest{Document: d, Prune: true}); return err },
		"plan":  func() error { _, err := b.Apply(ctx(t), api.ApplyRequest{Document: d, Plan: true}); return err },
		"put":   func() error { _, err := b.Chains().Put(ctx(t), "c2", api.ChainSpec{Path: "fw"}); return err },
		"patch": func() error {
			_, err := b.Policies().Patch(ctx(t), "guests", map[string]any{"priority": 7})
			return err
		},
	} {
		err := do()
		if !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "policies.guests: conflicts with policies.p0001 (change one priority)") {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, dump(t, b.store)); diff != "" {
			t.Errorf("%s: refused, but changed: %s", name, diff)
		}
	}
}

// dump is everything in a store but the audit log.
func dump(t *testing.T, s store.Store) map[string]string {
	t.Helper()
	items, _, err := s.List(ctx(t), "", store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, i := range items {
		if !strings.HasPrefix(i.Key, "audit/") {
			out[i.Key] = string(i.Value)
		}
	}
	return out
}

// many is the demo with n policies.
func many(n int) api.Document {
	d := demo()
	for i := range n {
		d.Policies[fmt.Sprintf("p%05d", i)] = api.PolicySpec{From: "alice", To: "bob", Match: []string{fmt.Sprintf("tcp/%d", 1000+i)}, Chain: "web"}
	}
	return d
}

// faulty is a store whose transactions fail when told to: before, or after they were done.
type faulty struct {
	store.Store
	before, after atomic.Bool
}

var errFault = errors.New("the wire was cut")

func (f *faulty) Txn(ctx context.Context, c []store.Cond, ops []store.Op) (int64, error) {
	if f.before.Load() {
		return 0, errFault
	}
	rev, err := f.Store.Txn(ctx, c, ops)
	if err == nil && f.after.Load() {
		return 0, errFault
	}
	return rev, err
}

func TestAnApplyHappensWholeOrNotAtAll(t *testing.T) {
	f := &faulty{Store: mem.New()}
	b := start(t, manager.Options{Store: f})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	before := dump(t, f)
	f.before.Store(true)
	if _, err := b.Apply(ctx(t), api.ApplyRequest{Document: many(500)}); err == nil || !strings.Contains(err.Error(), errFault.Error()) {
		t.Fatalf("%v, want the fault", err)
	}
	if d := cmp.Diff(before, dump(t, f)); d != "" {
		t.Errorf("half applied: %s", d)
	}
	f.before.Store(false)
	f.after.Store(true)
	if _, err := b.Apply(ctx(t), api.ApplyRequest{Document: many(500)}); err == nil {
		t.Fatal("no error")
	}
	f.after.Store(false)
	l := must(b.Policies().List(ctx(t), api.ListOptions{}))(t)
	if len(l.Items) != 501 {
		t.Errorf("%d policies: want all 501, the transaction was done", len(l.Items))
	}
	for _, c := range must(b.Apply(ctx(t), api.ApplyRequest{Document: many(500)}))(t).Changes {
		if c.Action != "unchanged" {
			t.Fatalf("repeated: %+v", c)
		}
	}
}

// TestADocumentIsCheckedAgainstWhatItIsCommittedOver has two managers add halves that are wrong together: never both.
func TestADocumentIsCheckedAgainstWhatItIsCommittedOver(t *testing.T) {
	s := mem.New()
	validate := func(d, _ api.Document) []api.Problem {
		if len(d.Chains) > 1 {
			return []api.Problem{{Path: "chains", Message: "two"}}
		}
		return nil
	}
	b := []*bench{start(t, manager.Options{Store: s, Validate: validate}), start(t, manager.Options{Store: s, Validate: validate})}
	for range 20 {
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				_, err := b[i].Chains().Put(ctx(t), fmt.Sprintf("c%d", i), api.ChainSpec{Path: "fw"})
				if err != nil && !errors.Is(err, api.ErrInvalid) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		l := must(b[0].Chains().List(ctx(t), api.ListOptions{}))(t)
		if len(l.Items) != 1 {
			t.Fatalf("%d chains, want 1", len(l.Items))
		}
		must(b[1].Chains().Delete(ctx(t), l.Items[0].Name))(t)
	}
}

func TestAFullStoreIsSaidAsSuch(t *testing.T) {
	f := &full{mem.New()}
	b := start(t, manager.Options{Store: f})
	_, err := b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"})
	if !errors.Is(err, api.ErrFull) || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("%v, want ErrFull", err)
	}
}

type full struct{ store.Store }

func (full) Txn(context.Context, []store.Cond, []store.Op) (int64, error) {
	return 0, fmt.Errorf("%w: free some space", store.ErrFull)
}
