package natsbroker

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// A replica is this test binary, run once more with these variables.
const (
	replicaDir  = "ONCEMILL_TEST_REPLICA_DIR"
	replicaName = "ONCEMILL_TEST_REPLICA_NAME"
	// replicaURL has it use an external server.
	replicaURL = "ONCEMILL_TEST_REPLICA_URL"
	// replicaOrdered names a topic that it consumes in order, and does nothing else.
	replicaOrdered = "ONCEMILL_TEST_REPLICA_ORDERED"
)

const replicaTopic = "replicas.work"

func TestMain(m *testing.M) {
	if dir := os.Getenv(replicaDir); dir != "" {
		if err := runReplica(dir, os.Getenv(replicaName)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runReplica consumes, and publishes until its standard input ends; then it consumes on until it is told to stop by a signal.
// It notes what was confirmed and what was handled, each in one line of a shared file.
func runReplica(dir, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	b, err := openReplica(ctx, dir, name, os.Getenv(replicaURL))
	if err != nil {
		return err
	}
	if topic := os.Getenv(replicaOrdered); topic != "" {
		return runOrdered(b, dir, topic)
	}
	sub := broker.Subscription{Topic: replicaTopic, Group: "workers", InFlight: 32}
	if err := b.Declare(ctx, replicaTopic, []broker.Subscription{sub}); err != nil {
		return err
	}
	consumer, err := b.Subscriber(sub)
	if err != nil {
		return err
	}
	msgs, err := consumer.Subscribe(context.Background(), replicaTopic)
	if err != nil {
		return err
	}
	handled, err := os.OpenFile(filepath.Join(dir, "handled"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	go func() {
		for msg := range msgs {
			fmt.Fprintf(handled, "%s %t\n", msg.Payload, envelope.DeliveryFrom(msg.Context()).Redelivered)
			msg.Ack()
		}
	}()
	input := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(input)
	}()
	if err := publishUntil(input, b, dir, name); err != nil {
		return err
	}
	fmt.Println("published")
	term := make(chan os.Signal, 1)
	ossignal.Notify(term, syscall.SIGTERM)
	<-term
	if err := consumer.Drain(ctx); err != nil {
		return err
	}
	return b.Close()
}

func publishUntil(end <-chan struct{}, b broker.Broker, dir, name string) error {
	confirmed, err := os.OpenFile(filepath.Join(dir, "confirmed"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer confirmed.Close()
	for n := 0; ; n++ {
		select {
		case <-end:
			return nil
		case <-time.After(2 * time.Millisecond):
		}
		// Alone and in batches, which the embedded server stores in different ways.
		msgs := make([]*message.Message, 1+n%4)
		for i := range msgs {
			msgs[i] = message.NewMessage(envelope.NewUUID(), fmt.Appendf(nil, "%s-%d-%d", name, n, i))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		for i, err := range b.Publisher().PublishBatch(ctx, replicaTopic, msgs) {
			if err == nil {
				fmt.Fprintf(confirmed, "%s\n", msgs[i].Payload)
			}
		}
		cancel()
	}
}

// replica is a running process.
type replica struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	log   *bytes.Buffer
}

func startReplica(t *testing.T, dir, name string, variables ...string) *replica {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), replicaDir+"="+dir, replicaName+"="+name)
	cmd.Env = append(cmd.Env, variables...)
	var logged bytes.Buffer
	cmd.Stderr = &logged
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &replica{cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout), log: &logged}
}

// F046, F055: three processes share a folder; whichever serves is killed, again and again, under load. Another takes over on the
// same folder, nothing that was confirmed is lost, and what was handed over before is marked when it comes again.
func TestF055EmbeddedOwnerKilled(t *testing.T) {
	const kills = 5
	dir := t.TempDir()
	replicas := map[int]*replica{}
	start := func(name string) {
		r := startReplica(t, dir, name)
		replicas[r.cmd.Process.Pid] = r
	}
	for i := range 3 {
		start("r" + strconv.Itoa(i))
	}
	for i := range kills {
		before := len(lines(t, dir, "confirmed"))
		owner := 0
		testenv.Eventually(t, 30*time.Second, func() error {
			owner = readAddress(dir).PID
			if replicas[owner] == nil {
				return fmt.Errorf("process %d, which is none of ours, serves", owner)
			}
			if now := len(lines(t, dir, "confirmed")); now < before+200 {
				return fmt.Errorf("%d messages confirmed after %d", now, before)
			}
			return nil
		})
		require.NoError(t, replicas[owner].cmd.Process.Kill())
		_ = replicas[owner].cmd.Wait()
		delete(replicas, owner)
		start("k" + strconv.Itoa(i))
	}
	for _, r := range replicas {
		require.NoError(t, r.stdin.Close())
		line, err := r.out.ReadString('\n')
		require.NoError(t, err, r.log)
		require.Equal(t, "published\n", line)
	}
	confirmed := lines(t, dir, "confirmed")
	testenv.Eventually(t, 40*time.Second, func() error { return allHandled(confirmed, lines(t, dir, "handled")) })

	unmarked := map[string]int{}
	for _, line := range lines(t, dir, "handled") {
		if payload, again, _ := strings.Cut(line, " "); again == "false" {
			unmarked[payload]++
			require.LessOrEqual(t, unmarked[payload], 1, "%s was handed over twice without a mark", payload)
		}
	}
	for _, r := range replicas {
		require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, r.cmd.Wait(), r.log)
	}
	t.Logf("%d confirmed, %d handled, %d of them marked as redelivered", len(confirmed), len(lines(t, dir, "handled")), len(lines(t, dir, "handled"))-len(unmarked))
}

func lines(t *testing.T, dir, name string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

func allHandled(confirmed, handled []string) error {
	done := map[string]bool{}
	for _, line := range handled {
		payload, _, _ := strings.Cut(line, " ")
		done[payload] = true
	}
	for _, payload := range confirmed {
		if !done[payload] {
			return fmt.Errorf("%s was confirmed and is not handled; %d of %d are", payload, len(done), len(confirmed))
		}
	}
	return nil
}
