package controllers

import (
	"fmt"
	"maps"
	"runtime"
	"time"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/control"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/steering"
)

// Calm is how a router sets its garbage collector, until end is called.
func Calm() (end func()) { return control.Calm() }

// Compiler is Weir's, with what it compiles.
type Compiler struct {
	in       fabric.Input
	compiler *steering.Compiler
	stations int
	made     int // policies so far
}

// NewCompiler is one for a network with policies of LeafSpine, which has so many stations.
func NewCompiler(in fabric.Input) *Compiler {
	return &Compiler{in: in, stations: len(in.Stations), made: len(in.Policies)}
}

// All compiles all policies from nothing, and returns how many entries they are at the switches.
func (c *Compiler) All() (took time.Duration, entries int, err error) {
	runtime.GC()
	begin := time.Now()
	c.compiler = steering.New(c.in)
	out := c.compiler.Output()
	took = time.Since(begin)
	for _, all := range out.Entries {
		for _, e := range all {
			entries++
			if e.Match.Unread != flow.ReadAll {
				entries += len(fabric.Headers(&e.Match)) - 1 // the switch gets one for each
			}
		}
	}
	return took, entries, refused(out)
}

// OneMore compiles one more policy among all, as the router does it: with the names of those that the API's watch reported. Then the policy is
// taken away again, which is not in the time. All comes first.
func (c *Compiler) OneMore() (took time.Duration, err error) {
	const name = "one-more"
	next := c.in
	next.Policies = maps.Clone(c.in.Policies)
	next.Policies[name] = Policy(len(c.in.Policies)+37*c.made, c.stations, c.made%len(c.in.Chains))
	next.Before, next.Edited = c.in.Policies, []string{name}
	c.made++
	begin := time.Now()
	out := c.compiler.Update(next)
	took = time.Since(begin)
	if err := out.Errors[name]; err != nil {
		return took, fmt.Errorf("policy %s: %w", name, err)
	}
	back := c.in
	back.Before, back.Edited = next.Policies, next.Edited
	c.compiler.Update(back)
	return took, nil
}
