package suite

import (
	"bytes"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// twins run the same rules and frames in the driver's switch and in the reference.
type twins struct {
	t     testing.TB
	r     *Rig
	ref   *flow.Switch
	sent  []sent
	marks int
	rules []flow.Rule
	met   map[string]flow.Port // addresses and tags, or the sender's alone -> where a frame with them was last sent

	mu    sync.Mutex
	order map[string][]string // mark -> places of inline functions, as the frame came by
}

type sent struct {
	what  string
	mark  []byte
	frame []byte
	want  map[string]int      // place -> times
	as    map[string][][]byte // place -> the frame as it is there: a fabric tag may come and go
	paths map[int][]string    // by branch of copies: inline functions in order
}

// newTwins is to be called when all ports are there: from now on both switches learn the same.
func newTwins(t testing.TB, r *Rig) *twins {
	t.Helper()
	w := &twins{t: t, r: r, ref: r.Reference(nil), order: map[string][]string{}, met: map[string]flow.Port{}}
	for _, fn := range r.Funcs {
		if fn.pump == nil {
			continue
		}
		in, out := fn.Sockets["in"], fn.Sockets["out"]
		in.handle(func(b []byte) { w.log(flow.In.Of(fn.Name), b); _ = out.send(b) })
		out.handle(func(b []byte) { w.log(flow.Out.Of(fn.Name), b); _ = in.send(b) })
	}
	return w
}

func (w *twins) commit(rules ...flow.Rule) {
	w.t.Helper()
	w.rules = rules
	must(w.t, w.ref.Commit(rules))
	if _, err := w.r.Switch.Commit(Context(w.t), rules); err != nil {
		w.t.Fatal(err)
	}
}

// Settler is a switch that may meet a frame later than the next one at another port, as no kernel does. Settle returns when it has met all that came in.
type Settler interface{ Settle() }

// emptyQueues waits until no frame is on its way to a switch.
func (w *twins) emptyQueues() {
	w.t.Helper()
	Until(w.t, "empty receive queues", func() bool {
		n, err := netns.Backlog()
		must(w.t, err)
		return n == 0
	})
}

// state of a function, in both switches. What was sent before has met the former one: a frame that is dropped arrives nowhere where it could be
// awaited, but it is in no queue any more.
func (w *twins) state(function string, s datapath.State) {
	w.t.Helper()
	w.emptyQueues()
	must(w.t, w.ref.SetDown(function, s == datapath.Down))
	must(w.t, w.r.Switch.SetState(Context(w.t), function, s, 0))
}

func (w *twins) log(place string, frame []byte) {
	at := bytes.Index(frame, []byte("weir-frame-"))
	if at < 0 || len(frame) < at+len(mark(0)) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m := string(frame[at : at+len(mark(0))])
	w.order[m] = append(w.order[m], place)
}

// next mark.
func (w *twins) next() []byte {
	w.marks++
	return mark(w.marks)
}

// send a frame that carries the mark from a station, and note what the reference makes of it.
func (w *twins) send(what string, from *Station, mark, frame []byte) {
	w.t.Helper()
	res, err := w.ref.Inject(from.Port, frame)
	if err != nil {
		w.t.Fatalf("%s: reference: %v", what, err)
	}
	s := sent{what: what, mark: mark, frame: frame, want: map[string]int{}, as: map[string][][]byte{}, paths: map[int][]string{}}
	for _, step := range res.Trail {
		if step.Event != flow.Steered && step.Event != flow.Delivered {
			continue
		}
		s.want[step.Name]++
		s.as[step.Name] = append(s.as[step.Name], step.Frame)
		if !sameButTag(step.Frame, frame) {
			w.t.Fatalf("%s: the reference changed the frame", what)
		}
		if fn := w.r.Funcs[functionOf(step.Name)]; fn != nil && fn.pump != nil {
			s.paths[step.Branch] = append(s.paths[step.Branch], step.Name)
		}
	}
	w.sent = append(w.sent, s)
	from.Send(w.t, frame)
	w.await(s) // what bridges learn depends on the order
	if x, ok := w.r.Switch.(Settler); ok && len(s.want) == 0 {
		w.emptyQueues()
		x.Settle()
	}
	news := false
	header := string(frame[:min(18, len(frame))])
	for _, key := range []string{header, "from " + header[6:]} { // bridges learn from the sender alone
		news = news || w.met[key] != from.Port
		w.met[key] = from.Port
	}
	if news {
		w.r.converge()
	}
}

// sameButTag: equal, a fabric tag apart.
func sameButTag(a, b []byte) bool {
	for _, x := range versions(a) {
		for _, y := range versions(b) {
			if bytes.Equal(x, y) {
				return true
			}
		}
	}
	return false
}

func versions(frame []byte) [][]byte {
	if flow.FabricTag(frame) == 0 {
		return [][]byte{frame}
	}
	return [][]byte{frame, flow.PopTag(frame)}
}

func functionOf(place string) string {
	parts := bytes.Split([]byte(place), []byte("/"))
	if len(parts) != 3 {
		return ""
	}
	return string(parts[1])
}

// places and their sockets.
func (w *twins) places() map[string]*Socket {
	all := map[string]*Socket{}
	for _, st := range w.r.Stations {
		all["endpoint/"+st.Name] = st.Socket
	}
	for _, fn := range w.r.Funcs {
		for side, s := range fn.Sockets {
			all["function/"+fn.Name+"/"+side] = s
		}
	}
	return all
}

// check sends a last frame from everywhere behind those sent, then looks that each came where the reference says, nowhere else,
// once, and unchanged.
func (w *twins) check() {
	w.t.Helper()
	for _, st := range w.r.Stations {
		w.say("last frame of "+st.Name, st, broadcast, st.MAC, nil, 0x9000)
	}
	places := w.places()
	for _, s := range w.sent {
		got := map[string]int{}
		for name, socket := range places {
			frames := socket.Frames(s.mark)
			if len(frames) > 0 {
				got[name] = len(frames)
			}
			for _, f := range frames {
				if len(s.as[name]) > 0 && !slices.ContainsFunc(s.as[name], func(want []byte) bool { return bytes.Equal(f, want) }) {
					w.t.Errorf("%s: at %s it is not as it should be:\nsent %x\ncame %x\nwant %x", s.what, name, s.frame, f, s.as[name])
				}
			}
		}
		if d := cmp.Diff(s.want, got); d != "" {
			w.t.Errorf("%s: where it came (-reference +switch):\n%s%x", s.what, d, s.frame)
		}
		w.mu.Lock()
		order := w.order[string(s.mark)]
		w.mu.Unlock()
		for _, path := range s.paths { // copies go their ways at the same time
			if !within(path, order) {
				w.t.Errorf("%s: met %v, want %v", s.what, order, path)
			}
		}
	}
	w.sent = nil
	for _, socket := range places {
		socket.Forget()
	}
}

// within: the places of path are in order, in this order.
func within(path, order []string) bool {
	for _, place := range order {
		if len(path) > 0 && path[0] == place {
			path = path[1:]
		}
	}
	return len(path) == 0
}

// await the arrivals of one frame that the reference tells of.
func (w *twins) await(s sent) {
	w.t.Helper()
	places := w.places()
	failed := w.t.Failed()
	defer func() {
		if w.t.Failed() && !failed {
			w.t.Logf("%s: %x\nwanted at %v\nrules %+v", s.what, s.frame, s.want, w.rules)
		}
	}()
	for name, n := range s.want {
		Until(w.t, s.what+" at "+name, func() bool { return len(places[name].Frames(s.mark)) >= n })
	}
}
