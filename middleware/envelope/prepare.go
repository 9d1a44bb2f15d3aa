package envelope

import (
	"bytes"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Prepare returns a deep copy of msg that is ready to be published: metadata is not nil, a missing UUID
// is given, the context is msg's own. The caller's message is not touched and shares no memory
// with the copy; acks of the copy do not reach it.
func Prepare(msg *message.Message) *message.Message {
	id := msg.UUID
	if id == "" {
		id = NewUUID()
	}
	c := message.NewMessageWithContext(msg.Context(), id, bytes.Clone(msg.Payload))
	maps.Copy(c.Metadata, msg.Metadata)
	return c
}
