package launcher

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Executing is what the steps of Look and Execute are for.
const Executing = "execute the command"

// places are where a command may be, as execvp(3) looks for it.
func places(args, env []string) []string {
	if strings.Contains(args[0], "/") {
		return args[:1]
	}
	var all []string
	for dir := range strings.SplitSeq(valueOf(env, "PATH"), ":") {
		all = append(all, path.Join("/", dir, args[0]))
	}
	return all
}

func valueOf(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// Look adds steps that fail where Execute would find nothing: whoever waits for a start is to know before.
func (p *Program) Look(args, env []string) {
	var found []Step
	all := places(args, env)
	for i, place := range all {
		s := p.Call(Executing, unix.SYS_FACCESSAT, Here(), p.String(place), Int(unix.X_OK))
		if i < len(all)-1 {
			p.Spare(s, unix.ENOENT, unix.ENOTDIR, unix.EACCES)
		}
		found = append(found, p.Jump(s, Zero))
	}
	p.Land(found...)
}

// Execute adds steps that try a command's places one after another.
func (p *Program) Execute(args, env []string) {
	argv, envp := p.Strings(args), p.Strings(env)
	all := places(args, env)
	for i, place := range all {
		s := p.Call(Executing, unix.SYS_EXECVE, p.String(place), argv, envp)
		if i < len(all)-1 {
			p.Spare(s, unix.ENOENT, unix.ENOTDIR, unix.EACCES)
		}
	}
}

// Explain turns what is heard of a program into what a user can act on; args are the command of Look and Execute.
func Explain(err error, args []string) error {
	var failed *Error
	if !errors.As(err, &failed) || failed.What != Executing {
		return err
	}
	switch failed.Errno {
	case unix.ENOENT, unix.ENOTDIR:
		return fmt.Errorf("command %q not found in the image: name one that it has (%w)", args[0], err)
	case unix.EACCES, unix.EPERM, unix.EISDIR:
		return fmt.Errorf("command %q is not executable in the image: %w", args[0], err)
	case unix.ENOEXEC:
		return fmt.Errorf("command %q is no program for this kind of processor (%s): %w", args[0], runtime.GOARCH, err)
	}
	return err
}
