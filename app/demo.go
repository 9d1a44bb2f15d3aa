package app

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// demo is the whole story on one machine: a producer that sends many payments twice or three times, a consumer process that
// is killed in mid-work, and books that balance all the same.
type demo struct {
	cli      *cli
	app      *App // the producer: it serves the embedded broker and reads the books
	worker   *worker
	dir      string
	payments int
	kills    int
	seed     uint64
	sent     atomic.Int64
	killed   int

	delivered float64 // counted by processes that are dead
	living    float64 // counted by the living one, as far as it was asked
}

const (
	demoAccounts = 40
	demoBursts   = 6
	demoPatience = 5 * time.Minute
)

func (c *cli) demoCommand() *cobra.Command {
	d := &demo{cli: c}
	cmd := &cobra.Command{
		Use: "demo", Short: "See the whole story: duplicates, crashes, and books that balance", Args: cobra.NoArgs,
		Long: `Publish payments in bursts, many of them two or three times, while the process that handles them is killed (SIGKILL) and
started again; then audit: every payment made once, the ledger sums to zero, one letter, one count and one journal entry each.
It uses the embedded broker and SQLite in a temporary folder. The exit code is 1 if anything is wrong.`,
		Example: "  oncemill demo\n  oncemill demo --payments 10000 --kills 8 --dir ./demo",
		RunE:    func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) },
	}
	cmd.Flags().IntVar(&d.payments, "payments", 3000, "how many payments")
	cmd.Flags().IntVar(&d.kills, "kills", 4, "how often the consumer is killed")
	cmd.Flags().StringVar(&d.dir, "dir", "", "folder to use and keep (a temporary one is removed)")
	cmd.Flags().Uint64Var(&d.seed, "seed", uint64(time.Now().UnixNano()), "seed of amounts, duplicates and kills")
	return cmd
}

func (d *demo) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	if d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "oncemill-demo-"); err != nil {
			return err
		}
		defer os.RemoveAll(d.dir)
	}
	if err := d.open(ctx); err != nil {
		return err
	}
	defer d.app.Close()
	address, err := freeAddress()
	if err != nil {
		return err
	}
	d.worker = newWorker(d.dir, address, d.environment())
	defer d.worker.kill()
	started := time.Now()
	d.say("%d payments between %d accounts; every payment is sent one to three times; the consumer is killed %d times (seed %d)", d.payments, demoAccounts, d.kills, d.seed)
	if err := d.play(ctx); err != nil {
		return err
	}
	return d.verdict(ctx, time.Since(started))
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.cli.out, format+"\n", args...) }

// environment configures producer and consumer alike.
func (d *demo) environment() []string {
	return []string{
		"ONCEMILL_BROKER=embedded", "ONCEMILL_DATABASE=sqlite", "ONCEMILL_DATA_DIR=" + d.dir,
		"ONCEMILL_LOG__LEVEL=warn",
		"ONCEMILL_PLUGINS__EMAIL__CONFIG__FOLDER=" + filepath.Join(d.dir, "mail"),
	}
}

// open makes the producer: it is the first on the folder and so serves the broker, which the kills of the consumer do not touch.
func (d *demo) open(ctx context.Context) error {
	producer := &cli{set: d.cli.set, out: d.cli.out, errs: d.cli.errs, env: d.environment(), flags: map[string]string{}}
	a, err := producer.app()
	if err != nil {
		return err
	}
	d.app = a
	if err := a.Open(ctx); err != nil {
		return errors.Join(err, a.Close())
	}
	if err := a.prepare(ctx); err != nil {
		return errors.Join(err, a.Close())
	}
	return nil
}

// play sends everything while the consumer lives and dies, and waits until nothing is on its way.
func (d *demo) play(ctx context.Context) error {
	if err := d.worker.start(); err != nil {
		return err
	}
	if err := d.openAccounts(ctx); err != nil {
		return err
	}
	var group errgroup.Group
	group.Go(func() error { return d.sendBursts(ctx) })
	if err := d.watch(ctx); err != nil {
		return err
	}
	return group.Wait()
}

// watch shows the progress and kills the consumer each time another part of the payments is made.
func (d *demo) watch(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	shown := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the demo did not finish in %s: %w", demoPatience, ctx.Err())
		case err := <-d.worker.died:
			return fmt.Errorf("the consumer ended by itself: %w (its log is %s)", err, d.worker.log)
		case <-tick.C:
		}
		a, err := readAudit(ctx, d.app.store.DB())
		if err != nil {
			return err
		}
		d.living = max(d.living, d.worker.deliveries(d.app.cfg.Service+"/payments"))
		if time.Since(shown) > time.Second {
			shown = time.Now()
			d.say("  sent %5d   payments %5d   letters %5d   counted %5d   kills %d", d.sent.Load(), a.Payments, a.Letters, a.Counted, d.killed)
		}
		if d.killed < d.kills && a.Payments > int64(d.payments*(d.killed+1)/(d.kills+1)) {
			if err := d.crash(); err != nil {
				return err
			}
		}
		if a.settled(int64(d.payments)) {
			return nil
		}
	}
}

// crash kills the consumer in the middle of its work and starts it again.
func (d *demo) crash() error {
	d.worker.kill()
	d.delivered, d.living = d.delivered+d.living, 0
	d.killed++
	d.say("  SIGKILL number %d: the consumer is dead, a new one starts", d.killed)
	return d.worker.start()
}

// freeAddress finds a free port on this machine.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (d *demo) openAccounts(ctx context.Context) error {
	for i := range demoAccounts {
		body := fmt.Sprintf(`{"account_id":%q,"currency":"EUR","opening_balance":"1000000.00"}`, account(i))
		if err := d.publish(ctx, "accounts.opened", fmt.Sprintf("open-%s", account(i)), body); err != nil {
			return err
		}
	}
	return d.until(ctx, "the accounts are open", func() (bool, error) {
		var n int
		err := d.app.store.DB().GetContext(ctx, &n, `SELECT count(*) FROM accounts WHERE kind = 'customer'`)
		return n == demoAccounts, err
	})
}

func account(i int) string { return fmt.Sprintf("account-%02d", i) }

// until polls what another process does to the database.
func (d *demo) until(ctx context.Context, what string, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		}
	}
}

// sendBursts sends the payments in bursts, each payment one to three times in all, from three producers at once.
func (d *demo) sendBursts(ctx context.Context) error {
	rnd := rand.New(rand.NewPCG(d.seed, 1))
	each := (d.payments + demoBursts - 1) / demoBursts
	for first := 0; first < d.payments; first += each {
		var burst []payment
		for i := first; i < min(first+each, d.payments); i++ {
			p := newPayment(rnd, i)
			for range 1 + rnd.IntN(3) {
				burst = append(burst, p)
			}
		}
		rnd.Shuffle(len(burst), func(i, j int) { burst[i], burst[j] = burst[j], burst[i] })
		var producers errgroup.Group
		for n := range 3 {
			producers.Go(func() error {
				for i := n; i < len(burst); i += 3 {
					if err := d.publish(ctx, "payments.requested", burst[i].key, burst[i].body); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := producers.Wait(); err != nil {
			return err
		}
	}
	return nil
}

type payment struct{ key, body string }

func newPayment(rnd *rand.Rand, i int) payment {
	from := rnd.IntN(demoAccounts)
	to := (from + 1 + rnd.IntN(demoAccounts-1)) % demoAccounts
	return payment{
		key: fmt.Sprintf("order-%05d-payment", i),
		body: fmt.Sprintf(`{"payment_id":"pay-%05d","from":%q,"to":%q,"amount":"%d.%02d","currency":"EUR"}`,
			i, account(from), account(to), 1+rnd.IntN(99), rnd.IntN(100)),
	}
}

func (d *demo) publish(ctx context.Context, topic, key, body string) error {
	msg := message.NewMessage(envelope.NewUUID(), []byte(body))
	msg.Metadata.Set(envelope.KeyHeader, key)
	if err := errors.Join(d.app.broker.Publisher().PublishBatch(ctx, topic, []*message.Message{msg})...); err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	d.sent.Add(1)
	return nil
}

// verdict audits the books and says what came out.
func (d *demo) verdict(ctx context.Context, took time.Duration) error {
	a, err := readAudit(ctx, d.app.store.DB())
	if err != nil {
		return err
	}
	letters, err := filepath.Glob(filepath.Join(d.dir, "mail", "*.eml"))
	if err != nil {
		return err
	}
	sent := d.sent.Load() - demoAccounts
	d.say("")
	for _, line := range []struct {
		what  string
		count int64
		note  string
	}{
		{"payment messages sent", sent, ""},
		{"deliveries of them", int64(d.delivered + d.living), "without those that a killed consumer could not report"},
		{"duplicates removed", sent - a.Payments, "and every redelivery"},
		{"consumers killed (SIGKILL)", int64(d.killed), ""},
		{"payments made", a.Payments, "each exactly once"},
		{"sum of the ledger", a.Ledger, "must be 0"},
		{"accounts that do not balance", a.Unbalanced, "must be 0"},
		{"letters in the mail folder", int64(len(letters)), "one for each payment"},
		{"payments counted", a.Counted, "one for each payment"},
		{"journal entries", a.Journal, "one for each payment"},
		{"dead letters, in doubt, waiting", a.Dead + a.InDoubt + a.Waiting, "must be 0"},
	} {
		d.say("%-34s %7d   %s", line.what, line.count, line.note)
	}
	problems := a.problems(int64(d.payments))
	if len(letters) != d.payments {
		problems = errors.Join(problems, fmt.Errorf("files in the mail folder: %d, must be %d", len(letters), d.payments))
	}
	if problems != nil {
		return fmt.Errorf("the promise is broken:\n%w", problems)
	}
	d.say("\nEvery payment happened exactly once (%s).", took.Round(100*time.Millisecond))
	return nil
}
