// Package compile turns rules into what the maps of the ebpf switch's programs hold. It does no I/O.
package compile

import (
	"iter"

	"weir.dev/weir/bpf"
	"weir.dev/weir/flow"
)

// The C's constants (bpf/weir.h).
const (
	PortNone, PortEndpoint, PortFunction, PortTap = 0, 1, 2, 3

	KindPass, KindDirect, KindClassify, KindDrain = 0, 1, 2, 3

	StageCached, stageOnward = 1, 2

	fieldInPort, fieldMACs, fieldVLAN, fieldType, fieldAddresses, fieldProto, fieldPorts = 1, 2, 4, 8, 16, 32, 64

	actionLearn, actionPop = 1, 2

	hasIP, hasPorts, unreadNetwork, unreadUpper = 1, 2, 4, 8

	maxSteps = 4096 // of a search
)

type (
	key       = bpf.SteerKey
	action    = bpf.SteerAction
	clone     = bpf.SteerClone
	stage     = bpf.SteerStage
	stages    = bpf.SteerStages
	tupleCopy = bpf.SteerTupleCopy
	listCopy  = bpf.SteerListCopy
)

// Limits are the sizes of the tables that an image must fit into.
type Limits struct {
	Keys  int // entries into which rules expand
	Masks int // shapes of rules
}

// Lists is the size of the table of lists of masks: a key may have one of its own. Tables have room for twice what a set of rules may have, since
// the former set is there until the new one is in force.
func (l Limits) Lists() int { return 2*l.Keys + 2*l.Masks }

// Image is what the maps say of one set of rules: one copy of everything that comes in two.
type Image struct {
	Stages map[uint16]stages // by port slot; 0: of an endpoint that no rule names
	Tuples map[key]tupleCopy
	Lists  map[uint32]listCopy
	Masks  map[uint16]key // never change while in use
}

// Onward: frames may pass the bridge by.
func (i *Image) Onward() bool { return i.Stages[0].Stage[flow.Ingress].Flags&stageOnward != 0 }

func NewImage() *Image {
	return &Image{Stages: map[uint16]stages{}, Tuples: map[key]tupleCopy{}, Lists: map[uint32]listCopy{}, Masks: map[uint16]key{}}
}

// Place is a port as the compiler sees it.
type Place struct {
	Slot   uint16
	Kind   uint8 // PortEndpoint ...
	Fabric bool
}

// Spans are the lists in use, by where they begin.
func (i *Image) Spans() iter.Seq2[uint32, uint16] {
	return func(yield func(uint32, uint16) bool) {
		for _, st := range i.Stages {
			for _, s := range st.Stage {
				if s.Kind == KindClassify && !yield(s.First, s.Count) {
					return
				}
			}
		}
		for _, t := range i.Tuples {
			if t.Action.Op == opSearch && !yield(t.Action.Rule, t.Action.Target) {
				return
			}
		}
	}
}

// Changes are the keys in which two images differ.
type Changes struct {
	Stages map[uint16]bool
	Lists  map[uint32]bool
	Tuples map[key]bool
	Masks  map[uint16]bool // new ones
}

// None: the images are the same.
func (c *Changes) None() bool { return len(c.Stages)+len(c.Lists)+len(c.Tuples) == 0 }

// Diff tells what leads from i to next. A port that drains is as one without rules.
func (i *Image) Diff(next *Image) Changes {
	c := Changes{Stages: map[uint16]bool{}, Lists: map[uint32]bool{}, Tuples: map[key]bool{}, Masks: map[uint16]bool{}}
	for slot, st := range next.Stages {
		was := i.Stages[slot]
		for k := range st.Stage {
			if was.Stage[k].Kind == KindDrain && st.Stage[k].Kind == KindPass {
				st.Stage[k] = was.Stage[k]
			}
		}
		next.Stages[slot] = st
		if was != st {
			c.Stages[slot] = true
		}
	}
	for slot := range i.Stages { // a port that went away keeps its stages until its slot is used again
		if _, kept := next.Stages[slot]; !kept {
			next.Stages[slot] = stages{}
			c.Stages[slot] = true
		}
	}
	differ(i.Lists, next.Lists, c.Lists)
	differ(i.Tuples, next.Tuples, c.Tuples)
	for id, m := range next.Masks {
		if was, ok := i.Masks[id]; !ok || was != m {
			c.Masks[id] = true
		}
	}
	return c
}

func differ[K, V comparable](a, b map[K]V, into map[K]bool) {
	for k, v := range b {
		if was, ok := a[k]; !ok || was != v {
			into[k] = true
		}
	}
	for k := range a {
		if _, ok := b[k]; !ok {
			into[k] = true
		}
	}
}
