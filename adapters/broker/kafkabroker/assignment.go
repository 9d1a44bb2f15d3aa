package kafkabroker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"golang.org/x/sync/errgroup"
)

// takeovers is how many partitions of an assignment are taken over at the same time.
const takeovers = 4

// assignment is the partitions of one generation of the group, for work in transactions.
type assignment struct {
	t       *transactor
	session sarama.ConsumerGroupSession
	shards  map[int32]*shard

	cancel  context.CancelFunc
	watcher sync.WaitGroup

	mu       sync.Mutex
	failed   bool
	working  int           // shards whose work has not ended
	finished chan struct{} // closed when it all has
}

func newAssignment(t *transactor) *assignment {
	return &assignment{t: t, shards: map[int32]*shard{}, finished: make(chan struct{})}
}

var _ sarama.ConsumerGroupHandler = (*assignment)(nil)

// Setup takes all partitions over before the first record of any is fetched.
func (a *assignment) Setup(session sarama.ConsumerGroupSession) error {
	a.session = session
	ctx, cancel := context.WithCancel(session.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		select {
		case <-a.t.draining:
			cancel()
		case <-ctx.Done():
		}
	})
	err := a.open(ctx, session.Claims()[a.t.physical])
	if err != nil {
		a.closeShards()
		if session.Context().Err() != nil {
			return nil // the next rebalance has come already: it is no reason to leave the group
		}
		return err
	}
	for _, s := range a.shards {
		// The library has read the offset before the previous owner was fenced.
		session.ResetOffset(a.t.physical, s.partition, s.start, "")
		session.MarkOffset(a.t.physical, s.partition, s.start, "")
	}
	working, stop := context.WithCancel(context.Background())
	a.cancel = stop
	a.watcher.Go(func() { a.watch(working) })
	if a.working = len(a.shards); a.working == 0 {
		close(a.finished)
	}
	a.t.setCurrent(a)
	a.t.setWhy(nil)
	return nil
}

func (a *assignment) open(ctx context.Context, partitions []int32) error {
	var group errgroup.Group
	group.SetLimit(takeovers)
	for _, p := range partitions {
		group.Go(func() error {
			s, err := a.t.openShard(ctx, a.session, p)
			if err != nil {
				return err
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			a.shards[p] = s
			return nil
		})
	}
	return group.Wait()
}

// watch stops the shards when the assignment ends or the source drains, and takes them away when the group has gone on without this
// member, or when the work has had its time.
func (a *assignment) watch(ctx context.Context) {
	over := a.session.Context().Done()
	select {
	case <-over:
	case <-a.t.draining:
	case <-ctx.Done():
	}
	for _, s := range a.shards {
		s.stop()
	}
	select {
	case <-over:
	case <-a.t.halt:
	case <-ctx.Done():
	}
	if !isLost(context.Cause(a.session.Context())) {
		settle := time.NewTimer(a.t.b.conf.SettleTimeout)
		defer settle.Stop()
		select {
		case <-settle.C:
		case <-a.t.halt:
		case <-ctx.Done():
		}
	}
	for _, s := range a.shards {
		s.lose(errLate)
	}
}

var errLate = errors.New("kafka: the partition is taken away")

// ConsumeClaim works on one partition until it is taken away. Its return ends the assignment of all.
func (a *assignment) ConsumeClaim(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	s := a.shards[claim.Partition()]
	if s == nil {
		return nil
	}
	s.messages = claim.Messages()
	err := a.t.work(s.ctx, s)
	if err == nil {
		s.leave()
	}
	a.finish()
	if err != nil {
		a.fail(s, err)
		return nil
	}
	select { // the others of this assignment have work to finish
	case <-a.session.Context().Done():
	case <-a.finished:
	}
	return nil
}

// finish counts a shard whose work has ended.
func (a *assignment) finish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.working--; a.working == 0 {
		close(a.finished)
	}
}

// fail notes that a partition was given up. After a failure nothing in memory counts: the partition is taken over anew, by whoever gets it.
func (a *assignment) fail(s *shard, err error) {
	a.mu.Lock()
	a.failed = true
	a.mu.Unlock()
	level := slog.LevelWarn
	if a.session.Context().Err() != nil {
		level = slog.LevelInfo // a rebalance
	}
	a.t.log.Log(s.ctx, level, "kafka partition given up, to be taken over anew",
		slog.String("topic", a.t.physical), slog.Int("partition", int(s.partition)), slog.Any("err", err))
}

// Cleanup lets the partitions go. No work runs any more.
func (a *assignment) Cleanup(sarama.ConsumerGroupSession) error {
	if a.cancel != nil {
		a.cancel()
		a.watcher.Wait()
	}
	a.closeShards()
	a.t.setCurrent(nil)
	a.t.setWhy(errJoining)
	a.t.settleDown(a.failed)
	return nil
}

func (a *assignment) closeShards() {
	for partition, s := range a.shards {
		s.close()
		a.t.setFull(partition, false)
	}
	a.shards = nil
}

// settleDown makes assignments that fail in a row follow each other more slowly.
func (t *transactor) settleDown(failed bool) {
	if !failed {
		t.failing = 0
		return
	}
	t.failing++
	wait := min(firstRetry<<min(t.failing, 6), lastRetry)
	select {
	case <-time.After(wait):
	case <-t.draining:
	}
}
