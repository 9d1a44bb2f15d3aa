package walkthrough

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Shell is one bash, in which folder, variables and background processes last from command to command.
type Shell struct {
	t   testing.TB
	in  io.Writer
	out *bufio.Reader
}

// patience is how long all commands of a shell may take together.
const patience = 10 * time.Minute

// done is printed behind what a command prints.
const done = "walkthrough-command-ended"

// Open starts a shell in a folder, with that environment. At the end of the test the shell and what it started are killed.
func Open(t testing.TB, dir string, env []string) *Shell {
	t.Helper()
	cmd := exec.Command("bash", "--noprofile", "--norc")
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("walkthrough: %v", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("walkthrough: %v", err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatalf("walkthrough: %v", err)
	}
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	late := time.AfterFunc(patience, kill)
	t.Cleanup(func() {
		late.Stop()
		kill()
		_ = cmd.Wait()
	})
	return &Shell{t: t, in: in, out: bufio.NewReader(out)}
}

// Run runs a command, which must succeed, and returns what it printed on either stream.
func (s *Shell) Run(command string) string {
	s.t.Helper()
	said, err := s.try(command)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	return said
}

func (s *Shell) try(command string) (string, error) {
	if _, err := fmt.Fprintf(s.in, "{ %s\n} </dev/null\ncode=$?; echo; echo %s $code\n", command, done); err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	var said strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			return "", fmt.Errorf("%s: the shell ended: %w: %s", command, err, said.String())
		}
		if code, ended := strings.CutPrefix(line, done+" "); ended {
			if n, err := strconv.Atoi(strings.TrimSpace(code)); err != nil || n != 0 {
				return "", fmt.Errorf("%s: exit code %s: %s", command, strings.TrimSpace(code), said.String())
			}
			return said.String(), nil
		}
		said.WriteString(line)
	}
}
