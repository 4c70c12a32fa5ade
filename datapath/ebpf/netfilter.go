package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
)

// watchEvery is how soon the switch notices that someone's rules have begun to look at bridged frames.
const watchEvery = time.Second

const inetIngress = 5 // uapi netfilter.h: NF_INET_INGRESS

// seenBy names something of netfilter's in the thread's namespace that sees bridged frames, or frames as they enter and leave a link; "" if there is
// nothing. Of what frames that pass the bridge by would miss nothing is left then.
func seenBy() (string, error) {
	calls := map[nftables.TableFamily]string{}
	for family, name := range map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "iptables", nftables.TableFamilyIPv6: "ip6tables", nftables.TableFamilyARP: "arptables"} {
		on, err := inFile("/proc/sys/net/bridge/bridge-nf-call-" + name)
		if err != nil {
			return "", err
		}
		if on == "" || on == "0" {
			continue
		}
		calls[family] = name
		legacy := map[string]string{"iptables": "ip", "ip6tables": "ip6", "arptables": "arp"}[name]
		tables, err := inFile("/proc/net/" + legacy + "_tables_names")
		if err != nil {
			return "", err
		}
		if tables != "" {
			return fmt.Sprintf("%s table %s", name, strings.Fields(tables)[0]), nil
		}
	}
	modules, err := inFile("/proc/modules")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(modules) {
		if strings.HasPrefix(line, "ebtable_") {
			return "ebtables (module " + strings.Fields(line)[0] + ")", nil
		}
	}
	c, err := nftables.New()
	if err != nil {
		return "", fmt.Errorf("ask nftables: %w", err)
	}
	chains, err := c.ListChains()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return "", nil // a kernel without nftables
	}
	if err != nil {
		return "", fmt.Errorf("list the chains of nftables: %w", err)
	}
	for _, ch := range chains {
		if sees(ch, calls) {
			return fmt.Sprintf("nftables chain %s in table %s", ch.Name, ch.Table.Name), nil
		}
	}
	return "", nil
}

// sees: a base chain that bridged frames come by. calls are the families to which bridged packets are shown.
func sees(ch *nftables.Chain, calls map[nftables.TableFamily]string) bool {
	if ch.Hooknum == nil {
		return false // others jump there
	}
	hook := *ch.Hooknum
	switch family := ch.Table.Family; family {
	case nftables.TableFamilyBridge, nftables.TableFamilyNetdev:
		return true
	case nftables.TableFamilyARP:
		return calls[family] != ""
	case nftables.TableFamilyINet:
		if hook == inetIngress { // of a link
			return true
		}
		return (calls[nftables.TableFamilyIPv4] != "" || calls[nftables.TableFamilyIPv6] != "") && !local(hook)
	default:
		return calls[family] != "" && !local(hook)
	}
}

// local: what the host itself receives and sends.
func local(h nftables.ChainHook) bool {
	return h == unix.NF_INET_LOCAL_IN || h == unix.NF_INET_LOCAL_OUT
}

// inFile is the content of a file of the kernel's, "" without such a file.
func inFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// haveUnseenBridge is the feature's probe.
func haveUnseenBridge() error {
	by, err := seenBy()
	if err == nil && by != "" {
		err = errors.New(by + " sees bridged frames")
	}
	return err
}

// lookAround finds out whether frames may pass the bridge by, and says so to the programs: not while someone's rules look at what
// crosses it.
func (s *Switch) lookAround() error {
	var by string
	err := s.home.Do(func() (err error) {
		by, err = seenBy()
		return err
	})
	past := err == nil && by == ""
	if past == s.past {
		return nil
	}
	if err != nil {
		s.log.Warn("whether netfilter looks at bridged frames is not known: all cross the bridge", "error", err)
	} else {
		s.log.Info("frames between stations may meet their rules before the bridge", "may", past, "seen by", by)
	}
	if past {
		if err := s.leaveHomes(); err != nil {
			return err
		}
	}
	s.past = past
	return s.control()
}

// control writes what every frame asks first.
func (s *Switch) control() error {
	c := bpf.SteerControl{Version: s.version, Secret: s.state.Secret}
	if s.past {
		c.Past = 1
	}
	if err := s.maps.Controls.Put(uint32(0), c); err != nil {
		return fmt.Errorf("write control: %w", err)
	}
	return nil
}

// watcher looks around from time to time while there are rules for which it matters.
type watcher struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func startWatcher(s *Switch) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{cancel: cancel}
	w.done.Go(func() {
		t := time.NewTicker(watchEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if err := s.lookAgain(); err != nil {
				s.log.Warn("look for rules of netfilter", "error", err)
			}
		}
	})
	return w
}

func (w *watcher) stop() {
	w.cancel()
	w.done.Wait()
}

func (s *Switch) lookAgain() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.image.onward() {
		return nil
	}
	return s.lookAround()
}
