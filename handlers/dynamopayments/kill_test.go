package dynamopayments_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/internal/testenv"
)

const (
	workerOf  = "DYNAMOPAYMENTS_WORKER"
	customers = 4
	requests  = 40
)

// TestWorker is what TestBooksUnderRivalsAndKills runs in processes of their own. It handles all payments, in an order of its own, with a
// database of its own: nothing but DynamoDB knows what others have done, or what it did itself before it was killed.
func TestWorker(t *testing.T) {
	prefix := os.Getenv(workerOf)
	if prefix == "" {
		return
	}
	k := booksAt(t, prefix).kit()
	for _, n := range rand.Perm(requests) {
		from, to := n%customers, (n+1+n/customers%(customers-1))%customers
		outcome := pay(k, "p"+itoa(n), "customer-"+itoa(from), "customer-"+itoa(to), itoa(1+n%7))
		for range 20 {
			if outcome != handlertest.Parked {
				break
			}
			k.Advance(2 * time.Hour)
			outcome = pay(k, "p"+itoa(n), "customer-"+itoa(from), "customer-"+itoa(to), itoa(1+n%7))
		}
	}
	k.WantDead()
	k.WantQuiet()
	require.Equal(t, requests, len(k.Published("payments.completed"))+len(k.Published("payments.declined")))
}

func TestBooksUnderRivalsAndKills(t *testing.T) {
	b := newBooks(t)
	k := b.kit()
	for n := range customers {
		open(t, k, "customer-"+itoa(n), "EUR", "10")
	}
	start := func() *worker { return startWorker(t, b.config.DynamoDB.Prefix) }
	workers := []*worker{start(), start()}
	atWork := 0
	for kill := range 6 {
		before := len(b.Items(b.table("payments")))
		testenv.Eventually(t, time.Minute, func() error {
			if now := len(b.Items(b.table("payments"))); now < min(before+3, requests) && !workers[kill%2].ended() {
				return fmt.Errorf("there are %d payments, as many as before or a few more", now)
			}
			return nil
		})
		if w := workers[kill%2]; w.ended() {
			require.NoError(t, w.wait(), "%s", w.says())
		} else {
			atWork++
			w.kill()
		}
		workers[kill%2] = start()
	}
	require.NotZero(t, atWork, "each worker had ended before it was killed")
	for _, w := range workers {
		require.NoError(t, w.wait(), "%s", w.says())
	}
	var sum int64
	for id, balance := range b.balances() {
		if strings.HasPrefix(id, "customer-") {
			sum += balance
		}
	}
	require.Equal(t, int64(customers*1000), sum)
	require.Len(t, b.Items(b.table("payments")), requests)
	require.Len(t, b.Items(b.table("keys")), requests+customers)
}

// worker is a process that handles payments.
type worker struct {
	cmd  *exec.Cmd
	out  strings.Builder
	done chan struct{}
	err  error
}

func startWorker(t *testing.T, prefix string) *worker {
	t.Helper()
	w := &worker{cmd: exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWorker$", "-test.timeout=3m"), done: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), workerOf+"="+prefix)
	w.cmd.Stdout, w.cmd.Stderr = &w.out, &w.out
	require.NoError(t, w.cmd.Start())
	go func() {
		defer close(w.done)
		w.err = w.cmd.Wait()
	}()
	t.Cleanup(w.kill)
	return w
}

func (w *worker) ended() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (w *worker) kill() {
	_ = w.cmd.Process.Kill()
	<-w.done
}

func (w *worker) wait() error {
	<-w.done
	return w.err
}

// says is what an ended worker wrote.
func (w *worker) says() string { return w.out.String() }
