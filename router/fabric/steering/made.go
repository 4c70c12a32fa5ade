package steering

import (
	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/switches"
)

// caught is an entry or host rule that catches frames, for those that both copy and steer.
type caught struct {
	b     *bundle
	s     *stream
	entry fabric.Entry // of an OpenFlow switch
	rule  api.HostRule // of a host
	match flow.Match   // of the rule, without ports
}

// ref is an entry that a bundle has put into a node.
type ref struct {
	node  int
	entry *switches.Counted
}

type ruleRef struct {
	node int
	rule *switches.CountedRule
}

type hookRef struct {
	node int
	port flow.Port
}

// made is all that a bundle has put somewhere.
type made struct {
	entries []ref
	rules   []ruleRef
	hooks   []hookRef
	catches []int // nodes
	pruned  []int // and returned
}
