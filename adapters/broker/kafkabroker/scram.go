package kafkabroker

import (
	"errors"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// scramClient is one SCRAM conversation. It reads the password when the conversation begins, so that a rotated one
// counts from the next connection on.
type scramClient struct {
	hash         scram.HashGeneratorFcn
	password     func() (string, error)
	conversation *scram.ClientConversation
}

var _ sarama.SCRAMClient = (*scramClient)(nil)

// Begin starts a conversation. The password of sarama's configuration is a place holder and not used.
func (c *scramClient) Begin(user, _, authzID string) error {
	password, err := c.password()
	if err != nil {
		return err
	}
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		// The library's error may quote what it could not prepare.
		return errors.New("kafka: the SASL user or password has characters that SCRAM does not allow")
	}
	c.conversation = client.NewConversation()
	return nil
}

// Step answers one challenge of the broker.
func (c *scramClient) Step(challenge string) (string, error) { return c.conversation.Step(challenge) }

// Done reports whether the conversation is over.
func (c *scramClient) Done() bool { return c.conversation.Done() }
