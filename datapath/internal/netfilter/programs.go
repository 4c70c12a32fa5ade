package netfilter

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Programs are the BPF programs at netfilter's hooks (Linux 6.4). The kernel does not say in which namespace: those of all count.
type Programs struct {
	mu    sync.Mutex
	last  link.ID // the latest link that was looked at: later ones have higher numbers
	found map[link.ID]link.NetfilterInfo
}

// seenBy names one that sees what is shown to these families.
func (f *Programs) seenBy(calls map[nftables.TableFamily]bool) (string, error) {
	if len(calls) == 0 {
		return "", nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(); err != nil {
		return "", err
	}
	for id, n := range f.found {
		if !calls[nftables.TableFamily(n.ProtocolFamily)] || local(nftables.ChainHook(n.Hook)) {
			continue
		}
		l, err := link.NewFromID(id)
		if errors.Is(err, fs.ErrNotExist) {
			delete(f.found, id)
			continue
		}
		if err != nil {
			return "", fmt.Errorf("ask for BPF link %d: %w", id, err)
		}
		if err := l.Close(); err != nil {
			return "", fmt.Errorf("close BPF link %d: %w", id, err)
		}
		return fmt.Sprintf("a BPF program at a hook of netfilter (link %d)", id), nil
	}
	return "", nil
}

// look finds those that are new since the last time.
func (f *Programs) look() error {
	it := link.Iterator{ID: f.last}
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err != nil {
			return fmt.Errorf("ask for BPF link %d: %w", it.ID, err)
		}
		if n := info.Netfilter(); n != nil {
			if f.found == nil {
				f.found = map[link.ID]link.NetfilterInfo{}
			}
			f.found[it.ID] = *n
		}
		f.last = it.ID
	}
	err := it.Err()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINVAL) { // one is being made: later; a kernel before 5.8, which has none of these
		return nil
	}
	if err != nil {
		return fmt.Errorf("list BPF links: %w", err)
	}
	return nil
}

// balances: the text of /proc/net/ip_vs, which begins with three lines of headings, lists a service of IPVS.
func balances(text string) bool { return strings.Count(strings.TrimSpace(text), "\n") >= 3 }

// ebtablesBuiltIn: the kernel has tables of ebtables that are no modules, as far as it says of what it is made. Whether they have rules only asking for
// a table would tell, which makes it.
var ebtablesBuiltIn = sync.OnceValues(func() (bool, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false, fmt.Errorf("ask for the kernel's release: %w", err)
	}
	return madeWithEbtables(filepath.Join("/lib/modules", unix.ByteSliceToString(u.Release[:]), "modules.builtin"), "/proc/config.gz")
})

func madeWithEbtables(builtin, config string) (bool, error) {
	for path, words := range map[string][]string{
		builtin: {"/ebtable_filter.ko", "/ebtable_nat.ko", "/ebtable_broute.ko"},
		config:  {"CONFIG_BRIDGE_EBT_T_FILTER=y", "CONFIG_BRIDGE_EBT_T_NAT=y", "CONFIG_BRIDGE_EBT_BROUTE=y"},
	} {
		has, err := mentions(path, words)
		if has || err != nil {
			return has, err
		}
	}
	return false, nil
}

// mentions: a line of a file, if it is there, ends with one of some words.
func mentions(path string, words []string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	var text io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if text, err = gzip.NewReader(f); err != nil {
			return false, fmt.Errorf("%s: %w", path, err)
		}
	}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		for _, w := range words {
			if strings.HasSuffix(lines.Text(), w) {
				return true, nil
			}
		}
	}
	return false, lines.Err()
}
