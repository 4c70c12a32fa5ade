// Command weir-settle is for functions that are scripts: it hands lines to the switch, such as "pass tcp 10.9.0.1:4000 10.9.0.2:80", and prints the answers.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"weir.dev/weir/catalogue/nf"
)

const usage = `Usage: weir-settle [-socket FILE] LINE...
       ... | weir-settle [-socket FILE]

Tell the switch what this function has decided about flows that it has been given. A line is one argument, or one line of the input:

  pass tcp 10.9.0.1:4000 10.9.0.2:80          hand the flow on, in both directions, without this function
  drop udp [fd57::1]:53 [fd57::2]:5353        drop it before this function
  judge icmp 10.9.0.1 10.9.0.2 id 7           give it to this function again
  pass tcp 10.9.0.1:4000 10.9.0.2:80 vlan 7 oneway at in
  reset                                       give all flows to this function again

Prints an answer for each line: "ok N" (N entries, one a direction), "early" (a connection began or ended less than 0.2 s ago: say it again),
"not-given" (the switch has not given the flow to this function lately), "error: ...". Exit code 0: all were ok; 1: some were not; 2: nothing could be said.
`

const patience = 10 * time.Second

func main() {
	socket := flag.String("socket", nf.SettleFile, "socket of the platform")
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flag.Parse()
	var lines io.Reader = os.Stdin
	if flag.NArg() > 0 {
		lines = strings.NewReader(strings.Join(flag.Args(), "\n"))
	}
	ok, err := say(*socket, lines, os.Stdout)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "weir-settle:", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

// say the lines, one after the other, and print the answers.
func say(socket string, lines io.Reader, answers io.Writer) (ok bool, err error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return false, fmt.Errorf("%w (the image's label weir.settles must be \"true\", and the host's switch ebpf)", err)
	}
	defer c.Close()
	ok = true
	r := bufio.NewReader(c)
	for in := bufio.NewScanner(lines); in.Scan(); {
		if strings.TrimSpace(in.Text()) == "" {
			continue
		}
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return false, err
		}
		if _, err := fmt.Fprintln(c, in.Text()); err != nil {
			return false, err
		}
		answer, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return false, errors.New("the platform has ended the connection")
		}
		if err != nil {
			return false, err
		}
		ok = ok && strings.HasPrefix(answer, "ok ")
		if _, err := io.WriteString(answers, answer); err != nil {
			return false, err
		}
	}
	return ok, nil
}
