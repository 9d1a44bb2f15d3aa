package kafkabroker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	// assignTimeout bounds what is asked of the coordinator before the first record of an assignment.
	assignTimeout = 10 * time.Second
	// lastCommitTimeout bounds the commit with which an assignment ends.
	lastCommitTimeout = 3 * time.Second
)

var errStopping = errors.New("kafka: the subscriber is stopping")

// generation is one assignment of partitions to this member of the group, from Setup to Cleanup.
type generation struct {
	s       *subscriber
	session sarama.ConsumerGroupSession
	id      int32
	member  string
	claims  map[int32]*claim

	commitNow chan struct{}
	stop      chan struct{} // closed when nothing is to be handed over any more
	ended     chan struct{} // closed when the assignment is over, or being taken away
	abandoned chan struct{} // closed when there is nothing to wait for: the member is out of the group, or the stop is a hard one
	settled   chan struct{} // closed in a drain, when all in flight is settled and committed

	mu      sync.Mutex
	handing int // claims that hand over
	once    map[chan struct{}]bool

	cancel  context.CancelFunc
	workers sync.WaitGroup
}

// newGeneration learns where the partitions stand and commits that this member may deliver from there on. So
// nothing is delivered before the group's coordinator has confirmed the assignment.
func newGeneration(s *subscriber, session sarama.ConsumerGroupSession) (*generation, error) {
	g := &generation{
		s: s, session: session, id: session.GenerationID(), member: session.MemberID(),
		claims:    map[int32]*claim{},
		commitNow: make(chan struct{}, 1),
		stop:      make(chan struct{}), ended: make(chan struct{}), abandoned: make(chan struct{}), settled: make(chan struct{}),
		once: map[chan struct{}]bool{},
	}
	ctx, cancel := context.WithTimeout(session.Context(), assignTimeout)
	defer cancel()
	partitions := session.Claims()[s.physical]
	starts, err := s.b.startingPoints(ctx, s.physical, s.group, partitions, s.b.conf.Window)
	if err != nil {
		return nil, err
	}
	for _, p := range partitions {
		g.claims[p] = newClaim(g, p, newWindow(s.b.conf.Window, starts[p].offset, starts[p].upTo))
	}
	if err := g.commitDue(ctx); err != nil {
		return nil, err
	}
	runCtx, stopWorkers := context.WithCancel(context.Background())
	g.cancel = stopWorkers
	g.workers.Go(func() { g.commitLoop(runCtx) })
	g.workers.Go(func() { g.watch(runCtx) })
	return g, nil
}

// closeOnce closes one of the generation's channels.
func (g *generation) closeOnce(c chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.once[c] {
		g.once[c] = true
		close(c)
	}
}

// watch turns the ends of session and subscriber into those of the generation.
func (g *generation) watch(ctx context.Context) {
	select {
	case <-g.session.Context().Done():
	case <-g.s.draining:
		g.closeOnce(g.stop)
		g.checkSettled()
		select {
		case <-g.session.Context().Done():
		case <-g.s.halt:
		case <-g.abandoned:
		case <-ctx.Done():
		}
	case <-g.abandoned:
	case <-ctx.Done():
	}
	g.closeOnce(g.stop)
	if cause := context.Cause(g.session.Context()); isLost(cause) {
		g.closeOnce(g.abandoned)
	}
	g.closeOnce(g.ended)
	select {
	case <-g.s.halt:
		g.closeOnce(g.abandoned)
	case <-ctx.Done():
	}
}

// isLost reports that the group has gone on without this member.
func isLost(err error) bool {
	return errors.Is(err, sarama.ErrUnknownMemberId) || errors.Is(err, sarama.ErrIllegalGeneration) || errors.Is(err, sarama.ErrFencedInstancedId)
}

// enter counts a claim that begins to hand over; false where that has ended already.
func (g *generation) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.once[g.stop] {
		return false
	}
	g.handing++
	return true
}

func (g *generation) leave() {
	g.mu.Lock()
	g.handing--
	g.mu.Unlock()
	g.checkSettled()
}

// checkSettled closes settled in a drain, once nobody hands over and every window is settled and committed.
func (g *generation) checkSettled() {
	g.mu.Lock()
	open := !g.once[g.stop] || g.handing > 0
	g.mu.Unlock()
	if open {
		return
	}
	for _, c := range g.claims {
		if !c.w.settled() {
			signal(g.commitNow)
			return
		}
	}
	g.closeOnce(g.settled)
}

// commitLoop commits at the interval, and at once when a window needs it.
func (g *generation) commitLoop(ctx context.Context) {
	ticker := time.NewTicker(g.s.b.conf.OffsetsInterval)
	defer ticker.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-g.commitNow:
		}
		err := g.commitDue(ctx)
		switch {
		case err == nil:
			failures = 0
			continue
		case ctx.Err() != nil:
			return
		case isLost(err):
			g.closeOnce(g.abandoned)
			return
		}
		failures++
		if failures&(failures-1) == 0 { // 1, 2, 4, ...: an outage is no flood
			g.s.log.Warn("kafka offsets not committed", slog.String("topic", g.s.physical), slog.Int("attempt", failures), slog.Any("err", err))
		}
		select {
		case <-time.After(min(time.Second, time.Duration(failures)*100*time.Millisecond)):
			signal(g.commitNow)
		case <-ctx.Done():
			return
		}
	}
}

// commitDue commits what is due of all partitions, in one request.
func (g *generation) commitDue(ctx context.Context) error {
	points := map[int32]point{}
	for partition, c := range g.claims {
		if p, due := c.w.due(); due {
			points[partition] = p
		}
	}
	committed, err := g.s.b.commitPoints(ctx, g.owner(), points)
	for _, partition := range committed {
		c := g.claims[partition]
		c.w.commit(points[partition])
		signal(c.wake)
	}
	if len(committed) > 0 {
		g.checkSettled()
	}
	return err
}

func (g *generation) owner() groupMember {
	return groupMember{group: g.s.group, topic: g.s.physical, member: g.member, generation: g.id}
}

// close commits the exact end of each partition, unless the assignment is lost to others, and ends everything. No claim may run any more.
func (g *generation) close() {
	g.closeOnce(g.stop)
	g.closeOnce(g.ended)
	g.cancel()
	g.workers.Wait()
	points := map[int32]point{}
	for partition, c := range g.claims {
		points[partition] = c.close()
	}
	if !g.isAbandonedByGroup() {
		ctx, cancel := context.WithTimeout(context.Background(), lastCommitTimeout)
		committed, err := g.s.b.commitPoints(ctx, g.owner(), points)
		cancel()
		if err != nil && !isLost(err) {
			g.s.log.Warn("kafka offsets not committed at the end of an assignment; settled messages will come again",
				slog.String("topic", g.s.physical), slog.Any("err", err))
		}
		for _, partition := range committed {
			g.claims[partition].w.commit(points[partition])
		}
	}
	for _, c := range g.claims {
		c.end()
	}
}

func (g *generation) isAbandonedByGroup() bool {
	if isLost(context.Cause(g.session.Context())) {
		return true
	}
	select {
	case <-g.s.halt:
		return false
	default:
	}
	select {
	case <-g.abandoned:
		return true
	default:
		return false
	}
}
