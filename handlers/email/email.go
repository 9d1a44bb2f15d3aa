package email

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/handlers"
)

// Topics of the plugin.
const (
	TopicCompleted = "payments.completed"
	TopicRequested = "email.requested"
	TopicSent      = "email.sent"
)

const guarantee = `One letter for each key, with a Message-ID that is the same on every attempt. ` +
	`Folder: exactly one file for each key. SMTP: exactly one letter unless the server's answer to it was lost; then the outcome is unknown and parked for a person by default, never sent again blindly. ` +
	`What was sent is recorded in letters exactly once, together with the key. Not promised: that an accepted letter reaches its reader.`

//go:embed migrations
var embedded embed.FS

// Plugin returns the plugin "email" with its bindings "email" (payments.completed) and "email-requested" (email.requested).
func Plugin() handlers.Plugin {
	return handlers.Plugin{
		Name:       "email",
		Migrations: migrations(),
		Guarantee:  guarantee,
		Publishes:  []string{TopicSent},
		Open: handlers.Open(func(cfg Config, b *handlers.Bindings) error {
			post, err := newPost(cfg)
			if err != nil {
				return err
			}
			b.OnExternal(TopicCompleted, post.external(TopicCompleted, cfg.Confirmation.letter))
			b.OnExternal(TopicRequested, post.external(TopicRequested, requested), handlers.Named("email-requested"))
			return nil
		}),
	}
}

func migrations() fs.FS {
	files, err := fs.Sub(embedded, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return files
}

// Sent is the result of a letter and what is published on email.sent.
type Sent struct {
	MessageID string `json:"message_id"` // without angle brackets
	To        string `json:"to"`
	Subject   string `json:"subject"`
	// Reply is the mail server's answer, which often names the letter in the server's log.
	Reply string `json:"reply,omitempty"`
}

// transport takes a letter over. It returns a permanent failure where the letter is refused, an unknown one where it may
// have been taken, and any other error where surely nothing was taken.
type transport interface {
	send(ctx context.Context, l letter) (reply string, err error)
}

// post is where letters go.
type post struct {
	cfg       Config
	domain    string
	transport transport
}

// newPost connects to nothing.
func newPost(cfg Config) (*post, error) {
	from, err := parseAddress("from", cfg.From)
	if err != nil {
		return nil, err
	}
	p := &post{cfg: cfg, domain: cfg.domain()}
	if cfg.Transport == transportSMTP {
		p.transport = &smtpTransport{cfg: cfg.SMTP, from: from}
	} else {
		p.transport = &folderTransport{dir: cfg.Folder, from: from}
	}
	return p, nil
}

// external makes the handler of one topic; compose reads the letter from the message.
func (p *post) external(topic string, compose func(*message.Message) (letter, error)) handlers.External {
	e := handlers.External{
		Call: func(ctx context.Context, msg *message.Message, key handlers.Key) (any, error) {
			l, err := compose(msg)
			if err != nil {
				return nil, err
			}
			l.messageID = p.messageID(key)
			reply, err := p.transport.send(ctx, l)
			if err != nil {
				return nil, err
			}
			return l.sent(reply), nil
		},
		Record: func(ctx context.Context, tx handlers.Tx, _ *message.Message, result json.RawMessage) error {
			return p.record(ctx, tx, topic, result)
		},
		Unknown: handlers.UnknownPark,
	}
	if folder, ok := p.transport.(*folderTransport); ok {
		e.Unknown = handlers.UnknownRetry
		e.Probe = func(_ context.Context, msg *message.Message, key handlers.Key) (any, bool, error) {
			l, err := compose(msg)
			if err != nil {
				return nil, false, err
			}
			l.messageID = p.messageID(key)
			known, err := folder.has(l)
			return l.sent(""), known, err
		}
	}
	return e
}

func (p *post) messageID(key handlers.Key) string { return key.String() + "@" + p.domain }

// record writes what was sent. A letter that was sent again under its old identity after its key had expired keeps its first row.
func (p *post) record(ctx context.Context, tx handlers.Tx, topic string, result json.RawMessage) error {
	var sent Sent
	if err := json.Unmarshal(result, &sent); err != nil {
		return fmt.Errorf("read the stored result of the letter: %w", err)
	}
	tx.Defer(nil, handlers.Ensure(tx, `INSERT INTO letters (message_id, scope, idempotency_key, topic, recipient, subject, reply)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, "message_id"),
		sent.MessageID, tx.Scope(), tx.Key(), topic, sent.To, sent.Subject, sent.Reply)
	if !p.cfg.Announce {
		return nil
	}
	return tx.Publish(ctx, TopicSent, sent)
}
