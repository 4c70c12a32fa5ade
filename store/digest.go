package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// A digest says what an embedded store held at a revision: how many keys, and the sum of their hashes. It is kept in a file beside etcd's, so that the next
// start notices what no checksum of a single value does: a value that is missing, one that is there although it was removed, a log that ends too early.
type digest struct {
	Revision int64
	Index    uint64 // of the entry of etcd's log that the database had reached at least
	Count    uint64
	Sum      [2]uint64
	slot     int64 // where it was read
}

const (
	digestFile  = "digest"
	digestMagic = "weirdig1"
	slotSize    = 64 // two slots are written in turns: one is whole whenever the machine stops
)

// keeper keeps the digest of a running store.
type keeper struct {
	file   *os.File
	slot   int64 // the one to write next
	prefix string
	now    digest
	hashes map[string][2]uint64
	stream mvcc.WatchStream
}

func (d digest) encode() []byte {
	b := append(make([]byte, 0, slotSize), digestMagic...)
	for _, v := range []uint64{uint64(d.Revision), d.Index, d.Count, d.Sum[0], d.Sum[1]} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return b[:slotSize]
}

func decodeDigest(b []byte) (d digest, ok bool) {
	if len(b) != slotSize || string(b[:8]) != digestMagic || crc32.Checksum(b[:48], castagnoli) != binary.BigEndian.Uint32(b[48:]) {
		return d, false
	}
	v := func(n int) uint64 { return binary.BigEndian.Uint64(b[8+8*n:]) }
	return digest{Revision: int64(v(0)), Index: v(1), Count: v(2), Sum: [2]uint64{v(3), v(4)}}, true
}

// readDigest returns the newest digest that is whole; nil: there is none, as in a store of a former version.
func readDigest(dir string) (best *digest, err error) {
	b, err := os.ReadFile(filepath.Join(dir, digestFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("digest of the store: %w", err)
	}
	for n := range min(2, len(b)/slotSize) {
		if d, ok := decodeDigest(b[n*slotSize : (n+1)*slotSize]); ok && (best == nil || d.Revision >= best.Revision) {
			d.slot = int64(n)
			best = &d
		}
	}
	return best, nil
}

// hash is of one value at the revision of its last change.
func hash(key, value []byte, revision int64) [2]uint64 {
	h := sha256.New()
	var n [16]byte
	binary.BigEndian.PutUint64(n[:], uint64(revision))
	binary.BigEndian.PutUint64(n[8:], uint64(len(key)))
	_, _ = h.Write(n[:])
	_, _ = h.Write(key)
	_, _ = h.Write(value)
	sum := h.Sum(nil)
	return [2]uint64{binary.BigEndian.Uint64(sum), binary.BigEndian.Uint64(sum[8:])}
}

// keep begins a keeper: it compares what the store holds with the last digest, and follows it from here on.
func (e *embedded) keep(ctx context.Context, prefix string, last *digest) error {
	kv := e.server.Server.KV()
	k := &keeper{prefix: prefix}
	if last != nil {
		k.slot = 1 - last.slot
		if err := e.compare(ctx, kv, prefix, *last); err != nil {
			return err
		}
	}
	if err := k.load(ctx, kv, 0); err != nil {
		return err
	}
	var err error
	if k.file, err = os.OpenFile(filepath.Join(e.dir, digestFile), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	k.stream = e.server.Server.Watchable().NewWatchStream()
	if _, err := k.stream.Watch(ctx, clientv3.AutoWatchID, []byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix)), k.now.Revision+1); err != nil {
		return errors.Join(err, k.file.Close())
	}
	index, _ := schema.ReadConsistentIndex(e.server.Server.Backend().ReadTx())
	_ = k.write(index) // see commit
	e.keeper = k
	return nil
}

// compare tells whether the store held at the digest's revision what the digest says.
func (e *embedded) compare(ctx context.Context, kv mvcc.KV, prefix string, last digest) error {
	if current := kv.Rev(); last.Revision > current {
		return fmt.Errorf("%w: %s and the log beside it end at revision %d, and revision %d was acknowledged", errLost, e.tree(), current, last.Revision)
	}
	was := &keeper{prefix: prefix}
	err := was.load(ctx, kv, last.Revision)
	switch {
	case errors.Is(err, mvcc.ErrCompacted):
		return nil // it was compacted and killed before the digest was written
	case err != nil:
		return err
	case was.now.Count != last.Count || was.now.Sum != last.Sum:
		return fmt.Errorf("%w: %s does not hold what was written up to revision %d (it has %d keys, %d were written)", errLost, e.tree(), last.Revision,
			was.now.Count, last.Count)
	}
	return nil
}

var errLost = errors.New("data is missing or damaged")

// load reads all keys as they are at a revision; 0 is now. It checks their values.
func (k *keeper) load(ctx context.Context, kv mvcc.KV, revision int64) error {
	k.hashes = map[string][2]uint64{}
	if revision == 0 {
		revision = kv.Rev()
	}
	k.now.Revision = revision
	end := []byte(clientv3.GetPrefixRangeEnd(k.prefix))
	for from := []byte(k.prefix); ; {
		const page = 1000
		r, err := kv.Range(ctx, from, end, mvcc.RangeOptions{Rev: revision, Limit: page})
		if err != nil {
			return err
		}
		for _, i := range r.KVs {
			key := strings.TrimPrefix(string(i.Key), k.prefix)
			if strings.HasPrefix(key, LeasePrefix) {
				continue // leaders come and go with their leases
			}
			if _, err := unseal(key, i.Value); err != nil {
				return err
			}
			k.add(string(i.Key), hash(i.Key, i.Value, i.ModRevision))
		}
		if len(r.KVs) < page {
			return nil
		}
		from = append(r.KVs[len(r.KVs)-1].Key, 0)
	}
}

func (k *keeper) add(key string, h [2]uint64) {
	k.drop(key)
	k.hashes[key] = h
	k.now.Count++
	k.now.Sum[0] += h[0]
	k.now.Sum[1] += h[1]
}

func (k *keeper) drop(key string) {
	h, ok := k.hashes[key]
	if !ok {
		return
	}
	delete(k.hashes, key)
	k.now.Count--
	k.now.Sum[0] -= h[0]
	k.now.Sum[1] -= h[1]
}

// follow takes in what has changed so far.
func (k *keeper) follow() {
	for {
		select {
		case r := <-k.stream.Chan():
			for _, e := range r.Events {
				k.now.Revision = max(k.now.Revision, e.Kv.ModRevision)
				switch key := string(e.Kv.Key); {
				case strings.HasPrefix(key, k.prefix+LeasePrefix):
				case len(e.Kv.Value) == 0:
					k.drop(key)
				default:
					k.add(key, hash(e.Kv.Key, e.Kv.Value, e.Kv.ModRevision))
				}
			}
		default:
			return
		}
	}
}

// write writes the digest into the older slot. A disk that refuses leaves the former one, which is true, too.
func (k *keeper) write(index uint64) error {
	k.now.Index = index
	if _, err := k.file.WriteAt(k.now.encode(), k.slot*slotSize); err != nil {
		return err
	}
	k.slot = 1 - k.slot
	return nil
}
