package counters

import "github.com/oncemill/oncemill/handlers/internal/tally"

// Add asks to add to a counter; a counter that is not there begins at zero.
type Add = tally.Add

// Added is the result of a message.
type Added = tally.Added
