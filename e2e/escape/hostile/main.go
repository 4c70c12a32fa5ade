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

// attemptTimeout bounds one attempt.
const attemptTimeout = 15 * time.Second

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
	if len(details) > 3 {
		details = append(details[:3], fmt.Sprintf("and %d more", len(details)-3))
	}
	return worst, strings.Join(details, "; ")
}

// opens tries to open files for writing, or for reading.
func opens(flag int, verdict string, paths ...string) (string, string) {
	var tries []func() (string, string)
	for _, p := range paths {
		tries = append(tries, func() (string, string) {
			f, err := os.OpenFile(p, flag, 0)
			if err != nil {
				return refused, err.Error()
			}
			defer f.Close()
			if flag == os.O_RDONLY {
				if n, err := f.Read(make([]byte, 1)); n == 0 { // masked files are empty
					return refused, fmt.Sprintf("%s: nothing to read (%v)", p, err)
				}
			}
			return verdict, "opened " + p
		})
	}
	return all(tries...)
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
