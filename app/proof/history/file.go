package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Read reads a history of JSON lines, as Recorder writes it.
func Read(r io.Reader) ([]Event, error) {
	dec := json.NewDecoder(bufio.NewReader(r))
	var events []Event
	for {
		var e Event
		err := dec.Decode(&e)
		switch {
		case errors.Is(err, io.EOF):
			return events, nil
		case err != nil:
			return nil, fmt.Errorf("event %d of the history: %w", len(events)+1, err)
		}
		events = append(events, e)
	}
}
