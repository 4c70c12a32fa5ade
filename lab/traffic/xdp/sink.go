package xdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/netns"
)

// MaxFrames of one run: the sink remembers each of them.
const MaxFrames = 1 << 26

// Place is an interface in a namespace (a name under /run/netns or a path).
type Place struct{ Space, Link string }

// Sink counts the frames of a run where they arrive and takes them out. Any generator can send what it is armed with: see Frames.
type Sink struct {
	maps  trafficObjects
	hook  link.Link
	spec  traffic.Spec
	plan  trafficPlan
	slots [][]byte
	at    []int // where the fields of a slot are
}

// NewSink attaches a sink: by an XDP program if frames, else at tc ingress (tcx, kernel 6.6).
func NewSink(p Place, frames bool) (*Sink, error) {
	s := &Sink{}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("load the sink: %w", err)
	}
	err := netns.Do(p.Space, func() error {
		ifi, err := net.InterfaceByName(p.Link)
		if err != nil {
			return err
		}
		if frames {
			s.hook, err = link.AttachXDP(link.XDPOptions{Program: s.maps.SinkFrames, Interface: ifi.Index, Flags: link.XDPDriverMode})
		} else {
			s.hook, err = link.AttachTCX(link.TCXOptions{Program: s.maps.SinkSkbs, Interface: ifi.Index, Attach: ebpf.AttachTCXIngress})
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sink at %s: %w", p.Link, err), s.Close())
	}
	return s, nil
}

func (s *Sink) load() error {
	spec, err := loadTraffic()
	if err != nil {
		return err
	}
	n, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	spec.Maps["elsewhere"].MaxEntries = uint32(n)
	return spec.LoadAndAssign(&s.maps, nil)
}

// Close detaches it.
func (s *Sink) Close() error {
	var err error
	if s.hook != nil {
		err = s.hook.Close()
	}
	return errors.Join(err, s.maps.Close())
}

// Arm prepares a run: it builds one frame for each flow and size, and clears the counts.
func (s *Sink) Arm(spec traffic.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	slots := len(spec.Flows) * len(spec.Sizes)
	if slots > MaxSlots {
		return fmt.Errorf("%d flows of %d sizes: want at most %d of both together", len(spec.Flows), len(spec.Sizes), MaxSlots)
	}
	limit := uint64(MaxFrames)
	if spec.Rate > 0 {
		want := math.Floor(spec.Rate * spec.Duration.Seconds())
		if want > MaxFrames || want < 1 {
			return fmt.Errorf("%v frames a second for %s are %.0f: want 1 to %d in one run", spec.Rate, spec.Duration, want, MaxFrames)
		}
		limit = uint64(want)
	}
	s.spec, s.slots, s.at = spec, nil, nil
	s.plan.Run++
	longest := 0
	for i := range slots {
		flow := i % len(spec.Flows)
		frame, payload := build(spec.Flows[flow], spec.Sizes[i/len(spec.Flows)], s.plan.Run)
		v := trafficSlot{Length: uint32(len(frame)), Payload: uint32(payload), Flow: uint32(flow)}
		copy(v.Data[:], frame)
		if err := s.maps.Slots.Put(uint32(i), &v); err != nil {
			return fmt.Errorf("write slot %d: %w", i, err)
		}
		s.slots, s.at = append(s.slots, frame), append(s.at, payload)
		longest = max(longest, len(frame))
	}
	port := spec.Flows[0].DstPort
	s.plan.Rate, s.plan.Limit, s.plan.Slots = uint64(spec.Rate), limit, uint32(slots)
	s.plan.Room, s.plan.Port = uint32(longest), port<<8|port>>8
	s.plan.Start, s.plan.Stop, s.plan.Strict = math.MaxUint64, 0, 0
	if spec.Strict {
		s.plan.Strict = 1
	}
	return errors.Join(s.putPlan(), s.clear())
}

// Limit is how many frames the run has at most.
func (s *Sink) Limit() uint64 { return s.plan.Limit }

// Frame writes the frame of a sequence number, with its time of departure on CLOCK_MONOTONIC, into b and returns its length. It is for
// generators in user space; b needs 1,514 bytes.
func (s *Sink) Frame(b []byte, seq uint32, now time.Duration) int {
	i := int(seq) % len(s.slots)
	n := copy(b, s.slots[i])
	f := b[s.at[i]+2:]
	binary.BigEndian.PutUint32(f, seq)
	binary.BigEndian.PutUint16(f[4:], uint16(now>>32))
	binary.BigEndian.PutUint32(f[6:], uint32(now))
	binary.BigEndian.PutUint16(f[10:], ^fold(sum(f[:10])))
	return n
}

func (s *Sink) putPlan() error { return s.maps.Config.Put(uint32(0), &s.plan) }

func (s *Sink) clear() error {
	var errs []error
	errs = append(errs, s.maps.Counted.Put(uint32(0), make([]trafficArrived, ebpf.MustPossibleCPU())))
	for _, m := range []*ebpf.Map{s.maps.Highest, s.maps.Latency} {
		_, err := m.BatchUpdate(indexes(m), make([]uint64, m.MaxEntries()), nil)
		errs = append(errs, err)
	}
	frames := s.plan.Limit
	if s.spec.Rate == 0 { // it leaves no departures
		return errors.Join(append(errs, zero(s.maps.Seen, frames))...)
	}
	return errors.Join(append(errs, zero(s.maps.Seen, frames), zero(s.maps.Departures, frames))...)
}

// zero the bits of so many frames.
func zero(m *ebpf.Map, frames uint64) error {
	memory, err := m.Memory()
	if err != nil {
		return err
	}
	none := make([]byte, 1<<20)
	for at, end := int64(0), bytesOf(frames); at < end; at += int64(len(none)) {
		if _, err := memory.WriteAt(none[:min(int64(len(none)), end-at)], at); err != nil {
			return err
		}
	}
	return nil
}

// bytesOf so many frames, a bit each, in whole words.
func bytesOf(frames uint64) int64 { return int64((frames + 63) / 64 * 8) }

// words are the bits of the frames from one to another: those of the word that the first is in, and the words behind.
func words(m *ebpf.Map, first, end uint64) ([]uint64, error) {
	memory, err := m.Memory()
	if err != nil {
		return nil, err
	}
	at := int64(first / 64 * 8)
	raw := make([]byte, max(bytesOf(end)-at, 0))
	if _, err := memory.ReadAt(raw, at); err != nil {
		return nil, err
	}
	out := make([]uint64, len(raw)/8)
	for i := range out {
		out[i] = binary.NativeEndian.Uint64(raw[8*i:])
	}
	return out, nil
}

// Missing counts what is missing of a paced run that began at a time, of the frames that were due in the spans. departed gives a bit for each frame that
// left, of those from one to another: of the word that the first is in, and of the words behind.
func (s *Sink) Missing(began time.Duration, departed func(first, end uint64) ([]uint64, error), spans []traffic.Span) (out traffic.Stalled, err error) {
	if s.plan.Rate == 0 {
		return out, errors.New("a run without a rate: no frame was due at a time")
	}
	if len(spans) == 0 {
		return out, nil
	}
	for _, span := range spans {
		first, end := s.dueSince(span.Begin-began), s.dueSince(span.End-began)
		arrived, err := words(s.maps.Seen, first, end)
		if err != nil {
			return out, err
		}
		left, err := departed(first, end)
		if err != nil {
			return out, err
		}
		n := missing(first, end, left, arrived)
		out.Due, out.Lost, out.Skipped = out.Due+n.Due, out.Lost+n.Lost, out.Skipped+n.Skipped
	}
	return out, nil
}

// missing of the frames from one to another, by words of bits that begin with the word of the first. A loop over frames would take milliseconds of a CPU
// that the path needs.
func missing(first, end uint64, left, arrived []uint64) (out traffic.Stalled) {
	for i := range left {
		due := ^uint64(0)
		if i == 0 {
			due <<= first % 64
		}
		if i == len(left)-1 && end%64 != 0 {
			due &= 1<<(end%64) - 1
		}
		out.Due += uint64(bits.OnesCount64(due))
		out.Skipped += uint64(bits.OnesCount64(due &^ left[i]))
		out.Lost += uint64(bits.OnesCount64(due & left[i] &^ arrived[i]))
	}
	return out
}

// dueSince is the first frame that is due at a time of the run or later.
func (s *Sink) dueSince(at time.Duration) uint64 {
	return uint64(min(max(math.Ceil(at.Seconds()*float64(s.plan.Rate)), 0), float64(s.plan.Limit)))
}

// indexes are the keys of an array.
func indexes(m *ebpf.Map) []uint32 {
	out := make([]uint32, m.MaxEntries())
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// Drain waits until the sink has been quiet.
func (s *Sink) Drain(ctx context.Context, quiet, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last, _, err := s.arrived()
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("frames still arrive %s after the end", limit)
		case <-time.After(quiet):
		}
		now, _, err := s.arrived()
		if err != nil {
			return err
		}
		if now == last {
			return nil
		}
		last = now
	}
}

// Foreign is how many frames to the run's port have arrived that are not of the run: those of a program that knows nothing of the fields.
func (s *Sink) Foreign() (uint64, error) {
	in, _, err := s.arrived()
	return in.Foreign, err
}

// arrived is what all CPUs have counted, and on which of them it was.
func (s *Sink) arrived() (sum trafficArrived, cpus uint64, err error) {
	var each []trafficArrived
	if err := s.maps.Counted.Lookup(uint32(0), &each); err != nil {
		return sum, 0, fmt.Errorf("read the sink: %w", err)
	}
	for i, c := range each {
		sum.Frames += c.Frames
		sum.Bytes += c.Bytes
		sum.Unique += c.Unique
		sum.Duplicated += c.Duplicated
		sum.Reordered += c.Reordered
		sum.Corrupted += c.Corrupted
		sum.Foreign += c.Foreign
		sum.Early += c.Early
		sum.Sum += c.Sum
		sum.Least, sum.Most = least(sum.Least, c.Least), max(sum.Most, c.Most)
		sum.First, sum.Last = least(sum.First, c.First), max(sum.Last, c.Last)
		if c.Frames > 0 {
			cpus |= 1 << (i % 64)
		}
	}
	return sum, cpus, nil
}

// least of two figures of which 0 is none.
func least(a, b uint64) uint64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Read gives the counts of a run of which sent frames left in the time took.
func (s *Sink) Read(sent uint64, took time.Duration) (traffic.Count, error) {
	in, cpus, err := s.arrived()
	if err != nil {
		return traffic.Count{}, err
	}
	c := traffic.Count{
		Intended: sent, Sent: sent, Received: in.Frames, Unique: in.Unique, Lost: sent - min(in.Unique, sent),
		Duplicated: in.Duplicated, Reordered: in.Reordered, Corrupted: in.Corrupted, Foreign: in.Foreign, Early: in.Early, Bytes: in.Bytes,
		Took: took, Span: time.Duration(in.Last - in.First), CPUs: cpus,
	}
	if s.spec.Rate > 0 { // what the generator was too late for or never came to is skipped
		c.Intended = s.plan.Limit
		c.Skipped = c.Intended - c.Sent
	}
	l := traffic.Latency{Buckets: make([]uint64, s.maps.Latency.MaxEntries()), Sum: time.Duration(in.Sum), Min: time.Duration(in.Least), Max: time.Duration(in.Most)}
	var at ebpf.MapBatchCursor
	n, err := s.maps.Latency.BatchLookup(&at, make([]uint32, len(l.Buckets)), l.Buckets, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) || n != len(l.Buckets) {
		return c, fmt.Errorf("read the latencies: %d of %d: %w", n, len(l.Buckets), err)
	}
	for _, frames := range l.Buckets {
		l.Count += frames
	}
	c.Latency = l
	return c, nil
}
