package redisstore

import (
	_ "embed"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed scripts/head.lua
	scriptHead string
	//go:embed scripts/acquire.lua
	acquireText string
	//go:embed scripts/renew.lua
	renewText string
	//go:embed scripts/complete.lua
	completeText string
	//go:embed scripts/release.lua
	releaseText string
	//go:embed scripts/note.lua
	noteText string
	//go:embed scripts/peek.lua
	peekText string
)

// scripts are the steps of the store, each atomic on the server and over one key. They are called by their hash; a server that does not
// know one yet, or any more, gets its text.
type scripts struct {
	acquire, renew, complete, release, note, peek *redis.Script
}

func newScripts() scripts {
	script := func(text string) *redis.Script { return redis.NewScript(scriptHead + text) }
	return scripts{
		acquire: script(acquireText), renew: script(renewText), complete: script(completeText),
		release: script(releaseText), note: script(noteText), peek: script(peekText),
	}
}
