// Package ethtool reads and changes features of network interfaces and reads their queues, by the ioctl SIOCETHTOOL. Every call acts in
// the network namespace of the calling thread.
package ethtool

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From <linux/ethtool.h>.
const (
	setOfFeatures = 4  // ETH_SS_FEATURES
	stringLen     = 32 // ETH_GSTRING_LEN
	maxFeatures   = 256
)

// Feature is one that this kernel knows.
type Feature struct {
	Changeable bool // by the interface's driver
	Active     bool
}

// Queues are those in use. A combined one counts for both directions.
type Queues struct{ RX, TX uint32 }

type featureWord struct{ available, _, active, neverChanged uint32 }

// Features of an interface by name.
func Features(link string) (map[string]Feature, error) {
	names, err := featureNames(link)
	if err != nil {
		return nil, err
	}
	have := struct {
		cmd, size uint32
		words     [maxFeatures / 32]featureWord
	}{cmd: unix.ETHTOOL_GFEATURES, size: words(names)}
	if _, err := call(link, &have); err != nil {
		return nil, fmt.Errorf("features of %s: %w", link, err)
	}
	out := make(map[string]Feature, len(names))
	for i, name := range names {
		w, bit := have.words[i/32], uint32(1)<<(i%32)
		out[name] = Feature{Changeable: w.available&^w.neverChanged&bit != 0, Active: w.active&bit != 0}
	}
	return out, nil
}

// Change switches features on or off. It is an error if the interface has one of them not as wanted afterwards.
func Change(link string, want map[string]bool) error {
	names, err := featureNames(link)
	if err != nil {
		return err
	}
	type word struct{ valid, requested uint32 }
	change := struct {
		cmd, size uint32
		words     [maxFeatures / 32]word
	}{cmd: unix.ETHTOOL_SFEATURES, size: words(names)}
	known := 0
	for i, name := range names {
		on, ok := want[name]
		if !ok {
			continue
		}
		known++
		w, bit := &change.words[i/32], uint32(1)<<(i%32)
		w.valid |= bit
		if on {
			w.requested |= bit
		}
	}
	if known < len(want) {
		return fmt.Errorf("features of %s: this kernel does not know all of %v", link, want)
	}
	refused, err := call(link, &change)
	if err != nil {
		return fmt.Errorf("change features of %s: %w", link, err)
	}
	if refused == 0 {
		return nil
	}
	have, err := Features(link)
	if err != nil {
		return err
	}
	for name, on := range want {
		if have[name].Active != on {
			return fmt.Errorf("feature %s of %s stays %t", name, link, !on)
		}
	}
	return nil
}

// QueuesOf an interface.
func QueuesOf(link string) (Queues, error) {
	c := struct {
		cmd, _, _, _, _         uint32 // the command and what is the most of each
		rx, tx, other, combined uint32
	}{cmd: unix.ETHTOOL_GCHANNELS}
	if _, err := call(link, &c); err != nil {
		return Queues{}, fmt.Errorf("queues of %s: %w", link, err)
	}
	return Queues{RX: max(c.rx, c.combined), TX: max(c.tx, c.combined)}, nil
}

// words of 32 bits that features of these names take.
func words(names []string) uint32 { return uint32((len(names) + 31) / 32) }

// featureNames are those that this kernel knows, by bit. Some are empty.
func featureNames(link string) ([]string, error) {
	info := struct {
		cmd, _   uint32
		mask     uint64
		count, _ uint32
	}{cmd: unix.ETHTOOL_GSSET_INFO, mask: 1 << setOfFeatures}
	if _, err := call(link, &info); err != nil {
		return nil, fmt.Errorf("count the features of %s: %w", link, err)
	}
	if info.mask == 0 || info.count > maxFeatures {
		return nil, fmt.Errorf("the kernel names %d features of %s", info.count, link)
	}
	set := struct {
		cmd, set, count uint32
		names           [maxFeatures][stringLen]byte
	}{cmd: unix.ETHTOOL_GSTRINGS, set: setOfFeatures, count: info.count}
	if _, err := call(link, &set); err != nil {
		return nil, fmt.Errorf("names of the features of %s: %w", link, err)
	}
	names := make([]string, info.count)
	for i := range names {
		names[i] = unix.ByteSliceToString(set.names[i][:])
	}
	return names, nil
}

// call asks the kernel with a structure of <linux/ethtool.h>, which takes the answer, too. It returns the call's result: bits for SFEATURES,
// otherwise 0. The structure's address is kept as a pointer until the system call itself, so that it is never lost when the stack moves.
func call[T any](link string, data *T) (result uintptr, err error) {
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the rest of struct ifreq's union
	}{data: unsafe.Pointer(data)}
	if len(link) >= len(request.name) {
		return 0, unix.ENODEV
	}
	copy(request.name[:], link)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return 0, errno
	}
	return result, nil
}
