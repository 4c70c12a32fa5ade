package openflow

// BundleFlags of ONF EXT-230.
type BundleFlags uint16

const (
	BundleAtomic  BundleFlags = 1 << 0
	BundleOrdered BundleFlags = 1 << 1
)

// BundleKind is what a BundleControl asks or answers.
type BundleKind uint16

const (
	BundleOpenRequest BundleKind = iota
	BundleOpenReply
	BundleCloseRequest
	BundleCloseReply
	BundleCommitRequest
	BundleCommitReply
	BundleDiscardRequest
	BundleDiscardReply
)

// BundleControl opens, closes, commits or discards a bundle (EXT-230).
type BundleControl struct {
	ID    uint32
	Kind  BundleKind
	Flags BundleFlags
}

// BundleAdd puts a message into a bundle (EXT-230); it carries the same xid.
type BundleAdd struct {
	ID      uint32
	Flags   BundleFlags
	Message Message
}
