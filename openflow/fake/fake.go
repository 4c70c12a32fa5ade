// Package fake is an OpenFlow 1.3 switch in memory, for tests: tables with OpenFlow's matching and priorities, bundles, ports
// that can be cabled together so that frames travel, and faults on demand. Its one goroutine per connection runs while it is served.
package fake

import (
	"time"

	"weir.dev/weir/openflow"
)

// Config of a switch; the zero value is a switch with datapath id 0, no ports and 4 unbounded tables.
type Config struct {
	DatapathID uint64
	Ports      []openflow.Port
	Tables     int              // 0: 4
	TableSize  uint32           // entries of each table, more are refused with TABLE_FULL; 0 unbounded
	NoBundles  bool             // bundle messages are refused as an unknown experimenter
	Versions   uint32           // bit n: wire version n; 0: 1.3 only. Without 1.3 it says hello and no more.
	Delay      time.Duration    // before each answer
	NoMask     []openflow.Field // matched as a whole only: masks are refused
	TellFields bool             // table features list the fields that are matched
}
