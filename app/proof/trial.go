package proof

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// Config is what a Trial works on.
type Config struct {
	Plan history.Plan
	Cast Cast
	// Publisher is the producer's, on a connection of its own.
	Publisher outbox.Publisher
	// DB is the database of the trial.
	DB *sqlx.DB
	// Command makes a replica's process, which begins with NewWorker.
	Command func() (*exec.Cmd, error)
	Start   Start
	// Lines are those of a replica's connections that can be cut.
	Lines []string
	// Dir is for the replicas' logs.
	Dir      string
	Replicas int
	// Patience bounds how long everything may take to settle.
	Patience time.Duration
	// Say tells people how far it is.
	Say func(format string, args ...any)
}

// Trial runs replicas, publishes, breaks, and reads what came of it.
type Trial struct {
	cfg      Config
	rec      *Recorder
	mail     *Mailbox
	replicas []*replica
	living   context.Context // ends with Close
	end      context.CancelFunc
	going    sync.WaitGroup             // what Close waits for
	scopes   map[string]history.Binding // by name of the binding

	steps  map[string]map[faultpoint.Point]bool // by binding: what its messages come by
	source string                               // a binding whose handler publishes; "" where none does

	mu     sync.Mutex
	arms   map[int]Arm // armed and not fired
	hits   map[int]int // how often each has fired
	number int
	rivals map[[2]string][]waiting    // by scope and key
	posted map[string]map[string]bool // keys by topic: those that the trial or a relay published
	sent   []cue
	forged map[string]map[string]bool // those that were used a second time: all second payloads of a key are one dead letter
}

// waiting is a step that waits for its rival.
type waiting struct {
	r      *replica
	number int
}

// NewTrial starts nothing.
func NewTrial(cfg Config, rec *Recorder, mail *Mailbox) *Trial {
	t := &Trial{
		cfg: cfg, rec: rec, mail: mail, scopes: map[string]history.Binding{}, arms: map[int]Arm{}, hits: map[int]int{},
		rivals: map[[2]string][]waiting{}, steps: map[string]map[faultpoint.Point]bool{}, posted: map[string]map[string]bool{}, forged: map[string]map[string]bool{},
	}
	t.living, t.end = context.WithCancel(context.Background())
	for _, b := range cfg.Plan.Bindings {
		t.scopes[b.Name] = b
	}
	for n := range cfg.Replicas {
		t.replicas = append(t.replicas, &replica{t: t, name: fmt.Sprintf("replica-%d", n+1)})
	}
	rec.Add(history.Event{At: time.Now(), Kind: history.Planned, Plan: &cfg.Plan})
	return t
}

// Open starts the replicas, waits until all of them consume, and finds out by which steps the messages of each binding come.
func (t *Trial) Open(ctx context.Context) error {
	if len(t.cfg.Cast.cues()) == 0 {
		return errors.New("the trial has no message: Payload returns nil for every binding")
	}
	for _, r := range t.replicas {
		if err := r.launch(); err != nil {
			return err
		}
	}
	err := t.until(ctx, t.beginning(), "all replicas consume", func(context.Context) (bool, error) {
		if n := t.rec.Count("process died"); n > 0 {
			return false, fmt.Errorf("a replica ended before it consumed; its log is in %s", t.cfg.Dir)
		}
		return !slices.ContainsFunc(t.replicas, func(r *replica) bool { return !r.isReady() }), nil
	})
	if err != nil {
		return err
	}
	if err := t.open(ctx); err != nil {
		return err
	}
	return t.discover(ctx)
}

// stopPatience bounds a graceful end of a replica.
const stopPatience = 30 * time.Second

// Close ends the replicas. Safe to call twice.
func (t *Trial) Close() {
	var group sync.WaitGroup
	for _, r := range t.replicas {
		group.Go(func() { r.retire(min(t.cfg.Patience, stopPatience)) })
	}
	group.Wait()
	t.end()
	t.going.Wait()
}

// beginning is how long it may take until the first messages are handled, before anything is broken.
func (t *Trial) beginning() time.Duration { return max(t.cfg.Patience, time.Minute) }

func (t *Trial) process(name, what, reason string) {
	t.rec.Add(history.Event{At: time.Now(), Kind: history.Process, Replica: name, What: what, Reason: reason})
}

// arm arms faults in all replicas, those that start later included, and returns their numbers.
func (t *Trial) arm(arms ...Arm) []int {
	t.mu.Lock()
	var ids []int
	for i := range arms {
		t.number++
		arms[i].ID, arms[i].Nth, arms[i].Times = t.number, max(arms[i].Nth, 1), max(arms[i].Times, 1)
		t.arms[t.number] = arms[i]
		ids = append(ids, t.number)
	}
	t.mu.Unlock()
	t.toAll(Order{Arm: arms})
	return ids
}

func (t *Trial) disarm(ids ...int) {
	t.mu.Lock()
	for _, id := range ids {
		delete(t.arms, id)
	}
	t.mu.Unlock()
	t.toAll(Order{Disarm: ids})
}

// outstanding are the arms that have not fired.
func (t *Trial) outstanding() []Arm {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.arms))
}

func (t *Trial) hasFired(id int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hits[id] > 0
}

// fired takes a fault that fires once away from the other replicas.
func (t *Trial) fired(id int, by *replica) {
	t.mu.Lock()
	t.hits[id]++
	once := t.arms[id].Times <= 1
	if once {
		delete(t.arms, id)
	}
	t.mu.Unlock()
	if !once {
		return
	}
	for _, r := range t.replicas {
		if r != by {
			t.going.Go(func() { r.order(Order{Disarm: []int{id}}) })
		}
	}
}

func (t *Trial) toAll(o Order) {
	for _, r := range t.replicas {
		r.order(o)
	}
}

// rival publishes a message again on behalf of a step that waits for it.
func (t *Trial) rival(r *replica, m Message) {
	topic := ""
	for _, b := range t.cfg.Plan.Bindings {
		if b.Scope == m.Scope {
			topic = b.Topic
		}
	}
	at := [2]string{m.Scope, m.Key}
	t.mu.Lock()
	t.rivals[at] = append(t.rivals[at], waiting{r, m.Number})
	t.mu.Unlock()
	msg := message.NewMessage(envelope.NewUUID(), m.Payload) // a broker may remove what has the same UUID by itself
	for name, value := range m.Metadata {
		if !strings.HasPrefix(name, envelope.ReservedPrefix) && !strings.HasPrefix(name, envelope.WatermillPrefix) {
			msg.Metadata.Set(name, value)
		}
	}
	ctx, cancel := context.WithTimeout(t.living, t.cfg.Patience)
	defer cancel()
	_ = t.publish(ctx, topic, msg, history.Rival) // the step waits for a bounded time
}

// received lets the steps go on that waited for this delivery.
func (t *Trial) received(e history.Event) {
	at := [2]string{e.Scope, e.Key}
	t.mu.Lock()
	steps := t.rivals[at]
	delete(t.rivals, at)
	t.mu.Unlock()
	for _, step := range steps {
		t.going.Go(func() { step.r.order(Order{GoOn: step.number}) })
	}
}

// publish publishes until the broker has confirmed, as a producer does that must not lose anything.
func (t *Trial) publish(ctx context.Context, topic string, msg *message.Message, what string) error {
	e := history.Event{
		At: time.Now(), Kind: history.Sent, Topic: topic, Key: msg.Metadata.Get(envelope.KeyHeader), UUID: msg.UUID, Print: printOf(msg.Payload), What: what,
	}
	t.rec.Add(e)
	for {
		call, cancel := context.WithTimeout(ctx, 15*time.Second)
		err := errors.Join(t.cfg.Publisher.PublishBatch(call, topic, []*message.Message{msg})...)
		cancel()
		if err == nil {
			break
		}
		if pause(ctx, 200*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("publish to %s: %w", topic, err)
		}
	}
	e.At, e.Kind = time.Now(), history.Confirmed
	t.rec.Add(e)
	switch what {
	case history.Original:
		t.note(t.posted, topic, e.Key)
	case history.Forgery:
		t.note(t.forged, topic, e.Key)
	}
	return nil
}

func (t *Trial) note(keys map[string]map[string]bool, topic, key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if keys[topic] == nil {
		keys[topic] = map[string]bool{}
	}
	keys[topic][key] = true
}

// until waits until done reports true.
func (t *Trial) until(ctx context.Context, patience time.Duration, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ok, err := done(ctx)
		if ok || err != nil {
			return err
		}
		if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		}
	}
}
