package pressure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/eviction"
)

// Bounds of what is kept of decisions.
const (
	keptDecisions = 200
	keptRanks     = 20
	historyLimit  = 16 << 20 // bytes of the file; 200 decisions have a tenth of it
)

// history has the latest decisions, the oldest first, in memory and in a file that is replaced as a whole. Who decides
// does not wait for the file: a disk that is busy takes seconds for it, and memory is gone before.
type history struct {
	file string
	log  *slog.Logger
	wait sync.WaitGroup // for the file

	mu      sync.Mutex
	kept    []eviction.Decision
	fresh   []eviction.Decision // those that are not in the file yet, and so not told of
	writing bool
}

func openHistory(file string, log *slog.Logger) *history {
	h := &history{file: file, log: log}
	if file == "" {
		return h
	}
	kept, err := readHistory(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// It would be written over with the next decision.
		err = errors.Join(err, os.Rename(file, file+record.Aside))
		log.Warn("what was kept of evictions cannot be read", "file", file, "error", err)
	}
	h.kept = kept[max(0, len(kept)-keptDecisions):]
	return h
}

// readHistory takes all that is in the file, or nothing.
func readHistory(file string) (kept []eviction.Decision, err error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("it is no file")
	}
	if st.Size() > historyLimit {
		return nil, fmt.Errorf("it has %d bytes, more than %d", st.Size(), int64(historyLimit))
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &kept); err != nil {
		return nil, err
	}
	return kept, nil
}

// add keeps a decision. It is told of when it outlives the agent.
func (h *history) add(d eviction.Decision) {
	d.Others += max(0, len(d.Ranked)-keptRanks)
	d.Ranked = d.Ranked[:min(len(d.Ranked), keptRanks)]
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fresh = append(h.fresh, d)
	if !h.writing {
		h.writing = true
		h.wait.Go(h.write)
	}
}

// write writes until nothing is fresh any more.
func (h *history) write() {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { h.writing = false }()
	for len(h.fresh) > 0 {
		all := settled(slices.Concat(h.kept, h.fresh))
		all = slices.Clone(all[max(0, len(all)-keptDecisions):])
		count := len(h.fresh)
		if h.file != "" {
			h.mu.Unlock()
			err := record.Write(h.file, all)
			h.mu.Lock()
			if err != nil {
				h.log.Warn("an eviction is not kept for after a restart", "error", err)
			}
		}
		h.kept, h.fresh = all, h.fresh[count:]
	}
}

// settled has one decision of all that follow each other and say that nobody can go for the same: the last. A node that
// stays short, with nobody to go, would fill the history with them.
func settled(all []eviction.Decision) []eviction.Decision {
	out := all[:0]
	for i := range all {
		if n := len(out); n > 0 && ofNobody(&out[n-1]) && ofNobody(&all[i]) && out[n-1].Signal == all[i].Signal &&
			out[n-1].Message == all[i].Message && out[n-1].Result.Error == all[i].Result.Error {
			out = out[:n-1]
		}
		out = append(out, all[i])
	}
	return out
}

// ofNobody says whether a decision came to nothing, for want of anybody to end and of anything to remove.
func ofNobody(d *eviction.Decision) bool { return d.Pod == (eviction.Name{}) && d.Reclaimed == 0 }

// all are the decisions, the oldest first.
func (h *history) all() []eviction.Decision {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.kept)
}
