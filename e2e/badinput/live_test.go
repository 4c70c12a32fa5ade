package badinput

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// live is a Weir with a chain in use, images of its own, and interfaces that others use.
func live(t *testing.T) (*rig.Rig, context.Context) {
	t.Helper()
	images := t.TempDir()
	r, ctx := rig.Bare(t, rig.Options{})
	if err := os.CopyFS(images, os.DirFS(r.Images)); err != nil {
		t.Fatal(err)
	}
	r.Images = images
	for _, line := range []string{
		"ip link add otherbr type bridge", "ip link add enslaved type veth peer name far1", "ip link set enslaved master otherbr",
		"ip link add addressed type veth peer name far2", "ip addr add 192.0.2.1/24 dev addressed", "ip link set addressed up",
		"ip link add free type veth peer name far3", "ip link add uplink type veth peer name far4",
	} {
		if _, err := r.Run(ctx, "", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Run(ctx, r.Alice(), "ip", "link", "add", "taken", "type", "veth", "peer", "name", "taken-peer"); err != nil {
		t.Fatal(err)
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, r.Endpoints()+"  up: {interface: uplink}\n"+chain)
	return r, ctx
}

func TestRefusedWhileTrafficFlows(t *testing.T) {
	r, ctx := live(t)
	var alice api.Endpoint
	if err := r.Get(ctx, &alice, "endpoint", "alice"); err != nil {
		t.Fatal(err)
	}
	stream, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 500)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Await(ctx, 50); err != nil {
		t.Fatal(err)
	}
	before := look(ctx, t, r)
	for _, c := range []struct {
		name, document string
		say            []string
	}{
		{"missing image", "functions: {x: {image: nonesuch}}", []string{"<stdin>:1:24: functions.x.image", "image not found: there are ", "firewall:1, "}},
		{"missing tag", "functions: {x: {image: 'firewall:9'}}", []string{"functions.x.image", "there are ", "firewall:1, "}},
		{"config with an unknown key", "functions: {x: {image: firewall, config: {alow: [icmp]}}}", []string{"<stdin>:1:49: functions.x.config.alow: unknown key", "known are allow,"}},
		{"config with a bad value", "functions: {x: {image: firewall, config: {allow: [icmp, http]}}}", []string{"<stdin>:1:57: functions.x.config.allow[1]", `is "http"`, "/PORT or /FIRST-LAST"}},
		{"config with a port that there is not", "functions: {x: {image: firewall, config: {allow: [tcp/99999]}}}", []string{"functions.x.config.allow[0]", "from 1 to 65535"}},
		{"config of a function in use", "functions: {fw: {image: firewall, config: {allow: 7}}}", []string{"functions.fw.config.allow", "want array"}},
		{"config where none is taken", "functions: {x: {image: wire, config: {speed: 9}}}", []string{"functions.x.config", "takes none (found speed)"}},
		{"missing netns", "endpoints: {x: {netns: " + r.Name + "-nobody, interface: eth0}}", []string{"<stdin>:1:24: endpoints.x.netns", "make it with `ip netns add " + r.Name + "-nobody`"}},
		{"netns is an ordinary file", "endpoints: {x: {netns: /etc/passwd, interface: eth0}}", []string{"endpoints.x.netns", "no network namespace but an ordinary file"}},
		{"netns of an endpoint in use goes", "endpoints: {bob: {netns: " + r.Name + "-nobody, interface: eth0, address: 10.9.0.2/24}}", []string{"endpoints.bob.netns", "ip netns add"}},
		{"missing interface", "endpoints: {x: {interface: nosuch0}}", []string{"<stdin>:1:28: endpoints.x.interface", "nosuch0", "not found", "`ip link`"}},
		{"interface of another bridge", "endpoints: {x: {interface: enslaved}}", []string{"belongs to otherbr", "ip link set enslaved nomaster"}},
		{"interface with an address", "endpoints: {x: {interface: addressed}}", []string{"has the address 192.0.2.1/24", "ip addr del 192.0.2.1/24 dev addressed"}},
		{"interface that is a bridge", "endpoints: {x: {interface: otherbr}}", []string{"is a bridge: want a NIC, a veth or a tap"}},
		{"loopback", "endpoints: {x: {interface: lo}}", []string{"want a NIC, a veth or a tap"}},
		{"the switch's own bridge", "endpoints: {x: {interface: weir-" + r.Name + "}}", []string{"is this switch's bridge"}},
		{"link that is a port already", "endpoints: {x: {interface: " + alice.Status.Link + "}}", []string{"is already the port endpoint/alice"}},
		{"interface that is a port already", "endpoints: {x: {interface: uplink}}", []string{`is that of endpoint`, "an interface is one port of the switch"}},
		{"port twice in one file", "endpoints: {x: {interface: free}, y: {interface: free}}", []string{"<stdin>:1:50: endpoints.y.interface", `is that of endpoint "x" already`}},
		{"interface name taken in the netns", "endpoints: {x: {netns: " + r.Alice() + ", interface: taken}}", []string{"interface taken exists in netns", "choose another name"}},
		{"interface name of another endpoint", "endpoints: {x: {netns: " + r.Alice() + ", interface: eth0}}", []string{`that of endpoint "alice" already`}},
		{"the same by another path", "endpoints: {x: {netns: /var/run/netns/" + r.Alice() + ", interface: eth0}}", []string{`made by endpoint "alice"`}},
		{"address of another endpoint", "endpoints: {x: {netns: " + r.Alice() + ", interface: eth9, address: 10.9.0.2/24}}", []string{"address 10.9.0.2", `"bob" already`}},
		{"unknown function in a chain", "functions: {k: {image: wire}}\nchains: {x: k | w2}", []string{"<stdin>:2:13: chains.x.path", `function "w2" is not there`, `did you mean "w1"?`}},
		{"function of another chain", "chains: {x: w1}", []string{`"w1"`, `"web"`, "make a second function of the same image"}},
		{"loop", "chains: {web: fw | w1 | fw}", []string{"<stdin>:1:15: chains.web.path", `"fw" stands at place 1 and again at place 3: a loop`}},
		{"tap that stands in line", "functions: {m: {image: wire}}\nchains: {x: 'tap:m'}", []string{"chains.x.path", "has the ports in and out: it is no tap", "write m"}},
		{"unknown chain", "policies: {x: {from: alice, chain: wbe}}", []string{"policies.x.chain", `did you mean "web"?`}},
		{"conflict with a policy that is there", "functions: {k: {image: wire}}\nchains: {x: k}\npolicies: {zz: {from: alice, to: bob, match: [tcp/1-1024], chain: x}}",
			[]string{"<stdin>:3:12: policies.zz", `conflicts with policy "guests": both have the priority 100`, "this packet: tcp 10.9.0.1:", "-> 10.9.0.2:80", "another priority"}},
		{"conflict, the other way round", "functions: {k: {image: wire}}\nchains: {x: k}\npolicies: {aa: {from: alice, to: any, match: [udp/53], chain: x}}",
			[]string{"<stdin>:3:12: policies.aa", `conflicts with policy "guests"`, "this packet: udp 10.9.0.", ":53"}},
		{"conflict of all traffic", "functions: {k: {image: wire}}\nchains: {x: k}\npolicies: {zz: {from: bob, mode: exhaustive, chain: x}}",
			[]string{"<stdin>:3:12: policies.zz", `conflicts with policy "guests"`, "select this packet"}},
		{"one thing wrong among right ones", "functions: {k: {image: wire}, x: {image: nonesuch}}\nchains: {x: k}", []string{"functions.x.image"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := r.Apply(ctx, c.document, "--timeout", "3s")
			refused(t, err, invalid, c.say...)
			same(ctx, t, r, before)
		})
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		say  []string
	}{
		{"delete a function in use", []string{"delete", "function", "fw"}, conflict, []string{"function fw is in use by chain/web: nothing was changed", "delete or change it first"}},
		{"delete a chain in use", []string{"delete", "chain", "web"}, conflict, []string{"chain web is in use by policy/guests"}},
		{"delete an endpoint in use", []string{"delete", "endpoint", "bob"}, conflict, []string{"endpoint bob is in use by policy/guests"}},
		{"delete what is not there", []string{"delete", "function", "fw2"}, notFound, []string{`function "fw2" not found`}},
		{"start what is not there", []string{"function", "start", "fw2"}, notFound, []string{`"fw2"`}},
		{"logs of what is not there", []string{"function", "logs", "fw2"}, notFound, []string{"fw2"}},
		{"run what the function lacks", []string{"function", "exec", "fw", "--", "/no/such"}, failure, []string{"/no/such"}},
		{"another instance", []string{"status", "--name", "nobody"}, unreachable, []string{"is weir up? start it with `weir up`"}},
		{"missing token", []string{"status", "--url", "http://127.0.0.1:7411", "--token-file", "/nonexistent"}, invalid, []string{"/nonexistent", "--token-file"}},
		{"wrong token", []string{"status", "--url", "http://127.0.0.1:7411", "--token-file", "/etc/hostname"}, forbidden, []string{"token is missing or wrong", "token file"}},
		{"down with the root of nobody", []string{"down", "--name", "waytoolonganame"}, usage, []string{"want 1 to 10 characters"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := r.Weir(ctx, c.args...)
			refused(t, err, c.code, c.say...)
			same(ctx, t, r, before)
		})
	}
	t.Run("corrupt images", func(t *testing.T) { corruptImages(ctx, t, r, before) })
	t.Run("over REST", func(t *testing.T) { rest(ctx, t, r, before) })
	o, err := stream.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if o.Lost > 0 || o.Duplicated > 0 || o.Sent < 100 {
		t.Errorf("traffic noticed: %+v", o)
	}
}

// corruptImages damages what the monitor is made of. Nothing that runs depends on it.
func corruptImages(ctx context.Context, t *testing.T, r *rig.Rig, before world) {
	blob := ownLayer(t, r.Images, "monitor:1", "firewall:1", "wire:1")
	index := filepath.Join(r.Images, "index.json")
	for _, c := range []struct {
		name, file string
		damage     func([]byte) []byte
		say        []string
	}{
		{"layer cut short", blob, func(b []byte) []byte { return b[:len(b)/2] }, []string{"image corrupt: layer " + blob, "bytes, want", "`make build`"}},
		{"layer with another digest", blob, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, []string{"image corrupt: " + blob, "expected sha256:", "`make build`"}},
		{"layer missing", blob, nil, []string{blob + " is missing", "`make build`"}},
		{"index is no JSON", index, func(b []byte) []byte { return b[:len(b)-5] }, []string{"image corrupt: " + index, "`make build`"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole, err := os.ReadFile(c.file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(c.file); err != nil {
				t.Fatal(err)
			}
			if c.damage != nil {
				write(t, c.file, c.damage(slices.Clone(whole)))
			}
			_, err = r.Apply(ctx, "functions: {x: {image: monitor}}", "--timeout", "3s")
			refused(t, err, invalid, append(c.say, "<stdin>:1:24: functions.x.image")...)
			same(ctx, t, r, before)
			// What does not need the image can still be changed.
			if out, err := r.Apply(ctx, "policies: {guests: {from: alice, to: bob, match: [udp, icmp, tcp/81], chain: web}}", "--plan"); err != nil {
				t.Errorf("an unrelated change: %v\n%s", err, out)
			}
			write(t, c.file, whole)
		})
	}
	if _, err := r.Apply(ctx, "functions: {x: {image: monitor}}", "--plan"); err != nil {
		t.Errorf("mended, and still refused: %v", err)
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// ownLayer is the file of a layer that an image does not share with others.
func ownLayer(t *testing.T, layout, image string, others ...string) string {
	t.Helper()
	type descriptor struct {
		Digest      string            `json:"digest"`
		Annotations map[string]string `json:"annotations"`
	}
	read := func(path string, v any) {
		b, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	file := func(digest string) string {
		return filepath.Join(layout, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
	}
	var index struct{ Manifests []descriptor }
	read(filepath.Join(layout, "index.json"), &index)
	layers := map[string][]string{}
	for _, d := range index.Manifests {
		var m struct{ Layers []descriptor }
		read(file(d.Digest), &m)
		for _, l := range m.Layers {
			name := d.Annotations["org.opencontainers.image.ref.name"]
			layers[name] = append(layers[name], l.Digest)
		}
	}
	for _, l := range layers[image] {
		if !slices.ContainsFunc(others, func(o string) bool { return slices.Contains(layers[o], l) }) {
			return file(l)
		}
	}
	t.Fatalf("image %s has no layer of its own: %v", image, layers)
	return ""
}
