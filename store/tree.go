package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// tree reads etcd's database (bbolt's file format, version 2) page by page, by its own means: bbolt maps the file, believes what is in it, and etcd has it do
// so on goroutines of its own, where a damaged page would end the process. A page has no checksum there, but its elements follow one another without a gap,
// and so do keys.
type tree struct {
	f        *os.File
	pageSize int64
	pages    uint64 // the file's, as the meta page says
	seen     map[uint64]bool
	prefix   string // of our keys
	index    uint64 // the last entry of etcd's log that is in it
	last     int64  // revision
}

const (
	pageHeader   = 16
	elementSize  = 16
	branchPage   = 1
	leafPage     = 2
	bucketFlag   = 1
	bucketHeader = 16
	metaSize     = 64
	metaMagic    = 0xED0CDAED
	metaVersion  = 2
	maxOverflow  = 1 << 20 // pages that one page goes on over
	maxDepth     = 32
)

// errTree is of a page that is not what bbolt writes.
var errTree = errors.New("bad page")

// checkTree reads the whole tree: its pages, all that etcd keeps of our values, and their checksums. nil: there is none yet.
func checkTree(path, prefix string) (*tree, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // is filled from the log
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() == 0 {
		return nil, err
	}
	t := &tree{f: f, seen: map[uint64]bool{}, prefix: prefix}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// check walks from the newer of the two meta pages that are whole, as bbolt does.
func (t *tree) check() error {
	root, err := t.meta()
	if err != nil {
		return err
	}
	return t.walk(root, nil, nil, 0, func(name, header []byte, flags uint32) error {
		if flags&bucketFlag == 0 || len(header) < bucketHeader {
			return fmt.Errorf("%w: %q is no bucket", errTree, name)
		}
		each := func([]byte, []byte, uint32) error { return nil }
		switch string(name) {
		case "key":
			each = t.revision
		case "meta":
			each = t.consistent
		}
		if at := binary.LittleEndian.Uint64(header); at != 0 {
			return t.walk(at, nil, nil, 1, each)
		}
		return t.page(header[bucketHeader:], nil, nil, 1, each) // a small bucket is within its parent
	})
}

// meta returns the page of the root bucket.
func (t *tree) meta() (root uint64, err error) {
	best := uint64(0)
	for _, size := range []int64{0, int64(os.Getpagesize())} { // where the second one is tells the first one's page size, else the machine's
		if size != 0 && t.pageSize != 0 {
			size = t.pageSize
		}
		b := make([]byte, metaSize)
		if _, err := t.f.ReadAt(b, size+pageHeader); err != nil {
			continue
		}
		h := fnv.New64a()
		_, _ = h.Write(b[:metaSize-8])
		if u32(b, 0) != metaMagic || u32(b, 4) != metaVersion || h.Sum64() != u64(b, 56) {
			continue
		}
		if txid := u64(b, 48); best == 0 || txid > best {
			best, root = txid, u64(b, 16)
			t.pageSize, t.pages = int64(u32(b, 8)), u64(b, 40)
		}
	}
	if best == 0 || t.pageSize < 512 || t.pageSize > 1<<16 {
		return 0, errors.New("both of its first pages are damaged")
	}
	return root, nil
}

// element is what is done with each key of a bucket.
type element func(key, value []byte, flags uint32) error

// walk reads the page with a number and all below it. Its keys are within [low, high).
func (t *tree) walk(id uint64, low, high []byte, depth int, each element) error {
	if id < 2 || id >= t.pages || t.seen[id] || depth > maxDepth {
		return fmt.Errorf("page %d: %w: it cannot be there", id, errTree)
	}
	t.seen[id] = true
	head := make([]byte, pageHeader)
	if _, err := t.f.ReadAt(head, int64(id)*t.pageSize); err != nil {
		return fmt.Errorf("page %d: it was cut short, or its disk is bad: %w", id, err)
	}
	more := u32(head, 12)
	if u64(head, 0) != id || more > maxOverflow || id+uint64(more) >= t.pages {
		return fmt.Errorf("page %d: %w: wrong header", id, errTree)
	}
	b := make([]byte, (int64(more)+1)*t.pageSize)
	if _, err := t.f.ReadAt(b, int64(id)*t.pageSize); err != nil {
		return fmt.Errorf("page %d: it was cut short, or its disk is bad: %w", id, err)
	}
	if err := t.page(b, low, high, depth, each); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// page reads the elements of a page.
func (t *tree) page(b, low, high []byte, depth int, each element) error {
	if len(b) < pageHeader {
		return fmt.Errorf("%w: too short", errTree)
	}
	flags, count := binary.LittleEndian.Uint16(b[8:]), int(binary.LittleEndian.Uint16(b[10:]))
	if flags != branchPage && flags != leafPage || flags == branchPage && count == 0 {
		return fmt.Errorf("%w: flags %#x, %d elements", errTree, flags, count)
	}
	at := pageHeader + count*elementSize // of the next element's key
	if at > len(b) {
		return fmt.Errorf("%w: %d elements", errTree, count)
	}
	var key []byte
	var child uint64
	for n := range count {
		e := b[pageHeader+n*elementSize:]
		begin := pageHeader + n*elementSize
		var pos, size, valueSize, kind uint32
		var next uint64
		if flags == branchPage {
			pos, size, next = u32(e, 0), u32(e, 4), u64(e, 8)
		} else {
			kind, pos, size, valueSize = u32(e, 0), u32(e, 4), u32(e, 8), u32(e, 12)
		}
		end := int64(at) + int64(size) + int64(valueSize)
		if begin+int(pos) != at || end > int64(len(b)) || kind > bucketFlag {
			return fmt.Errorf("%w: element %d", errTree, n)
		}
		last := key
		key = b[at : at+int(size)]
		value := b[at+int(size) : end]
		if n > 0 && bytes.Compare(last, key) >= 0 || n == 0 && low != nil && bytes.Compare(key, low) < 0 || high != nil && bytes.Compare(key, high) >= 0 {
			return fmt.Errorf("%w: element %d is out of order", errTree, n)
		}
		at = int(end)
		switch {
		case flags == leafPage:
			if err := each(key, value, kind); err != nil {
				return err
			}
		case n > 0:
			if err := t.walk(child, last, key, depth+1, each); err != nil {
				return err
			}
		}
		child = next
	}
	if flags == branchPage {
		return t.walk(child, key, high, depth+1, each)
	}
	return nil
}

const (
	revisionLen = 17 // main revision, '_', sub revision
	removed     = 't'
)

// revision checks one change of a key as etcd keeps it.
func (t *tree) revision(at, value []byte, flags uint32) error {
	n := len(at)
	if flags != 0 || n < revisionLen || n > revisionLen+1 || at[8] != '_' || n > revisionLen && at[revisionLen] != removed {
		return fmt.Errorf("%w: a revision's number is wrong", errTree)
	}
	main := int64(binary.BigEndian.Uint64(at))
	t.last = max(t.last, main)
	var kv mvccpb.KeyValue
	if err := proto.Unmarshal(value, &kv); err != nil || len(kv.ProtoReflect().GetUnknown()) > 0 {
		return fmt.Errorf("revision %d is damaged", main)
	}
	key, ours := strings.CutPrefix(string(kv.Key), t.prefix)
	if n > revisionLen {
		return nil
	}
	if kv.ModRevision != main || kv.CreateRevision > main {
		return fmt.Errorf("revision %d of %s is damaged", main, key)
	}
	if ours {
		if _, err := unseal(key, kv.Value); err != nil {
			return fmt.Errorf("revision %d: %w", main, err)
		}
	}
	return nil
}

// consistent reads how far etcd had written its log into the tree.
func (t *tree) consistent(key, value []byte, _ uint32) error {
	if string(key) != "consistent_index" {
		return nil
	}
	if len(value) != 8 {
		return fmt.Errorf("%w: the index of the log", errTree)
	}
	t.index = binary.BigEndian.Uint64(value)
	return nil
}

func u32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
func u64(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
