package intent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/keys"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/placement"
	"weir.dev/weir/store"
)

// epochKey changes with every change of a spec: a transaction that was checked against the whole document holds only if
// the document is still the same.
const epochKey = "meta/spec"

// epoch is the value of epochKey.
type epoch struct {
	Decision int64 `json:"decision,omitempty"` // how many decisions about who steers a policy there have been
}

// Editor changes what is declared.
type Editor struct {
	*tx.Writer
	Hosts *members.Hosts
	Keys  *keys.Keys

	// Validate tells everything that is wrong between the objects of a whole document, of which a part is new or changed.
	Validate func(d, changed api.Document) []api.Problem
	// Admit tells what hosts have against what is new or changed in a document.
	Admit     func(ctx context.Context, d, changed api.Document) Verdict
	Strategy  placement.Strategy
	Placement string // the strategy's name
	Underlay  string // of all hosts: "vxlan" tunnels between them
	NoRouter  bool   // no router runs, whatever switches are known from before

	looks looks
}

// state is everything declared, as it is at one epoch, and what an edit makes of it.
type state struct {
	tx.Change
	e        *Editor
	epoch    int64
	decision int64 // the last one about who steers a policy
	revision int64
	objects  map[api.Kind]map[string]*object.Object // after the edit
	before   map[api.Kind]map[string]*object.Object // what it replaced; nil: was not there
	order    []object.Ref
	secrets  map[string]sealed // users'; nil: not read, see readSecrets
	placeAll bool              // look at all placements, whatever was changed
	lost     map[string]bool   // hosts whose loss this edit is about
	stays    map[string]string // functions that this edit has found no host for, and why
	locked   bool              // others wait for this edit: no host is asked
	heard    *hearing          // what hosts have said, if they were asked
}

// load reads all declared objects and hosts. The epoch is read first: what changes later makes the commit fail.
func (e *Editor) load(ctx context.Context) (*state, error) {
	st := &state{e: e, objects: map[api.Kind]map[string]*object.Object{}, before: map[api.Kind]map[string]*object.Object{}}
	i, err := e.Store.Get(ctx, epochKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	var counted epoch
	if len(i.Value) > 0 {
		if err := json.Unmarshal(i.Value, &counted); err != nil {
			return nil, fmt.Errorf("stored %s: %w", epochKey, err)
		}
	}
	st.epoch, st.decision = i.Revision, counted.Decision
	for _, n := range object.Nouns() {
		if n.Spec == nil {
			continue
		}
		list, rev, err := store.List[object.Object](ctx, e.Store, n.Kind)
		if err != nil {
			return nil, err
		}
		st.revision = rev
		st.objects[n.Kind], st.before[n.Kind] = make(map[string]*object.Object, len(list)), map[string]*object.Object{}
		for k := range list {
			st.objects[n.Kind][list[k].Name] = &list[k]
			if p := list[k].Placement; p != nil { // a manager of an earlier version that writes does not count
				st.decision = max(st.decision, p.Decision)
			}
		}
	}
	return st, nil
}

func (st *state) get(kind api.Kind, name string) *object.Object { return st.objects[kind][name] }

// touch remembers what an object was before its first change.
func (st *state) touch(kind api.Kind, name string) {
	if _, ok := st.before[kind][name]; ok {
		return
	}
	st.before[kind][name] = st.objects[kind][name]
	st.order = append(st.order, object.Ref{Kind: kind, Name: name})
}

// revise gives a copy of an object that the edit may change.
func (st *state) revise(kind api.Kind, name string) *object.Object {
	st.touch(kind, name)
	next := *st.objects[kind][name]
	st.objects[kind][name] = &next
	return &next
}

// drop takes an object out at once.
func (st *state) drop(kind api.Kind, name string) {
	st.touch(kind, name)
	delete(st.objects[kind], name)
}

// set gives an object a spec in stored form. A spec that is equal changes nothing.
func (st *state) set(n object.Noun, name string, spec json.RawMessage) (*object.Object, error) {
	cur := st.get(n.Kind, name)
	if cur != nil && cur.Deleting != nil {
		p := api.Refuse(http.StatusConflict, fmt.Sprintf("%s %s is being deleted: wait until it is gone, then make it anew", n.Kind, name))
		p.Type = api.TypeDeleting
		return nil, p
	}
	if cur == nil {
		st.touch(n.Kind, name)
		cur = object.New(n, name, spec, st.e.Now())
		st.objects[n.Kind][name] = cur
		return cur, nil
	}
	if n.Kind == api.KindFunction {
		spec = keepVerbs(cur.Spec, spec)
	}
	if string(cur.Spec) == string(spec) {
		return cur, nil
	}
	next := st.revise(n.Kind, name)
	next.Spec = spec
	next.Generation++
	next.Updated = st.e.Now().UTC()
	return next, nil
}

// keepVerbs leaves a function's state and restart count as the verbs left them, where a new spec does not say.
func keepVerbs(old, spec json.RawMessage) json.RawMessage {
	var a, b api.FunctionSpec
	if json.Unmarshal(old, &a) != nil || json.Unmarshal(spec, &b) != nil {
		return spec
	}
	b.State = cmp.Or(b.State, a.State)
	b.Restart = max(b.Restart, a.Restart)
	return object.Marshal(b)
}

// takeOut deletes an object, in two phases where an agent has to take it down first.
func (st *state) takeOut(n object.Noun, name string) {
	cur := st.get(n.Kind, name)
	switch {
	case !n.TwoPhase:
		st.drop(n.Kind, name)
	case cur.Deleting == nil:
		next, now := st.revise(n.Kind, name), st.e.Now().UTC()
		next.Deleting, next.Updated = &now, now
	}
}

// document is the desired state: what is being deleted is no part of it any more.
func (st *state) document() (d api.Document, err error) {
	d = api.Document{
		Endpoints: specs[api.EndpointSpec](st, api.KindEndpoint, &err), Functions: specs[api.FunctionSpec](st, api.KindFunction, &err),
		Chains: specs[api.ChainSpec](st, api.KindChain, &err), Policies: specs[api.PolicySpec](st, api.KindPolicy, &err),
	}
	return d, err
}

func specs[S any](st *state, kind api.Kind, err *error) map[string]S {
	out := make(map[string]S, len(st.objects[kind]))
	for name, o := range st.objects[kind] {
		if o.Deleting != nil {
			continue
		}
		var s S
		if e := o.Into(&s, nil); e != nil {
			*err = e
		}
		out[name] = s
	}
	return out
}

// check validates each spec and the whole document, and what hosts say of it.
func (st *state) check(ctx context.Context) error {
	d, err := st.document()
	if err != nil {
		return err
	}
	problems := d.Validate()
	unbound, err := st.bindSecrets(ctx)
	if err != nil {
		return err
	}
	problems = append(problems, unbound...)
	wrong := map[string]bool{} // by itself: what hosts say of the same field tells nothing more
	for _, p := range problems {
		wrong[p.Path] = true
	}
	changed := st.changed(d)
	verdict, err := st.hear(ctx, d, changed)
	if err != nil {
		return err
	}
	hosts, err := st.checkHosts(changed)
	if err != nil {
		return err
	}
	told := slices.DeleteFunc(slices.Clone(verdict.Problems), func(p api.Problem) bool { return wrong[p.Path] })
	for _, p := range slices.Concat(st.e.Validate(d, changed), hosts, told) {
		if !slices.Contains(problems, p) {
			problems = append(problems, p)
		}
	}
	if len(problems) == 0 {
		return nil
	}
	detail := "the specification has a problem: nothing was changed"
	if len(problems) > 1 {
		detail = fmt.Sprintf("the specification has %d problems: nothing was changed", len(problems))
	}
	return api.Refuse(http.StatusUnprocessableEntity, detail, problems...)
}

// change is what the edit comes to. It holds only if nothing that it was checked against has changed.
func (st *state) change(ctx context.Context) (tx.Change, error) {
	if len(st.order) == 0 && len(st.Operations) == 0 && len(st.Ops) == 0 {
		return tx.Change{}, nil
	}
	conds, ops, err := st.follow(ctx)
	if err != nil {
		return tx.Change{}, err
	}
	st.numberDecisions()
	st.Conds = slices.Concat([]store.Cond{{Key: epochKey, Revision: st.epoch}}, st.Conds, conds)
	st.Ops = slices.Concat([]store.Op{{Key: epochKey, Value: object.Marshal(epoch{st.decision})}}, st.Ops, ops)
	for _, r := range st.order {
		var at int64
		if old := st.before[r.Kind][r.Name]; old != nil {
			at = old.Revision
		}
		if now := st.objects[r.Kind][r.Name]; now != nil {
			tx.Add(&st.Change, r.Kind, now, at)
		} else {
			st.Remove(r.Kind, r.Name, at)
		}
	}
	return st.Change, nil
}

// written notes the revision that the edit has got.
func (st *state) written(revision int64) {
	if revision == 0 {
		return // it changed nothing
	}
	st.revision = revision
	for _, r := range st.order {
		if o := st.objects[r.Kind][r.Name]; o != nil {
			o.Revision = revision
		}
	}
}

// edit loads the state, lets f change it, and commits; when someone else was faster, all over again. Hosts that have to be asked are asked in between,
// while others edit; if those change what the hosts were asked about, they are asked again.
func (e *Editor) edit(ctx context.Context, f func(*state) error) (*state, error) {
	var heard *hearing
	for range tx.Attempts {
		st, err := e.editOnce(ctx, heard, f)
		var ask *askFirst
		if !errors.As(err, &ask) {
			return st, err
		}
		heard = &hearing{ask.about, e.Admit(ctx, ask.d, ask.changed)}
	}
	return nil, tx.OthersWrite("specification")
}

func (e *Editor) editOnce(ctx context.Context, heard *hearing, f func(*state) error) (*state, error) {
	var st *state
	revision, err := e.Loop(ctx, "specification", func() (c tx.Change, err error) {
		if st, err = e.load(ctx); err != nil {
			return c, err
		}
		st.locked, st.heard = true, heard
		if err := f(st); err != nil {
			return c, err
		}
		if err := st.settle(ctx); err != nil {
			return c, err
		}
		if err := st.crossing(); err != nil {
			return c, err
		}
		return st.change(ctx)
	})
	if err == nil {
		st.written(revision)
	}
	return st, err
}

// warnings are what there is to say of an edit that was done.
func (st *state) warnings() []string {
	if st.heard == nil {
		return nil
	}
	return st.heard.verdict.Warnings
}

// Standing is what statuses tell a trace.
type Standing struct {
	MACs     map[string]string // of endpoints
	Down     map[string]bool   // functions
	Policies map[string]api.PolicyStatus
}

// Standing is the desired state, and what statuses tell of it.
func (e *Editor) Standing(ctx context.Context) (api.Document, Standing, error) {
	st, err := e.load(ctx)
	if err != nil {
		return api.Document{}, Standing{}, err
	}
	d, err := st.document()
	if err != nil {
		return api.Document{}, Standing{}, err
	}
	now := Standing{MACs: map[string]string{}, Down: map[string]bool{}, Policies: map[string]api.PolicyStatus{}}
	for name, o := range st.objects[api.KindEndpoint] {
		var s api.EndpointStatus
		err = errors.Join(err, o.Into(nil, &s))
		now.MACs[name] = s.MAC
	}
	for name, o := range st.objects[api.KindFunction] {
		var s api.FunctionStatus
		err = errors.Join(err, o.Into(nil, &s))
		now.Down[name] = !s.Healthy
	}
	for name, o := range st.objects[api.KindPolicy] {
		var s api.PolicyStatus
		err = errors.Join(err, o.Into(nil, &s))
		now.Policies[name] = s
	}
	return d, now, err
}

// generationLeap is added to all generations, and to the number of decisions, after a restore: what agents have seen of a later state is not taken for this one.
const generationLeap = 1 << 20

// Restored makes a state that came out of a backup the current one: what was reported is not known to be true, and what agents have seen of later
// generations is not this. Agents report anew. Safe to repeat.
func (e *Editor) Restored(ctx context.Context) error {
	return e.Alone(func() error { return e.restored(ctx) })
}

func (e *Editor) restored(ctx context.Context) error {
	st, err := e.load(ctx)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	counted := store.Op{Key: epochKey, Value: object.Marshal(epoch{st.decision + generationLeap})} // agents may have heard of later decisions
	if _, err := e.Store.Txn(ctx, nil, []store.Op{counted}); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	for _, n := range object.Nouns() {
		if n.Spec == nil {
			continue
		}
		objects, _, err := store.List[object.Object](ctx, e.Store, n.Kind)
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		for some := range slices.Chunk(objects, history.ForgetAtOnce) {
			var ops []store.Op
			for i := range some {
				o := &some[i]
				o.Generation += generationLeap
				if n.Kind != api.KindHost {
					o.Status = []byte("{}")
				}
				ops = append(ops, store.Put(n.Kind, o))
			}
			if _, err := e.Store.Txn(ctx, nil, ops); err != nil {
				return fmt.Errorf("restore: %w", err)
			}
		}
	}
	return nil
}
