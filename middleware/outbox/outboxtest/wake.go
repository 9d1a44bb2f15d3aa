package outboxtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var wakeTests = []test{
	{"AfterACommit", wakeAfterCommit},
	{"NeverBlocksACommit", wakeNeverBlocks},
}

func drained(c <-chan struct{}) {
	for {
		select {
		case <-c:
		case <-time.After(50 * time.Millisecond): // a late notice of an earlier commit
			return
		}
	}
}

func awaitWake(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		require.Fail(t, "the relay was not woken")
	}
}

func wakeAfterCommit(t *testing.T, h Harness) {
	wake := h.Source.Wake()
	for i := range 3 {
		drained(wake)
		h.commit(t, ordered("t", "k", i, 1)...)
		awaitWake(t, wake)
	}
}

func wakeNeverBlocks(t *testing.T, h Harness) {
	wake := h.Source.Wake()
	for i := range 20 {
		h.commit(t, ordered("t", "k", i, 1)...)
	}
	awaitWake(t, wake)
}
