package journal

import (
	"context"
	"embed"
	"io/fs"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/handlers"
)

// Topics that the plugin listens to.
const (
	TopicAppend    = "journal.append"
	TopicCompleted = "payments.completed"
	TopicDeclined  = "payments.declined"
)

const guarantee = `Each message becomes exactly one entry with its body and its key, which commits together with the key. ` +
	`Entries are never changed or removed; the database refuses it. Not promised: ids without gaps, or in the order of commits.`

//go:embed migrations
var embedded embed.FS

// Config is the plugin's section of the configuration. It has no settings.
type Config struct{}

// Plugin returns the plugin "journal" with its bindings "journal" (payments.completed), "journal-declined"
// (payments.declined) and "journal-append" (journal.append).
func Plugin() handlers.Plugin {
	return handlers.Plugin{
		Name:       "journal",
		Migrations: migrations(),
		Guarantee:  guarantee,
		Open: handlers.Open(func(_ Config, b *handlers.Bindings) error {
			b.On(TopicCompleted, appendTo(TopicCompleted))
			b.On(TopicDeclined, appendTo(TopicDeclined), handlers.Named("journal-declined"))
			b.On(TopicAppend, appendTo(TopicAppend), handlers.Named("journal-append"))
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

// appendTo makes the handler that writes entries of one logical topic.
func appendTo(topic string) handlers.Handler {
	return func(_ context.Context, tx handlers.Tx, msg *message.Message) (any, error) {
		body := append([]byte{}, msg.Payload...) // never nil, which would be NULL
		tx.Defer(func(rows int64) error {
			if rows == 1 {
				return nil
			}
			return handlers.Permanent("journal-entry-exists", "this key had its entry before it expired from the key store")
		}, handlers.InsertNew(tx, `INSERT INTO journal_entries (scope, idempotency_key, topic, message_uuid, payload)
			VALUES (?, ?, ?, ?, ?)`, "scope", "idempotency_key"),
			tx.Scope(), tx.Key(), topic, msg.UUID, body)
		return nil, nil
	}
}
