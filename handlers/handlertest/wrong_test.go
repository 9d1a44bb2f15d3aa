package handlertest_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/handlertest"
)

// wrong are tests of handlers that look right and are not, and what each must say.
var wrong = map[string]struct {
	test func(t *testing.T)
	says string
}{
	"an effect past the transaction": {
		says: "sent 2 times",
		test: func(t *testing.T) {
			sent := 0
			k := handlertest.New(t, shop(func(ctx context.Context, tx handlers.Tx, o order) (any, error) {
				sent++ // stands for a call of another system
				return take(ctx, tx, o)
			}), nil)
			k.FailEverywhere("orders.placed", "k", order{"1"}, func(k *handlertest.Kit) {
				once(k)
				if sent != 1 {
					k.T().Errorf("sent %d times", sent)
				}
				sent = 0
			})
		},
	},
	"state outside the database": {
		says: "no row",
		test: func(t *testing.T) {
			seen := map[string]bool{}
			k := handlertest.New(t, shop(func(ctx context.Context, tx handlers.Tx, o order) (any, error) {
				if seen[o.ID] { // survives the rollback of what it stands for
					return "seen", nil
				}
				seen[o.ID] = true
				return take(ctx, tx, o)
			}), nil)
			k.FailEverywhere("orders.placed", "k", order{"1"}, once)
		},
	},
	"a retry that is not the same": {
		says: "messages were published to orders.taken, want 1",
		test: func(t *testing.T) {
			k := handlertest.New(t, shop(func(ctx context.Context, tx handlers.Tx, o order) (any, error) {
				return nil, tx.Publish(ctx, "orders.taken", o, o)
			}), nil)
			k.Deliver("orders.placed", "k", order{"1"})
			k.WantPublished("orders.taken", 1)
		},
	},
	"a failure that is final": {
		says: "dead letters: [\"gave-up\"], want []",
		test: func(t *testing.T) {
			k := handlertest.New(t, shop(func(ctx context.Context, tx handlers.Tx, o order) (any, error) {
				if _, err := tx.ExecContext(ctx, `INSERT INTO seen (id) VALUES (?)`, o.ID); err != nil {
					return nil, handlers.Permanent("gave-up", "any failure of the database") // also one that passes
				}
				return "taken", nil
			}), nil)
			k.FailEverywhere("orders.placed", "k", order{"1"}, func(k *handlertest.Kit) { k.WantDead() })
		},
	},
}

const wrongCase = "HANDLERTEST_WRONG_CASE"

// TestWrong is what TestWrongIsCaught runs in a process of its own, because it has to fail.
func TestWrong(t *testing.T) {
	if c, asked := wrong[os.Getenv(wrongCase)]; asked {
		c.test(t)
	}
}

func TestWrongIsCaught(t *testing.T) {
	for name, c := range wrong {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWrong$")
			cmd.Env = append(os.Environ(), wrongCase+"="+name)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "it passes: %s", out)
			require.Contains(t, string(out), c.says)
		})
	}
}
