package sqlcore

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

var _ keystore.Epochs = (*Keys)(nil)

const (
	selectEpoch = `SELECT epoch, server, {server} FROM key_epoch WHERE id = 1`
	// Of two processes that see another server one raises the epoch; the other's update finds nothing.
	moveEpoch  = `UPDATE key_epoch SET epoch = ?, server = {server} WHERE id = 1 AND epoch = ?`
	raiseEpoch = `UPDATE key_epoch SET epoch = ?, server = {server} WHERE id = 1`
)

// maxEpochRounds bounds the looks at an epoch that others raise all the time.
const maxEpochRounds = 5

// Epoch implements keystore.Epochs. The server is what the dialect's word {server} says of it; SQLite's file has none.
func (k *Keys) Epoch(ctx context.Context) (string, error) {
	for range maxEpochRounds {
		epoch, moved, err := k.readEpoch(ctx)
		if err != nil {
			return "", fmt.Errorf("read the database's epoch: %w", err)
		}
		if !moved {
			return epoch, nil
		}
		if err := k.sender.Do(ctx, &Stmt{Query: moveEpoch, Args: []any{newToken(), epoch}}); err != nil {
			return "", fmt.Errorf("begin an epoch on another server: %w", err)
		}
	}
	return "", fmt.Errorf("read the database's epoch: %w", contended{errKeyVanishes})
}

// readEpoch reads the epoch, and whether it began on another server than this one.
func (k *Keys) readEpoch(ctx context.Context) (epoch string, moved bool, err error) {
	found := false
	err = k.sender.Read(ctx, &Stmt{Query: selectEpoch, Row: func(scan Scan) error {
		var then, now string
		err := scan(&epoch, &then, &now)
		found, moved = true, then != now
		return err
	}})
	if err == nil && !found {
		err = fmt.Errorf("the table key_epoch is empty")
	}
	return epoch, moved, err
}

// RaiseEpoch implements keystore.Epochs.
func (k *Keys) RaiseEpoch(ctx context.Context, by, why string) (string, error) {
	raise, epoch := newEpoch()
	err := k.sender.Do(ctx, raise, logAction(parking.Action{What: "raise epoch", By: by, Why: why}, "", "", 0))
	if err != nil {
		return "", fmt.Errorf("raise the database's epoch: %w", err)
	}
	return epoch, nil
}

// newEpoch is the statement that begins an epoch, with its name. It belongs into the transaction that makes the database forget a key.
func newEpoch() (*Stmt, string) {
	epoch := newToken()
	return &Stmt{Query: raiseEpoch, Args: []any{epoch}}, epoch
}
