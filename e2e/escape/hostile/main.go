// Command hostile is a network function that tries to get out of its container, for tests. It makes every attempt in a process of its own and prints
// a line for each to its log: "ESCAPE name verdict detail", then "ESCAPE done", and waits. With an argument it makes that attempt, or that abuse, alone.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Verdicts of an attempt, as the process that makes it can tell. What the host has to say of it, the test finds out.
const (
	refused  = "refused"  // the kernel or the runtime said no
	harmless = "harmless" // it went through, and touched nothing but the function's own
	escaped  = "ESCAPED"  // it reached something that is not the function's
)

// attempt tries one way out.
type attempt struct {
	name string
	try  func() (verdict, detail string)
}

// attemptTimeout bounds one attempt. None waits so long: a busy machine makes some slow.
const attemptTimeout = 30 * time.Second

func main() {
	args := append(os.Args[1:], "", "")
	switch args[0] {
	case "":
		everything()
	case "abuse":
		abuse(args[1])
	case "list": // names, for the table of the documentation
		for _, a := range attempts() {
			fmt.Println(a.name)
		}
	case "lift-limits":
		liftLimits()
	default:
		some(os.Args[1:]...)
	}
}

// some makes attempts, up to the first that goes through: that one may have changed what others find.
func some(names ...string) {
	all := attempts()
	for _, name := range names {
		i := slices.IndexFunc(all, func(a attempt) bool { return a.name == name })
		if i < 0 {
			fmt.Println("unknown attempt", name)
			os.Exit(2)
		}
		verdict, detail := all[i].try()
		fmt.Printf("%s %s\n", verdict, strings.ReplaceAll(detail, "\n", " "))
		if verdict != refused {
			return
		}
	}
}

// everything makes all attempts, in processes of their own, and waits.
func everything() {
	var names []string
	for _, a := range attempts() {
		names = append(names, a.name)
	}
	for len(names) > 0 {
		names = names[round(names):]
	}
	fmt.Println("ESCAPE done")
	for { // not select {}: Go ends a program in which nothing can go on
		time.Sleep(time.Hour)
	}
}

// round makes attempts in one process until it ends, and tells how many those were: at least one.
func round(names []string) (n int) {
	c := exec.Command("/proc/self/exe", names...)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		fmt.Printf("ESCAPE %s %s no process: %v\n", names[0], refused, err)
		return 1
	}
	slow := time.AfterFunc(attemptTimeout, func() { _ = c.Process.Kill() })
	lines := bufio.NewScanner(out)
	for ; lines.Scan() && n < len(names); n++ {
		slow.Reset(attemptTimeout)
		fmt.Printf("ESCAPE %s %s\n", names[n], lines.Text())
	}
	slow.Stop()
	if err := c.Wait(); err != nil && n < len(names) || n == 0 { // in the middle of this one
		fmt.Printf("ESCAPE %s %s the process ended: %v\n", names[n], refused, err)
		n++
	}
	return n
}

// no is a refusal with the kernel's word; nil: the attempt went through, and what says what that means.
func no(err error, verdict, what string) (string, string) {
	if err != nil {
		return refused, err.Error()
	}
	return verdict, what
}

// all makes several attempts of one kind: the worst verdict counts.
func all(tries ...func() (string, string)) (string, string) {
	worst, details := refused, []string{}
	for _, try := range tries {
		verdict, detail := try()
		if verdict == escaped || verdict == harmless && worst == refused {
			worst = verdict
		}
		if !slices.Contains(details, detail) {
			details = append(details, detail)
		}
	}
	return worst, joined(details)
}

// anyOf makes attempts of one kind up to the first that goes through.
func anyOf(tries ...func() (string, string)) (string, string) {
	details := []string{}
	for _, try := range tries {
		verdict, detail := try()
		if verdict != refused {
			return verdict, detail
		}
		if !slices.Contains(details, detail) {
			details = append(details, detail)
		}
	}
	return refused, joined(details)
}

// joined are the first of the details.
func joined(details []string) string {
	if len(details) > 3 {
		details = append(details[:3], fmt.Sprintf("and %d more", len(details)-3))
	}
	return strings.Join(details, "; ")
}

// opens tries to open files for writing, or for reading, without waiting.
func opens(flag int, verdict string, paths ...string) (string, string) {
	var tries []func() (string, string)
	for _, p := range paths {
		tries = append(tries, func() (string, string) {
			fd, err := unix.Open(p, flag|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil {
				return refused, fmt.Sprintf("open %s: %v", p, err)
			}
			defer unix.Close(fd)
			if flag == os.O_RDONLY && !hasContent(fd) { // masked files are empty
				return refused, p + ": nothing to read"
			}
			return verdict, "opened " + p
		})
	}
	return all(tries...)
}

// hasContent tells whether something can be read of a file, now or later, or is a directory. A pipe in the place of a file has nothing unless it has something now: its content is the
// runtime's, and not the kernel's.
func hasContent(fd int) bool {
	n, err := unix.Read(fd, make([]byte, 8<<10)) // /dev/kmsg gives whole records
	if errors.Is(err, unix.EAGAIN) {
		var st unix.Stat_t
		return unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO
	}
	return n > 0 || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPIPE) // /dev/kmsg: records were overwritten
}

// writes tries to write a text into files; files that are not there count as refused.
func writes(verdict, text string, paths ...string) (string, string) {
	var tries []func() (string, string)
	for _, p := range paths {
		tries = append(tries, func() (string, string) {
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteString(text)
				err = errors.Join(err, f.Close())
			}
			return no(err, verdict, "wrote "+p)
		})
	}
	return all(tries...)
}
